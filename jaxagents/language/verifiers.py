"""Verifiers, which tell good actions from bad ones: `(environment, policy) -> Verifier`, a slot of collectors."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxagents.language.dialogue import make_dialogue
from jaxagents.ops.checks import require_positive
from jaxagents.types import Array, Environment, LanguagePolicy, Params, State, Task, TimeStep


class Verifier(NamedTuple):
    """Scores actions by their outcomes.

    Attributes:
        score: `(params, key, index int32 [N], task, state, (state, timestep) that follow) -> float32 [N]`, leaves `[N,
            ...]`; `index` is the index of a row over all devices.
        num_rollouts: number of episodes that it plays per action; they count towards the budget.
    """

    score: Callable[[Params, Array, Array, Task, State, tuple[State, TimeStep]], Array]
    num_rollouts: int = 0


def make_distance_verifier(environment: Environment, policy: LanguagePolicy, *, noise: float = 0.0) -> Verifier:
    """Makes a verifier that returns 1 if an action came closer to a success, else 0, with random errors.

    Args:
        environment: text world with a known `text.distance`.
        policy: not used.
        noise: probability of the opposite answer, independently for every action; 0: an oracle, 0.5: no information.

    Returns:
        The verifier.

    Raises:
        ValueError: the distance is not known, or `noise` is not a probability.
    """
    del policy
    if environment.text is None or environment.text.distance is None:
        raise ValueError(
            f"`environment` must know the distance to a success, got {environment.name!r}; try environment=frozenlake."
        )
    if not 0.0 <= noise <= 1.0:
        raise ValueError(f"`noise` must be in [0, 1], got {noise}; try 0.1.")
    distance = jax.vmap(environment.text.distance)

    def score(
        params: Params, key: Array, index: Array, task: Task, state: State, after: tuple[State, TimeStep]
    ) -> Array:
        del params, task
        closer = distance(after[0]) < distance(state)
        wrong = jax.vmap(lambda number: jax.random.bernoulli(jax.random.fold_in(key, number), noise))(index)
        return (closer ^ wrong).astype(jnp.float32)

    return Verifier(score=score)


def make_outcome_verifier(environment: Environment, policy: LanguagePolicy, *, num_rollouts: int = 5) -> Verifier:
    """Makes a verifier that continues episodes: the policy's fraction of successes from the state after an action.

    Args:
        environment: text world of one player.
        policy: policy that continues, with the parameters that act.
        num_rollouts: number of episodes per action.

    Returns:
        The verifier; if the episode has ended, the score is whether it ended with success.

    Raises:
        ValueError: `num_rollouts` is not positive.

    References:
        Xiong et al. (2024), "Watch Every Step! LLM Agent Learning via Iterative Step-Level Process Refinement", eq. 3;
        Kazemnejad et al. (2024), "VinePPO", eq. 6.
    """
    require_positive("num_rollouts", num_rollouts)
    play = make_dialogue(environment, policy, group_size=num_rollouts)

    def score(
        params: Params, key: Array, index: Array, task: Task, state: State, after: tuple[State, TimeStep]
    ) -> Array:
        del state
        episode = play(params, key, index, task=task, start=after)
        share = jnp.mean(episode.success.reshape(-1, num_rollouts), axis=1, dtype=jnp.float32)
        ended = after[1].terminated | after[1].truncated
        return jnp.where(ended, after[1].info["success"].astype(jnp.float32), share)

    return Verifier(score=score, num_rollouts=num_rollouts)
