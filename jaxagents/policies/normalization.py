"""Normalisation of observations, as a combinator of policies and actor-critics."""

from typing import TypeVar

from jaxagents.ops.statistics import init_statistics, normalize
from jaxagents.types import ActorCritic, Array, Carry, Params, Policy, PolicyInput, PyTree

_Actor = TypeVar("_Actor", Policy, ActorCritic)


def normalize_observations(policy: _Actor, observation_space: PyTree, *, clip: float = 10.0) -> _Actor:
    """Makes a policy that sees normalised observations.

    The statistics are part of the parameters, so that acting, evaluation and checkpoints use the same ones;
    `learners.normalization.normalize_observations` keeps them up to date. No gradient flows to them.

    Args:
        policy: `Policy` or `ActorCritic` for float32 observations.
        observation_space: observation space of the raw observations; booleans and integers become float32.
        clip: largest magnitude, in standard deviations.

    Returns:
        A record of the same type with parameters `{"params", "statistics"}`.

    Raises:
        ValueError: `clip` is not positive.
    """
    if clip <= 0.0:
        raise ValueError(f"`clip` must be positive, got {clip}; try 10.")

    def init(key: Array) -> Params:
        return {"params": policy.init(key), "statistics": init_statistics(observation_space)}

    def apply(params: Params, carry: Carry, inputs: PolicyInput) -> tuple:
        observation = normalize(params["statistics"], inputs.observation, clip=clip)
        return policy.apply(params["params"], carry, inputs.replace(observation=observation))

    return policy._replace(init=init, apply=apply)
