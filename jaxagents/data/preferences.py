"""Batches of transcripts from files for preference learning: pairs with a preferred one, or labelled ones."""

import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from jaxagents.data.packing import PackedBatch, TokenSequence, pack
from jaxagents.data.schema import Trajectory
from jaxagents.data.streams import encode, report_lost
from jaxagents.data.trajectories import read_rows, read_trajectories, require_files
from jaxagents.data.transcripts import packed_episodes
from jaxagents.ops.checks import require_positive
from jaxagents.types import Array, Collector, Environment, Episode, LanguagePolicy, Metrics, Params, PyTree


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
    """Makes a collector of random pairs of transcripts, all of which are kept on the device.

    A line `{"prompt", "chosen", "rejected"}` is a pair, and so are two trajectories in the files whose `metadata` have
    the same entry `pair`. A successful trajectory is preferred to a failed one; if success does not decide, the one
    with the larger return is preferred.

    Args:
        environment: not used; the files contain the observations.
        policy: policy whose tokenizer writes the transcripts, in its chat format if it has one.
        paths: one file of trajectories or several; the trajectories of a pair may be in different files.
        num_pairs: number of pairs per batch, over all devices.
        row_length: number of tokens per row; every transcript has its own row.
        on_error: "raise" refuses damaged lines and transcripts longer than a row, "skip" reports and leaves them out;
            pairs are left out as a whole.
        report: called with messages about everything that is left out.

    Returns:
        The collector. Its batches are `Episode`s of `2 num_pairs` rows, with the preferred one of each group first, for
        `ops.pairs.success_against_failure`; its steps are pairs.

    Raises:
        ValueError: a number is not positive, a transcript is longer than a row or of several agents, a pair is
            incomplete or does not tell which one is preferred, or there is no pair.
    """
    del environment
    require_positive("num_pairs", num_pairs)
    pairs = _pairs(_read(paths, on_error, report))
    _, sides = _rows(pairs, policy, row_length, paths, on_error, report)

    def init(key: Array, params: Params) -> PyTree:
        del key, params
        return {"index": jnp.arange(num_pairs, dtype=jnp.int32)}

    def collect(state: PyTree, params: Params, key: Array) -> tuple[PyTree, Episode, Metrics]:
        del params
        chosen = _draw(key, state["index"], sides[0].tokens.shape[0])
        rows = jax.tree.map(lambda *side: jnp.stack([leaf[chosen] for leaf in side], axis=1), *sides)
        episode = packed_episodes(jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), rows))
        first = jnp.arange(episode.success.shape[0]) % 2 == 0
        return state, episode.replace(success=first, group=jnp.repeat(state["index"], 2)), {}

    return Collector(init=init, collect=collect, steps_per_collect=num_pairs, divided_option="num_pairs")


def make_label_collector(
    environment: Environment,
    policy: LanguagePolicy,
    *,
    paths: str | Sequence[str],
    num_rows: int,
    row_length: int,
    on_error: str = "raise",
    report: Callable[[str], None] = warnings.warn,
) -> Collector:
    """Makes a collector of random transcripts that are labelled as good or bad, without pairs, for KTO.

    Args:
        environment: not used; the files contain the observations.
        policy: policy whose tokenizer writes the transcripts, in its chat format if it has one.
        paths: one file of trajectories or several, with `success` as the label, or with lines `{"prompt", "completion",
            "label"}`.
        num_rows: number of transcripts per batch, over all devices.
        row_length: number of tokens per row; every transcript has its own row.
        on_error: "raise" refuses damaged lines and transcripts longer than a row, "skip" reports and leaves them out.
        report: called with messages about everything that is left out.

    Returns:
        The collector. Its batches are `Episode`s of `num_rows` rows, each its own group; its steps are rows.

    Raises:
        ValueError: a number is not positive, a transcript is longer than a row, of several agents or without a label,
            or all labels are the same.
    """
    del environment
    require_positive("num_rows", num_rows)
    found = _read(paths, on_error, report)
    unknown = next((one.id for one in found if one.success is None), None)
    if unknown is not None:
        raise ValueError(f"`label` must be true or false in every line, got none in {unknown!r}.")
    kept, (rows,) = _rows([(one,) for one in found], policy, row_length, paths, on_error, report)
    labels = [bool(one.success) for (one,) in kept]
    if len(set(labels)) < 2:
        raise ValueError(f"`label` must be true in some lines and false in others, got {labels[0]} in all of them.")

    def init(key: Array, params: Params) -> PyTree:
        del key, params
        return {"index": jnp.arange(num_rows, dtype=jnp.int32)}

    def collect(state: PyTree, params: Params, key: Array) -> tuple[PyTree, Episode, Metrics]:
        del params
        chosen = _draw(key, state["index"], len(labels))
        episode = packed_episodes(jax.tree.map(lambda leaf: leaf[chosen], rows))
        success = jnp.asarray(labels)[chosen]
        return state, episode.replace(success=success, group=state["index"]), {}

    return Collector(init=init, collect=collect, steps_per_collect=num_rows, divided_option="num_rows")


def _read(paths: str | Sequence[str], on_error: str, report: Callable[[str], None]) -> list[Trajectory]:
    require_files(paths)
    paths = [paths] if isinstance(paths, str | Path) else list(paths)
    return [entry for path in paths for entry in read_trajectories(path, on_error=on_error, report=report)]


