"""Agents whose learners take samples of a fixed data set as well as rollouts through a replay buffer."""

from collections.abc import Callable
from typing import Any

import jax

from jaxagents.learners import normalization as learner_normalization
from jaxagents.learners.replay import make_replay_agent, rollout_shapes
from jaxagents.policies import normalization as policy_normalization
from jaxagents.types import Agent, Array, Collector, Learner, Metrics, Policy, PyTree, Sample, State


def make_sample_agent(
    policy: Policy,
    make_sample_learner: Callable[[int], Learner],
    buffer: Any | None,
    observation_space: PyTree,
    *,
    updates_per_rollout: int = 1,
    normalize_observations: bool = False,
    axis_name: str | None = None,
) -> Agent:
    """Joins a policy with the learner of its samples: those of a data set, or with a buffer those of its rollouts.

    Args:
        policy: acts with the parameters of the learner.
        make_sample_learner: `(updates of the whole run) -> Learner` of batches of `Sample`s.
        buffer: `data.buffers.Buffer` of rollouts; None where batches are samples already.
        observation_space: of the environment.
        updates_per_rollout: see `with_replay`; 1 without a buffer.
        normalize_observations: standardises observations by running statistics of the samples.
        axis_name: see `with_replay`.

    Returns:
        The agent.

    Raises:
        ValueError: several updates for one sample; later, samples for a buffer, or rollouts where there is none.
    """
    if buffer is None and updates_per_rollout != 1:
        raise ValueError(
            f"`updates_per_rollout` must be 1 without a buffer, got {updates_per_rollout}: every sample is a batch; "
            "try more steps of training."
        )
    options: dict[str, Any] = {"normalize_observations": normalize_observations, "axis_name": axis_name}
    replaying = make_replay_agent(
        policy, make_sample_learner, buffer, observation_space, updates_per_rollout=updates_per_rollout, **options
    )
    acting = policy
    if normalize_observations:
        acting = policy_normalization.normalize_observations(policy, observation_space)

    def make_learner(collector: Collector, num_updates: int) -> Learner:
        batch = rollout_shapes(collector, jax.eval_shape(acting.init, jax.random.key(0)))
        if isinstance(batch, Sample) and buffer is not None:
            raise ValueError("`buffer` must be null where batches are samples of a data set; try learner.buffer=null.")
        if not isinstance(batch, Sample) and buffer is None:
            raise ValueError("`buffer` must be given where batches are rollouts, got null; try collector=dataset.")
        if buffer is not None:
            return replaying.make_learner(collector, num_updates)
        learner = make_sample_learner(num_updates)
        if normalize_observations:
            learner = learner_normalization.normalize_observations(learner, observation_space, axis_name=axis_name)
        return _without_priority(learner)

    return Agent(policy=acting, make_learner=make_learner)


def _without_priority(learner: Learner) -> Learner:
    """Makes a learner of samples that nobody draws by priority."""

    def update(state: State, key: Array, batch: Sample) -> tuple[State, Metrics]:
        state, metrics = learner.update(state, key, batch)
        return state, {name: value for name, value in metrics.items() if name != "priority"}

    return learner._replace(update=update)
