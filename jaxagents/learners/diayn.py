"""DIAYN (Eysenbach et al., 2019): rewards for skills that can be distinguished by the states that they reach."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax import struct

from jaxagents.learners.bonuses import Bonus
from jaxagents.learners.checks import check_positive
from jaxagents.learners.optimizers import apply_updates
from jaxagents.ops.checks import check_counts
from jaxagents.ops.statistics import RunningStatistics, init_statistics, normalize, update_statistics
from jaxagents.types import Array, Box, Metrics, Params, Transition


@struct.dataclass
class SkillBonusState:
    """Parameters of the skill classifier, its optimiser, and the statistics that normalise observations."""

    params: Params
    opt_state: optax.OptState
    observations: RunningStatistics


def make_skill_bonus(
    observation_space: Box,
    action_space: Any,
    *,
    num_skills: int,
    encoder: nn.Module,
    learning_rate: float = 1e-3,
    num_steps: int = 1,
    axis_name: str | None = None,
) -> Bonus:
    """Makes the bonus `log q(z | s') - log(1 / K)` for the skill z, where a classifier q learns to infer z from s'.

    Args:
        observation_space: space of a vector whose last K numbers encode the skill, see
            `environments.skills.make_skills`.
        action_space: not used.
        num_skills: K, number of skills.
        encoder: `[..., D] -> [..., F]`, for the observation without the skill; a linear layer follows.
        learning_rate: learning rate of Adam.
        num_steps: number of steps of the classifier per rollout, each on the whole rollout.
        axis_name: mapped device axis over which rollouts are split.

    Returns:
        The bonus, at most log K nats, and 0 on average if skills cannot be distinguished. Metrics: `skill_loss`, the
        cross-entropy, and `skill_accuracy`.

    Raises:
        ValueError: a number is out of its range, or the observations are too small for a skill.

    References:
        Eysenbach et al. (2019), Diversity is all you need: learning skills without a reward function, equation 3.

    Deviation: it is put around a learner of rollouts, whose own entropy bonus keeps actions random; paper: SAC.
    """
    del action_space
    check_counts(num_skills=num_skills, num_steps=num_steps)
    check_positive(learning_rate=learning_rate)
    if len(observation_space.shape) != 1 or observation_space.shape[0] <= num_skills:
        raise ValueError(
            f"`observation_space` must be a vector that ends with {num_skills} numbers of a skill, got "
            f"{observation_space}; try a world of `make_skills`."
        )
    size, optimizer = observation_space.shape[0] - num_skills, optax.adam(learning_rate)
    classifier = nn.Sequential([encoder, nn.Dense(num_skills)])

    def init(key: Array, transition: Transition) -> SkillBonusState:
        del transition
        params = classifier.init(key, jnp.zeros((1, size)))
        return SkillBonusState(params, optimizer.init(params), init_statistics(jnp.zeros(size)))

    def apply(state: SkillBonusState, transition: Transition) -> tuple[Array, SkillBonusState, Metrics]:
        reached, skill = transition.next_observation[..., :size], transition.next_observation[..., size:]
        statistics = update_statistics(state.observations, reached, axis_name=axis_name)
        seen = normalize(statistics, reached, clip=5.0)

        def loss(params: Params) -> tuple[Array, tuple[Array, Metrics]]:
            logits = jnp.asarray(classifier.apply(params, seen))
            losses = optax.softmax_cross_entropy(logits, skill)
            right = jnp.mean(jnp.argmax(logits, axis=-1) == jnp.argmax(skill, axis=-1))
            return jnp.mean(losses), (losses, {"skill_loss": jnp.mean(losses), "skill_accuracy": right})

        def step(carry: tuple[Params, optax.OptState], _: Any) -> tuple[tuple[Params, optax.OptState], Any]:
            grads, result = jax.grad(loss, has_aux=True)(carry[0])
            params, opt_state, _ = apply_updates(grads, *carry, optimizer, axis_name=axis_name)
            return (params, opt_state), result

        (params, opt_state), results = jax.lax.scan(step, (state.params, state.opt_state), None, num_steps)
        losses, metrics = jax.tree.map(lambda values: values[0], results)
        return math.log(num_skills) - losses, SkillBonusState(params, opt_state, statistics), metrics

    return Bonus(init=init, apply=apply)
