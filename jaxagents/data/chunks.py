"""Chunks of recorded data: several steps of a sequence become one, as played by `environments.chunks`."""

import jax
import jax.numpy as jnp

from jaxagents.data.datasets import Dataset, make_dataset_collector
from jaxagents.types import Array, Collector, Environment, Metrics, Params, Policy, Sample, State


def make_chunk_collector(
    environment: Environment,
    policy: Policy,
    *,
    unchunked: Environment,
    dataset: Dataset,
    batch_size: int,
    num_shards: int = 1,
    discount: float = 0.99,
) -> Collector:
    """Makes a collector of chunks of a data set that was recorded step by step; chunks can begin at any step.

    Args:
        environment: `chunked(unchunked, ...)`; the number of actions that it takes at once is the length of the chunks.
        policy: not used to act.
        unchunked: environment of the data.
        dataset: data set of single steps, see `data.datasets`.
        batch_size: number of chunks per batch, over all devices.
        num_shards: see `make_dataset_collector`.
        discount: discount per step, for rewards within a chunk and for `extras["return_to_go"]`.

    Returns:
        The collector of `Sample`s with leaves `[1, B, ...]`, see `fold_chunks`.

    Raises:
        ValueError: the environment's actions are not chunks of the data's, or see `make_dataset_collector`.
    """
    size, of_step = environment.action_space.shape[0], unchunked.action_space.shape[0]
    length = size // of_step
    if size % of_step or length * environment.max_steps != unchunked.max_steps:
        raise ValueError(
            f"`environment` must take chunks of the actions of `unchunked`, got {size} numbers in "
            f"{environment.max_steps} steps for {of_step} in {unchunked.max_steps}; try `environments.chunks.chunked`."
        )
    steps = make_dataset_collector(
        unchunked,
        policy,
        dataset=dataset,
        batch_size=batch_size,
        sequence_length=length,
        num_shards=num_shards,
        discount=discount,
    )

    def collect(state: State, params: Params, key: Array) -> tuple[State, Sample, Metrics]:
        state, sample, metrics = steps.collect(state, params, key)
        return state, fold_chunks(sample, discount=discount), metrics

    return steps._replace(collect=collect)


def fold_chunks(sample: Sample, *, discount: float) -> Sample:
    """Folds every sequence of K steps into one: its K actions become one, its reward `sum_k discount^k r_k`.

    A chunk ends with its episode: rewards of the next episode do not count, the successor is that of the last step that
    counts, and actions after it become zero, the middle of a bounded space. A chunk that a time limit cuts off before
    its K-th step has weight zero: its successor would have to be discounted by a lower power than `discount^K`.

    Args:
        sample: leaves `[K, B, ...]`, actions `[K, B, D]`.
        discount: gamma, per step.

    Returns:
        Leaves `[1, B, ...]`, actions `[1, B, K D]` in order of time; `extras` are those of the first step.
    """
    transition = sample.transition
    length, size = transition.reward.shape
    ends = (transition.terminated | transition.truncated).astype(jnp.int32)
    counts = jnp.cumsum(ends, axis=0) - ends == 0  # bool [K, B]: no end before the step.
    last = jnp.sum(counts, axis=0) - 1

    def at_last(leaf: Array) -> Array:
        return leaf[last, jnp.arange(size)][None]

    weights = discount ** jnp.arange(length, dtype=jnp.float32)
    action = jnp.where(counts[..., None], transition.action, 0.0)
    folded = jax.tree.map(lambda leaf: leaf[:1], transition).replace(
        action=jnp.moveaxis(action, 0, 1).reshape(1, size, -1),
        behavior_log_prob=jnp.sum(jnp.where(counts, transition.behavior_log_prob, 0.0), axis=0, keepdims=True),
        reward=jnp.sum(jnp.where(counts, weights[:, None] * transition.reward, 0.0), axis=0, keepdims=True),
        terminated=at_last(transition.terminated),
        truncated=at_last(transition.truncated),
        next_observation=jax.tree.map(at_last, transition.next_observation),
    )
    whole = ~(folded.truncated[0] & (last < length - 1))
    return sample.replace(transition=folded, weight=sample.weight * whole)
