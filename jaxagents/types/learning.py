"""Experience, policies, and the parts that learn: collectors, learners and agents."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax.numpy as jnp
from flax import struct

from jaxagents.types.environments import Array, Carry, Params, PyTree, State


@struct.dataclass
class Transition:
    """One step of experience: fields of the state in which it acted, then of what followed.

    Attributes:
        observation: observation of the policy.
        action: action of the policy.
        behavior_log_prob: float32, log-probability of `action` under the policy that acted.
        reward: float32, the reward that followed.
        terminated: bool, whether the step ended the episode in a terminal state.
        truncated: bool, whether the step ended the episode by a limit.
        next_observation: observation of the true successor, even if the environment was reset afterwards.
        first: bool, whether `observation` is the first of an episode.
        action_mask: bool `[..., A]`, actions allowed at `observation`, or None.
        previous_action: action of the step before, zero if `first`; None if it was not stored.
        previous_reward: float32, reward of the step before, zero if `first`; None if it was not stored.
        noise: random numbers of the policy for the step besides its action, see `Policy.draw_noise`; None without.
        extras: dict of further arrays with the same leading axes.
    """

    observation: PyTree
    action: Array
    behavior_log_prob: Array
    reward: Array
    terminated: Array
    truncated: Array
    next_observation: PyTree
    first: Array
    action_mask: Array | None = None
    previous_action: Array | None = None
    previous_reward: Array | None = None
    noise: PyTree | None = None
    extras: Mapping[str, PyTree] = struct.field(default_factory=dict)


@struct.dataclass
class Sample:
    """Sequences of `n` steps from a buffer.

    Attributes:
        transition: leaves `[n, B, ...]`; a sequence may extend beyond the end of an episode.
        weight: float32 `[B]`, weights of the losses.
        carry: recurrent carry of the policy before the first step, leaves `[B, ...]`; empty without memory.
    """

    transition: Transition
    weight: Array
    carry: Carry = ()


@struct.dataclass
class QView:
    """Input of Q-learning targets for L steps of B sequences, with agents `[L, B, N, ...]`.

    Values are those of all actions, see `ops.value_distributions`; fields that a target does not read are not computed.

    Attributes:
        action: int `[L, B]`.
        reward: float32 `[L, B]`, the discounted sum of the rewards up to the successor, n steps later or at the end of
            the episode.
        discount: float32 `[L, B]`, discount of the successor's value; zero if terminated.
        target_values: values of the target network at the observation.
        next_values: values of the target network at the successor.
        next_selector: values of the online network at the successor.
        next_target_selector: values of the target network at the successor, at separate fractions (IQN), by which a
            target without double Q-learning selects the action; None: `next_values`.
        action_mask: bool `[L, B, A]`, True = allowed at the observation; None if every action is allowed.
        next_action_mask: the same at the successor.
        transition: the steps, leaves `[L, B, ...]`; None if only the fields above are known.
        last: the last step before the successor of each step, leaves `[L, B, ...]`; None if `transition` is None.
        num_steps: n, number of steps to the successor if the episode does not end earlier; static.
    """

    action: Array
    reward: Array
    discount: Array
    target_values: PyTree
    next_values: PyTree
    next_selector: PyTree
    next_target_selector: PyTree | None = None
    action_mask: Array | None = None
    next_action_mask: Array | None = None
    transition: Transition | None = None
    last: Transition | None = None
    num_steps: int = struct.field(pytree_node=False, default=1)


@struct.dataclass
class Rollout:
    """A segment of experience of B environments.

    Attributes:
        transition: `Transition` with leaves `[T, B, ...]`.
        carry: recurrent carry of the policy *before* each step and after the last one, leaves `[T + 1, B, ...]`; an
            empty pytree for feed-forward policies.
    """

    transition: Transition
    carry: Carry


@struct.dataclass
class Mean:
    """A mean that can be merged exactly over steps, devices and chunks: `total / count`."""

    total: Array
    count: Array

    @property
    def value(self) -> Array:
        """Returns the mean, or NaN if the count is zero."""
        return jnp.where(self.count > 0, self.total / jnp.maximum(self.count, 1e-9), jnp.nan)


@struct.dataclass
class Count:
    """A count, int32, that is summed exactly over steps, devices and chunks."""

    total: Array


Metrics = Mapping[str, Array | Mean | Count]

COUNTERS = ("episodes", "turns", "tokens", "env_steps")
"""Units in which experience is counted, see `Collector`."""


REPLICATED = -1
"""Instead of an axis: every device holds the whole leaf."""


@struct.dataclass
class PolicyInput:
    """Inputs of a policy at every step, leaves `[T, B, ...]`, with agents `[T, B, N, ...]` except for `first`.

    Attributes:
        observation: observation of the step.
        first: bool `[T, B]`, whether the step is the first of an episode, so that memory is reset before it.
        action_mask: bool `[..., A]`, True = allowed; None if every action is allowed.
        previous_action: action of the step before, zero if `first`; None if it was not stored. It is read by agents
            that adapt within a lifetime (RL^2), world models and decision transformers.
        previous_reward: float32, reward of the step before, zero if `first`; None if it was not stored.
        noise: result of `Policy.draw_noise`, so that an update uses the policy that acted; None without randomness
            besides that of the action, as in greedy acting.
    """

    observation: PyTree
    first: Array
    action_mask: Array | None = None
    previous_action: Array | None = None
    previous_reward: Array | None = None
    noise: PyTree | None = None


def input_of(transition: Transition) -> PolicyInput:
    """Returns the inputs of a policy at each step, leaves `[T, B, ...]`."""
    return PolicyInput(
        observation=transition.observation,
        first=transition.first,
        action_mask=transition.action_mask,
        previous_action=transition.previous_action,
        previous_reward=transition.previous_reward,
        noise=transition.noise,
    )


def input_of_successor(transition: Transition) -> PolicyInput:
    """Returns the inputs of a policy at the true successor of each step, leaves `[T, B, ...]`."""
    return PolicyInput(
        observation=transition.next_observation,
        first=jnp.zeros_like(transition.first),
        action_mask=transition.extras.get("next_action_mask"),
        previous_action=None if transition.previous_action is None else transition.action,
        previous_reward=None if transition.previous_reward is None else transition.reward,
        noise=transition.noise,
    )


class Policy(NamedTuple):
    """A policy over sequences; a feed-forward policy has the empty carry `()`.

    Attributes:
        init: `(key) -> params`.
        initial_carry: `(batch_shape) -> carry`, leaves `[*batch_shape, ...]`.
        apply: `(params, carry, PolicyInput) -> (carry, distribution [T, B])`; the carry is reset before every step with
            `first`.
        draw_noise: `(key, num_steps) -> pytree` for one environment, leaves `[T, ...]`, for a policy that is random
            besides its action (noisy nets, dropout, a goal per step); None for others.
    """

    init: Callable[[Array], Params]
    initial_carry: Callable[[tuple[int, ...]], Carry]
    apply: Callable[[Params, Carry, PolicyInput], tuple[Carry, Any]]
    draw_noise: Callable[[Array, int], PyTree] | None = None


class ActorCritic(NamedTuple):
    """Like `Policy`, except that `apply` returns `(carry, distribution, value [T, B])`."""

    init: Callable[[Array], Params]
    initial_carry: Callable[[tuple[int, ...]], Carry]
    apply: Callable[[Params, Carry, PolicyInput], tuple[Carry, Any, Array]]
    draw_noise: Callable[[Array, int], PyTree] | None = None


class Collector(NamedTuple):
    """A source of batches: rollouts, a data set, a search.

    Attributes:
        init: `(key, params) -> state`; the first axis of every leaf is the environment axis, which devices split.
        collect: `(state, params, key) -> (state, batch, metrics)`. A collector that may play more than
            `steps_per_collect` has the metric `rounds`: the factor by which it played more, including discarded
            experience. All of it counts towards the budget, and towards the `Count`s of experience among the metrics,
            named as in `COUNTERS`: completed episodes, turns and tokens of dialogues (whoever sampled them), steps of
            the world; runs log their sums since the start.
        steps_per_collect: number of steps for which one call counts: environment steps of rollouts, episodes of
            dialogues, sequences of data sets.
        divided_option: name of the option whose count is divided among devices, for messages.
        tempering: settings by which the sampling distribution differs from the policy, such as `{"temperature": 0.7}`.
    """

    init: Callable[[Array, Params], State]
    collect: Callable[[State, Params, Array], tuple[State, PyTree, Metrics]]
    steps_per_collect: int
    divided_option: str = "num_envs"
    tempering: Mapping[str, float] = MappingProxyType({})


@struct.dataclass
class Sampled:
    """The output of a sampler.

    Attributes:
        batch: batch as in `Collector.collect`: tokens and their log-probabilities, or transitions.
        metrics: metrics of the batch, `Mean`s and `Count`s over all devices.
        version: int32, number of updates of the weights with which the batch was sampled.
    """

    batch: PyTree
    metrics: Metrics
    version: Array


class Sampler(NamedTuple):
    """Samples on other devices, or in other processes, than those on which the learner learns.

    Attributes:
        init: `(state of a collector) -> state`, placed where the sampler runs.
        sample: `(state, params, version, key) -> (state, Sampled)`; returns immediately, while the devices compute.
        abstract: shapes, dtypes and shardings of the state.
        row_axes: index of the row axis in every leaf of the batches.
    """

    init: Callable[[State], State]
    sample: Callable[[State, Params, Array, Array], tuple[State, Sampled]]
    abstract: State
    row_axes: PyTree


class Learner(NamedTuple):
    """Turns batches into better parameters.

    Attributes:
        init: `(key, start=None) -> state`. `start` is the complete learner state of an earlier stage, or parameters.
            From a state of the same kind, everything learned is kept: critics, targets and moments of optimisers, but
            not replay buffers; from other states only the parameters are kept. Hyper-parameters, schedules, counts and
            frozen references are those of the new stage.
        update: `(state, key, batch) -> (state, metrics)`. `state.params` are the parameters that are trained and
            evaluated.
        partition: `(state) -> pytree` of int, the axis over which devices split a leaf (replay buffers), or
            `REPLICATED`; None if every leaf is replicated.
        acting: `(state) -> params` with which the collector acts, including an opponent's, say; None: `state.params`.
    """

    init: Callable[..., State]
    update: Callable[[State, Array, PyTree], tuple[State, Metrics]]
    partition: Callable[[State], PyTree] | None = None
    acting: Callable[[State], Params] | None = None


class Stateful(NamedTuple):
    """A component of an algorithm that keeps a memory across updates: running means, adaptive coefficients.

    Attributes:
        init: `(num_updates of the run) -> memory`, a pytree of arrays, the same on every device.
        apply: `(memory, *arguments, **keywords) -> (result, summary)`: the result of such a component without memory,
            and a pytree of sums over its inputs, which are added up over all inputs of an update.
        update: `(memory, summary of the whole update) -> memory`.
    """

    init: Callable[[int], PyTree]
    apply: Callable[..., tuple[Any, PyTree]]
    update: Callable[[PyTree, PyTree], PyTree]


class Agent(NamedTuple):
    """A policy and the learner that trains it.

    Attributes:
        policy: acts in training and in evaluation: a `Policy` or a `LanguagePolicy`.
        make_learner: `(collector, num_updates) -> Learner`; replay buffers take the shapes of the batches from the
            collector, and schedules the number of updates of the whole run.
    """

    policy: Any
    make_learner: Callable[[Collector, int], Learner]
