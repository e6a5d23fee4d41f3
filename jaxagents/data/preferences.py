"""Batches of pairs of transcripts from files, of which one is preferred, for compiled preference learning."""

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from jaxagents.data.packing import PackedBatch, TokenSequence, pack
from jaxagents.data.schema import Trajectory
from jaxagents.data.streams import encode
from jaxagents.data.trajectories import read_trajectories, require_files
from jaxagents.data.transcripts import packed_episodes
from jaxagents.ops.checks import require_positive
from jaxagents.types import Array, Collector, Environment, Episode, LanguagePolicy, Metrics, Params, PyTree, Tokenizer


def make_preference_collector(
    environment: Environment,
    policy: LanguagePolicy,
    *,
    paths: str | Sequence[str],
    num_pairs: int,
    row_length: int,
    on_error: str = "raise",
    report: Callable[[str], None] = warnings.warn,
) -> Collector:
    """Makes a collector of random pairs of transcripts; all of them are kept on the device.

    Two trajectories of the files whose `metadata` have the same entry `pair` are a pair. The one that succeeded is
    preferred to the one that did not; where that says nothing, the one of the larger return.

    Args:
        environment: not used; the files say what was seen.
        policy: its tokenizer writes the transcripts.
        paths: one file of trajectories or several; the two of a pair may be in different ones.
        num_pairs: per batch, over all devices.
        row_length: tokens per row, of which every transcript has one.
        on_error: "raise" refuses damaged lines, "skip" reports and leaves them out.
        report: called with messages about all that is left out.

    Returns:
        The collector. Its batches are `Episode`s of `2 num_pairs` rows, the preferred one of each group first, for
        `ops.pairs.success_against_failure`; its steps are pairs.

    Raises:
        ValueError: a number is not positive, a transcript is longer than a row or of several agents, a pair is not
            complete or says nothing about which is preferred, or there is none.
    """
    del environment
    require_positive("num_pairs", num_pairs)
    require_files(paths)
    paths = [paths] if isinstance(paths, str | Path) else list(paths)
    found = [entry for path in paths for entry in read_trajectories(path, on_error=on_error, report=report)]
    sides = [
        jax.tree.map(jnp.asarray, _rows([_encode(one, policy.tokenizer) for one in side], policy.tokenizer, row_length))
        for side in zip(*_pairs(found), strict=True)
    ]

    def init(key: Array, params: Params) -> PyTree:
        del key, params
        return {"index": jnp.arange(num_pairs, dtype=jnp.int32)}

    def collect(state: PyTree, params: Params, key: Array) -> tuple[PyTree, Episode, Metrics]:
        del params
        size = sides[0].tokens.shape[0]
        chosen = jax.vmap(lambda i: jax.random.randint(jax.random.fold_in(key, i), (), 0, size))(state["index"])
        rows = jax.tree.map(lambda *side: jnp.stack([leaf[chosen] for leaf in side], axis=1), *sides)
        episode = packed_episodes(jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), rows))
        first = jnp.arange(episode.success.shape[0]) % 2 == 0
        return state, episode.replace(success=first, group=jnp.repeat(state["index"], 2)), {}

    return Collector(init=init, collect=collect, steps_per_collect=num_pairs, divided_option="num_pairs")


def _pairs(trajectories: Sequence[Trajectory]) -> list[tuple[Trajectory, Trajectory]]:
    """Returns pairs of a preferred trajectory and another one, in the order of the files."""
    by_name: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        if "pair" not in trajectory.metadata:
            raise ValueError(f"`metadata` of {trajectory.id!r} must have an entry `pair` that two trajectories share.")
        by_name.setdefault(str(trajectory.metadata["pair"]), []).append(trajectory)
    for name, both in by_name.items():
        if len(both) != 2:
            raise ValueError(f"`pair` {name!r} must be of two trajectories, got {len(both)}.")
    if not by_name:
        raise ValueError("`paths` must hold a pair of trajectories, got none.")
    return [_in_order(name, *both) for name, both in by_name.items()]


def _in_order(name: str, one: Trajectory, other: Trajectory) -> tuple[Trajectory, Trajectory]:
    for of_one, of_other in ((one.success, other.success), (one.episode_return, other.episode_return)):
        if of_one is not None and of_other is not None and of_one != of_other:
            return (one, other) if of_one > of_other else (other, one)
    raise ValueError(
        f"`pair` {name!r} must say which of the two is preferred, got {one.id!r} and {other.id!r} of equal or unknown "
        "success and return."
    )


def _encode(trajectory: Trajectory, tokenizer: Tokenizer) -> TokenSequence:
    sequences = encode(trajectory, tokenizer)
    if len(sequences) != 1:
        raise ValueError(f"`turns` of {trajectory.id!r} must be of one agent to be compared, got {len(sequences)}.")
    return sequences[0]


def _rows(sequences: Sequence[TokenSequence], tokenizer: Tokenizer, length: int) -> PackedBatch:
    rows = [pack([sequence], length, pad=tokenizer.marks["pad"])[0] for sequence in sequences]
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *rows)
