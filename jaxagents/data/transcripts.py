"""Batches of packed transcripts from files, for compiled supervised training."""

import warnings
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from jaxagents.data.packing import PackedBatch
from jaxagents.data.streams import load_packed
from jaxagents.data.trajectories import require_files
from jaxagents.ops.checks import check_counts
from jaxagents.types import Array, Collector, Environment, Episode, LanguagePolicy, Layout, Metrics, Params, PyTree


def make_transcript_collector(
    environment: Environment,
    policy: LanguagePolicy,
    *,
    paths: str | Sequence[str],
    num_rows: int,
    row_length: int,
    on_error: str = "raise",
    overlong: str = "raise",
    only_success: bool = False,
    report: Callable[[str], None] = warnings.warn,
) -> Collector:
    """Makes a collector of random rows of packed transcripts, all of which are kept on the device.

    Args:
        environment: not used; the files contain the observations.
        policy: policy whose tokenizer writes the transcripts, in its chat format if it has one.
        paths: one file or several, with trajectories or lines `{"messages": [...]}`.
        num_rows: number of rows per batch, over all devices.
        row_length: number of tokens per row; several transcripts share a row and do not see each other.
        on_error: "raise" refuses damaged lines, "skip" reports and leaves them out.
        overlong: treatment of transcripts longer than a row: "raise", "truncate" or "skip".
        only_success: whether the learner uses only transcripts that are marked as successful.
        report: called with messages about everything that is left out.

    Returns:
        The collector; its batches are `Episode`s of one turn per row.

    Raises:
        ValueError: `num_rows` is not positive, none succeeded with `only_success`, or see `load_packed`.
    """
    del environment
    check_counts(num_rows=num_rows)
    require_files(paths)
    packed = load_packed(
        paths,
        policy.tokenizer,
        row_length=row_length,
        on_error=on_error,
        overlong=overlong,
        chat=getattr(policy.lexicon, "chat", None),
        report=report,
    )
    if only_success and not packed.success.any():
        raise ValueError(
            f'`paths` must hold transcripts with "success": true for learner.only_success=true, got none in {paths}; '
            "try learner.only_success=false."
        )
    packed = jax.tree.map(jnp.asarray, packed)

    def init(key: Array, params: Params) -> PyTree:
        del key, params
        return {"index": jnp.arange(num_rows, dtype=jnp.int32)}

    def collect(state: PyTree, params: Params, key: Array) -> tuple[PyTree, Episode, Metrics]:
        del params
        size = packed.tokens.shape[0]
        row = jax.vmap(lambda i: jax.random.randint(jax.random.fold_in(key, i), (), 0, size))(state["index"])
        return state, packed_episodes(jax.tree.map(lambda leaf: leaf[row], packed)), {}

    return Collector(init=init, collect=collect, steps_per_collect=num_rows, divided_option="num_rows")


def packed_episodes(packed: PackedBatch) -> Episode:
    """Returns packed rows `[B, L]` as episodes of one turn of L tokens; every transcript is a separate agent.

    A row is successful if its transcripts are. Tokens of positive weight count as sampled; `loss_weight` gives the
    weights.
    """
    num_rows, length = packed.tokens.shape
    nothing, log_prob = jnp.zeros((num_rows, 0), jnp.int32), jnp.zeros((num_rows, 1, length), jnp.float32)
    happened, never = jnp.ones((num_rows, 1), bool), jnp.zeros((num_rows, 1), bool)
    return Episode(
        prompt_tokens=nothing,
        prompt_mask=nothing.astype(bool),
        tokens=packed.tokens[:, None],
        token_mask=packed.token_mask[:, None],
        action_mask=packed.loss_weight[:, None] > 0.0,
        thought_mask=packed.thought_mask[:, None],
        position=packed.positions[:, None],
        agent=packed.segment[:, None],
        behavior_log_prob=log_prob,
        sampling_log_prob=log_prob,
        reward=jnp.zeros((num_rows, 1), jnp.float32),
        valid=happened,
        action_valid=happened,
        terminated=happened,
        truncated=never,
        fingerprint=jnp.zeros((num_rows, 1), jnp.uint32),
        success=packed.success,
        group=jnp.arange(num_rows, dtype=jnp.int32),
        loss_weight=packed.loss_weight[:, None],
        layout=Layout(prompt=0, observation=1, thought=0, action=length - 1, num_turns=1, context_turns=1),
    )
