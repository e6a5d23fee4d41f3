"""Speed of worlds under random actions; for text worlds including the tokens of observations."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxagents.benchmarks.timing import Subject, compiled_subject
from jaxagents.environments.vectorized import vectorize
from jaxagents.language.lexicon import make_lexicon
from jaxagents.language.tokenizers import word_level
from jaxagents.types import Array, Box, Environment, TimeStep


def environment_subject(
    environment: Environment,
    *,
    num_envs: int = 256,
    num_steps: int = 1000,
    reset_pool: int = 64,
    level: int | None = None,
) -> Subject:
    """Times random admissible actions; in a text world every observation is tokenised; unit: environment steps.

    Episodes that end are followed by new ones, from a pool of sampled tasks that is drawn in the same program.
    """
    batch = vectorize(environment, reset_pool=reset_pool, level=level)
    observe, act = _faces(environment)

    def rollout(key: Array) -> tuple[Array, Array]:
        reset_key, draw_key, action_key = jax.random.split(key, 3)
        index = jnp.arange(num_envs)
        start = batch.reset(reset_key, index)
        draws, shared = batch.draw(draw_key, index, num_steps)
        uniforms = jax.random.uniform(action_key, (num_steps, num_envs))

        def step(loop: tuple, inputs: tuple) -> tuple[tuple, tuple]:
            state, timestep = loop
            seen = observe(timestep)
            state, timestep = batch.step(state, act(inputs[0], timestep.action_mask), inputs[1], shared)
            return (state, timestep), (seen, timestep.reward)

        return jax.lax.scan(step, start, (uniforms, draws))[1]

    kind = "random_actions" if environment.text is None else "rendered_steps"
    return compiled_subject(f"{kind}/{environment.name}", rollout, jax.random.key(0), work=num_envs * num_steps)


def _faces(environment: Environment) -> tuple[Callable[[TimeStep], Array], Callable[[Array, Array | None], Array]]:
    """Returns the function of what an agent sees, and `(uniform [B], action_mask) -> actions [B, ...]`."""
    interface = environment.text
    # If actions cannot be listed, they are represented by actions that together contain every word.
    listed = None if interface is None else interface.examples if interface.actions is None else interface.actions
    space: Any = environment.action_space
    if interface is None and isinstance(space, Box):
        return lambda timestep: timestep.observation, lambda uniform, mask: _spread(uniform, space)
    count = space.num_values if listed is None else len(listed)

    def choose(uniform: Array, mask: Array | None) -> Array:
        if mask is None:
            return (uniform * count).astype(jnp.int32)
        rank = jnp.cumsum(mask, axis=1)
        return jnp.sum(rank <= (uniform * rank[:, -1])[:, None], axis=1)

    if interface is None:
        return lambda timestep: timestep.observation, choose
    lexicon = make_lexicon(interface.words, word_level(interface.words))
    length = max(map(lexicon.max_tokens, interface.patterns.observation))
    actions = jnp.asarray(listed, jnp.int32)
    render = jax.vmap(lambda words: lexicon.render(words, length)[0])
    return lambda timestep: render(timestep.observation), lambda uniform, mask: actions[choose(uniform, mask)]


def _spread(uniform: Array, space: Box) -> Array:
    """Makes actions `[B, D]` from one number in [0, 1) each, by its further digits; unbounded ones are in [-1, 1]."""
    digits = uniform[:, None] * 16.0 ** jnp.arange(space.shape[0])[None] % 1.0
    low, high = max(space.low, -1.0), min(space.high, 1.0)
    return low + (high - low) * digits
