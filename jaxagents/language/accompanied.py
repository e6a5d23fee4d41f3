"""The policy's own episodes, accompanied by an expert's episodes on other tasks."""

from collections.abc import Callable
from typing import Any

import jax

from jaxagents.language.collect import make_dialogue_collector
from jaxagents.types import Array, Collector, Demonstrated, Environment, LanguagePolicy, Metrics, Params, PyTree


def make_accompanied_collector(
    environment: Environment,
    policy: LanguagePolicy,
    *,
    demonstrations: Callable[[Environment, LanguagePolicy], Collector],
    axis_name: str | None = None,
    **options: Any,
) -> Collector:
    """Makes a collector of own episodes and of transcripts, which may be of different tasks.

    Args:
        environment: unbatched text world.
        policy: policy that acts.
        demonstrations: `(environment, policy) -> Collector` of `Episode`s, such as
            `demonstrations.make_demonstration_collector`.
        axis_name: see `collect.make_dialogue_collector`, which makes the own episodes.
        **options: further arguments of that function.

    Returns:
        The collector; its batches are `Demonstrated`. Steps, metrics and counts are those of the own episodes.
    """
    mine = make_dialogue_collector(environment, policy, axis_name=axis_name, **options)
    expert = demonstrations(environment, policy)

    def init(key: Array, params: Params) -> PyTree:
        own_key, expert_key = jax.random.split(key)
        return {"own": mine.init(own_key, params), "demonstrations": expert.init(expert_key, params)}

    def collect(state: PyTree, params: Params, key: Array) -> tuple[PyTree, Demonstrated, Metrics]:
        own_key, expert_key = jax.random.split(key)
        own_state, episode, metrics = mine.collect(state["own"], params, own_key)
        expert_state, transcript, _ = expert.collect(state["demonstrations"], params, expert_key)
        batch = Demonstrated(own=episode, demonstration=transcript)
        return {"own": own_state, "demonstrations": expert_state}, batch, metrics

    return mine._replace(init=init, collect=collect)
