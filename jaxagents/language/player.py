"""Complete episodes of a language policy, compiled."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxagents.language.dialogue import make_dialogue
from jaxagents.language.generate import Sampling
from jaxagents.ops.checks import require_positive
from jaxagents.types import Array, Environment, Episode, LanguagePolicy, Params


def make_player(
    environment: Environment,
    policy: LanguagePolicy,
    *,
    num_episodes: int = 1,
    greedy: bool = True,
    held_out: bool = True,
    level: int | None = None,
) -> Callable[[Params, Array], Episode]:
    """Makes the compiled function that plays complete episodes, each on its own task.

    Args:
        environment: text world.
        policy: policy that acts.
        num_episodes: B, number of episodes.
        greedy: whether to take the most probable tokens instead of sampling.
        held_out: whether to use tasks that training never sees.
        level: level of the tasks; None: random.

    Returns:
        `(params, key) -> Episode`; the key determines tasks and randomness.

    Raises:
        ValueError: `num_episodes` is not positive, or see `make_dialogue`.
    """
    require_positive("num_episodes", num_episodes)
    sample_task = environment.text.sample_held_out_task if held_out and environment.text else None
    sampling = Sampling(greedy=greedy)
    play = make_dialogue(environment, policy, sampling=sampling, sample_task=sample_task, level=level)
    return jax.jit(lambda params, key: play(params, key, jnp.arange(num_episodes, dtype=jnp.int32)))