def _draw(key: Array, index: Array, size: int) -> Array:
    """Draws a number below `size` for the global index of every row, int32 `[N]`."""
    return jax.vmap(lambda i: jax.random.randint(jax.random.fold_in(key, i), (), 0, size))(index)


def _pairs(trajectories: Sequence[Trajectory]) -> list[tuple[Trajectory, Trajectory]]:
    """Returns pairs of a preferred trajectory and another one, in the order of the files."""
    by_name: dict[tuple[str, int], list[Trajectory]] = {}
    seen: Counter[tuple] = Counter()
    for trajectory in trajectories:
        if "pair" not in trajectory.metadata:
            raise ValueError(
                f"`pair` must be given, the same in two trajectories, got none in {trajectory.id!r}; try lines with "
                '"prompt", "chosen" and "rejected", or collector=labels algorithm=kto where every line has a label.'
            )
        name = str(trajectory.metadata["pair"])
        line = (name, trajectory.id, trajectory.success, trajectory.episode_return)
        # A data set may contain the same line twice, which makes two pairs.
        by_name.setdefault((name, seen[line]), []).append(trajectory)
        seen[line] += 1
    for (name, _), both in by_name.items():
        if len(both) != 2:
            raise ValueError(f"`pair` {name!r} must be of two trajectories, got {len(both)}.")
    if not by_name:
        raise ValueError("`paths` must hold a pair of trajectories, got none.")
    return [_in_order(name, *both) for (name, _), both in by_name.items()]


def _in_order(name: str, one: Trajectory, other: Trajectory) -> tuple[Trajectory, Trajectory]:
    if _texts(one) == _texts(other):
        raise ValueError(f"`pair` {name!r} must be of two different trajectories, got the same text twice.")
    for of_one, of_other in ((one.success, other.success), (one.episode_return, other.episode_return)):
        if of_one is not None and of_other is not None and of_one != of_other:
            return (one, other) if of_one > of_other else (other, one)
    raise ValueError(
        f"`pair` {name!r} must say which of the two is preferred, got {one.id!r} and {other.id!r} of equal or unknown "
        "success and return."
    )


def _texts(trajectory: Trajectory) -> list[tuple]:
    return [(turn.observation, turn.thought, turn.action, turn.tool_calls) for turn in trajectory.turns]


def _encode(trajectory: Trajectory, policy: LanguagePolicy) -> TokenSequence:
    sequences = encode(trajectory, policy.tokenizer, chat=getattr(policy.lexicon, "chat", None))
    if len(sequences) != 1:
        raise ValueError(f"`turns` of {trajectory.id!r} must be of one agent to be compared, got {len(sequences)}.")
    return sequences[0]


def _rows(
    groups: Sequence[tuple[Trajectory, ...]],
    policy: LanguagePolicy,
    length: int,
    paths: str | Sequence[str],
    on_error: str,
    report: Callable[[str], None],
) -> tuple[list[tuple[Trajectory, ...]], list[PackedBatch]]:
    """Writes every trajectory to its own row on the device, one batch for each side of the groups.

    Returns:
        The groups that fit, and the rows of each side.
    """
    written: list[tuple[tuple[Trajectory, ...], list[TokenSequence]]] = []
    for group in groups:
        try:
            written.append((group, [_encode(one, policy) for one in group]))
        except ValueError as error:
            if on_error == "raise":
                raise
            report(f"{group[0].id}: {error} Skipped.")
    fitting = [row for row in written if max(len(sequence.tokens) for sequence in row[1]) <= length]
    if num_long := len(written) - len(fitting):
        sizes = [(len(sequence.tokens), one) for row in written for one, sequence in zip(*row)]
        longest, of = max(sizes, key=lambda size: size[0])
        if on_error == "raise" or not fitting:
            raise ValueError(
                f"`collector.row_length` must hold every transcript, got {length} for the {longest} tokens of "
                f"{_place_of(of, paths)}; try collector.row_length={longest}, or leave that line out, by "
                "collector.on_error=skip."
            )
        report(f"{num_long} of {len(written)} are longer than collector.row_length={length}: skipped.")
    if not fitting:
        raise ValueError(f"`paths` must hold transcripts that can be written as tokens, got none in {paths}.")
    report_lost(sum(sequence.num_lost for _, sequences in fitting for sequence in sequences), report)

    def write(side: Sequence[TokenSequence]) -> PackedBatch:
        rows = [pack([sequence], length, pad=policy.tokenizer.marks["pad"]) for sequence in side]
        return jax.tree.map(lambda *leaves: jnp.asarray(np.concatenate(leaves)), *rows)

    sides = zip(*(sequences for _, sequences in fitting), strict=True)
    return [group for group, _ in fitting], [write(side) for side in sides]


def _place_of(trajectory: Trajectory, paths: str | Sequence[str]) -> str:
    """Returns the file and line of a trajectory that was read."""
    files = [paths] if isinstance(paths, str | Path) else list(paths)
    lines = ((path, line) for path in files for line in read_rows(path, on_error="skip", report=lambda message: None))
    return next((f"{path}, line {line.number}" for path, line in lines if trajectory in line.value), trajectory.id)
