"""MEEE (Yao et al., 2021): explores where models disagree, and gives imagined steps less weight there."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct

from jaxagents.learners import sac
from jaxagents.learners.checks import check_fractions, check_positive
from jaxagents.learners.combinators import start_of_inner, wrap
from jaxagents.learners.mbpo import ModelState
from jaxagents.ops.checks import check_counts
from jaxagents.ops.distributions import TanhNormal, unsquash
from jaxagents.types import Agent, Array, Box, Carry, Environment, Learner, Metrics, Params, Policy, PolicyInput, Sample
from jaxagents.values.dynamics import Prediction, make_dynamics
from jaxagents.values.q_function import TwinQ

_SURE = 1e-4  # Scale of a distribution that always gives the same action.


def disagreement(prediction: Prediction) -> Array:
    """Computes `u = mean_d std_e mean[e, d]` for leaves `[E, ...]` of E members, float32 `[...]`.

    References:
        Yao et al. (2021), equation 5; their code includes the reward as one of the D + 1 numbers, too.
    """
    return jnp.mean(jnp.std(prediction.mean, axis=0), axis=-1)


def disagreement_weight(prediction: Prediction, *, temperature: float = 20.0) -> Array:
    """Computes `2 sigmoid(-temperature u)`: 1 if all members of an ensemble agree, near 0 if they do not.

    Args:
        prediction: prediction of the ensemble, leaves `[E, ...]`.
        temperature: T, per unit of `disagreement`; 0 gives equal weights.

    Returns:
        float32 `[...]`.

    References:
        Yao et al. (2021), "Sample Efficient Reinforcement Learning via Model-Ensemble Exploration and Exploitation".

    Deviation: the paper writes `sigmoid(-T u) + 0.5`, which never falls below 0.5; this is what its code computes.
    """
    return 2.0 * jax.nn.sigmoid(-temperature * disagreement(prediction))


def most_optimistic(value: Array, prediction: Prediction, *, scale: float) -> Array:
    """Returns `argmax_k min_i Q_i(s, a_k) + scale u(s, a_k)`, int32 `[...]`, for values `[I, ..., K]`."""
    return jnp.argmax(jnp.min(value, axis=0) + scale * disagreement(prediction), axis=-1)


def make_optimistic_policy(
    policy: Policy,
    twin_q: TwinQ,
    observation_space: Box,
    action_space: Box,
    *,
    encoder: nn.Module,
    num_members: int = 5,
    share: float = 0.02,
    num_candidates: int = 20,
    noise_scale: float = 0.7,
    scale: float = 1.0,
) -> Policy:
    """Makes a policy that, in some steps, takes the best of several actions by value and disagreement.

    The candidates are an action of the policy and noisy copies of it. Without noise, as in evaluations, it equals the
    original policy.

    Args:
        policy: feed-forward policy for the same spaces.
        twin_q: critics.
        observation_space: see `make_dynamics`.
        action_space: see `make_dynamics`.
        encoder: encoder of the model, see `make_dynamics`.
        num_members: number of members of the model, see `make_dynamics`.
        share: share of such steps, drawn independently. Paper: every 50th step.
        num_candidates: K, number of candidates. Paper: 20.
        noise_scale: scale of the noise, in units of half the range of an action. Paper: a variance of a quarter of the
            range, which is 0.7 for actions in [-1, 1].
        scale: lambda, weight of the disagreement relative to the value. Paper: 1.

    Returns:
        The policy, with parameters `{"policy", "critic", "model"}`.

    Raises:
        ValueError: a number is out of its range.

    References:
        Yao et al. (2021), equation 6 and algorithm 1.
    """
    check_counts(num_candidates=num_candidates)
    check_fractions(share=share)
    check_positive(noise_scale=noise_scale)
    dynamics = make_dynamics(observation_space, action_space, encoder=encoder, num_members=num_members)

    def init(key: Array) -> Params:
        keys = jax.random.split(key, 3)
        return {"policy": policy.init(keys[0]), "critic": twin_q.init(keys[1]), "model": dynamics.init(keys[2])}

    def apply(params: Params, carry: Carry, inputs: PolicyInput) -> tuple[Carry, TanhNormal]:
        carry, distribution = policy.apply(params["policy"], carry, inputs.replace(noise=None))
        if inputs.noise is None:
            return carry, distribution
        explores, noise = inputs.noise["explores"][..., None], jnp.moveaxis(inputs.noise["normal"], -2, 0)
        own = distribution.transform(noise[0])
        moved = unsquash(jnp.tanh(own)[None] + noise_scale * noise[1:], low=-1.0, high=1.0)
        candidates = jnp.moveaxis(jnp.concatenate([own[None], moved]), 0, -2)
        observation = jnp.repeat(inputs.observation[..., None, :], num_candidates, axis=-2)
        value = twin_q.apply(params["critic"], observation, candidates)
        predicted = dynamics.apply(params["model"], observation, candidates)
        best = most_optimistic(value, predicted, scale=scale)[..., None, None]
        chosen = jnp.take_along_axis(candidates, best, axis=-2)[..., 0, :]
        loc = jnp.where(explores, chosen, distribution.loc)
        return carry, distribution.replace(loc=loc, scale=jnp.where(explores, _SURE, distribution.scale))

    def draw_noise(key: Array, num_steps: int) -> dict[str, Array]:
        explores_key, normal_key = jax.random.split(key)
        explores = jax.random.bernoulli(explores_key, share, (num_steps,))
        return {
            "explores": explores,
            "normal": jax.random.normal(normal_key, (num_steps, num_candidates, *action_space.shape)),
        }

    return Policy(init=init, initial_carry=policy.initial_carry, apply=apply, draw_noise=draw_noise)


@struct.dataclass
class OptimisticState:
    """State of a learner with a model, whose critics and model also act."""

    inner: ModelState

    @property
    def params(self) -> Params:
        """Returns the parameters of `make_optimistic_policy`."""
        return {"policy": self.inner.params, "critic": self.inner.inner.critic, "model": self.inner.model}


def act_with_model(learner: Learner) -> Learner:
    """Makes a learner whose critics and model also act.

    Args:
        learner: `mbpo.with_model` around a learner of SAC.

    Returns:
        The learner, with the parameters of `make_optimistic_policy`.
    """

    def init(key: Array, start: OptimisticState | Params | None = None) -> OptimisticState:
        start = start_of_inner(start, OptimisticState)
        start = start.get("policy", start) if isinstance(start, Mapping) else start
        return OptimisticState(inner=learner.init(key, start))

    def update(state: OptimisticState, key: Array, batch: Sample) -> tuple[OptimisticState, Metrics]:
        inner, metrics = learner.update(state.inner, key, batch)
        return OptimisticState(inner=inner), metrics

    return wrap(learner, init, update, acting=lambda state, own: state.params)


def make_agent(
    environment: Environment,
    *,
    model: Callable[..., Learner],
    temperature: float = 20.0,
    explore: Callable[..., Policy] | None = None,
    **options: Any,
) -> Agent:
    """Assembles MEEE: MBPO whose imagined steps are weighted by how much the models agree.

    Args:
        environment: environment that defines the spaces.
        model: `mbpo.with_model` with its settings.
        temperature: see `disagreement_weight`.
        explore: `make_optimistic_policy` with its settings; None: the policy acts alone.
        **options: further arguments of `sac.make_agent`.

    Raises:
        ValueError: `temperature` is negative.
    """
    if temperature < 0.0:
        raise ValueError(f"`temperature` must not be negative, got {temperature}; try 20, or 0 for equal weights.")
    weigh = partial(disagreement_weight, temperature=temperature)

    def with_weights(*parts: Any, **settings: Any) -> Learner:
        learner = model(*parts, weigh=weigh, **settings)
        return learner if explore is None else act_with_model(learner)

    return sac.make_agent(environment, model=with_weights, explore=explore, **options)
