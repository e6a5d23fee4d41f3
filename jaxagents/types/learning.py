"""Experience, policies, and what learns: collectors, learners and agents."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax.numpy as jnp
from flax import struct

from jaxagents.types.environments import Array, Carry, Params, PyTree, State


@struct.dataclass
class Transition:
    """One step of experience: fields of the state acted in, then of what followed.

    Attributes:
        observation: what the policy saw.
        action: what it did.
        behavior_log_prob: float32, log-probability of `action` under the policy that acted.
        reward: float32, the reward that followed.
        terminated: bool, the step ended the episode in a terminal state.
        truncated: bool, the step ended the episode by a limit.
        next_observation: the true successor, also where the environment was reset afterwards.
        first: bool, `observation` is the first of an episode.
        action_mask: bool `[..., A]` allowed actions at `observation`, or None.
        previous_action: what was done before, zero where `first`; None where it was not kept.
        previous_reward: float32, the reward of that, zero where `first`; None where it was not kept.
        noise: what the policy drew for the step besides its action, see `Policy.draw_noise`; None without.
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
        transition: leaves `[n, B, ...]`; a sequence may run over the end of an episode.
        weight: float32 `[B]`, weights of the losses.
        carry: recurrent carry that the policy had before the first step, leaves `[B, ...]`; empty without memory.
    """

    transition: Transition
    weight: Array
    carry: Carry = ()


@struct.dataclass
class QView:
    """What targets of Q-learning see of L steps of B sequences, with agents `[L, B, N, ...]`.

    Values are those of all actions, see `ops.value_distributions`; what a target does not read is not computed.

    Attributes:
        action: int `[L, B]`.
        reward: float32 `[L, B]`, the discounted sum of the rewards up to the successor, n steps later or at the end of
            the episode.
        discount: float32 `[L, B]`, of what the successor is worth; zero where terminated.
        target_values: of the target network, at the observation.
        next_values: of the target network, at the successor.
        next_selector: of the online network, at the successor.
        next_target_selector: of the target network, at the successor, at fractions of their own (IQN), by which a
            target without double Q-learning chooses the action; None: `next_values`.
        action_mask: bool `[L, B, A]`, True = allowed at the observation; None when every action is.
        next_action_mask: the same at the successor.
        transition: the steps, leaves `[L, B, ...]`; None where only the above are known.
        last: the step before the successor of each, leaves `[L, B, ...]`; None as `transition`.
        num_steps: n, steps to the successor where the episode does not end before; static.
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
    """A stretch of experience of B environments.

    Attributes:
        transition: `Transition` with leaves `[T, B, ...]`.
        carry: recurrent carry of the policy *before* each step and after the last one, leaves `[T + 1, B, ...]`;
            an empty pytree for feed-forward policies.
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
        """Returns the mean, NaN where nothing was counted."""
        return jnp.where(self.count > 0, self.total / jnp.maximum(self.count, 1e-9), jnp.nan)


@struct.dataclass
class Count:
    """A number of things, int32, that is added up exactly over steps, devices and chunks."""

    total: Array


Metrics = Mapping[str, Array | Mean | Count]

COUNTERS = ("episodes", "turns", "tokens", "env_steps")
"""What experience is counted in, see `Collector`."""


REPLICATED = -1
"""In place of an axis: every device holds the whole."""


@struct.dataclass
class PolicyInput:
    """Inputs of a policy at every step, leaves `[T, B, ...]`, with agents `[T, B, N, ...]` but for `first`.

    Attributes:
        observation: of the step.
        first: bool `[T, B]`, the step is the first of an episode: memory begins anew before it.
        action_mask: bool `[..., A]`, True = allowed; None when every action is.
        previous_action: of the step before, zero where `first`; None where nobody kept it. What adapts within a
            lifetime (RL^2), world models and decision transformers read it.
        previous_reward: float32, of the step before, zero where `first`; None where nobody kept it.
        noise: what `Policy.draw_noise` drew, so that an update sees the policy that acted; None without randomness
            besides that of the action, as when it acts greedily.
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
    """A policy over sequences; a feed-forward one has the empty carry `()`.

    Attributes:
        init: `(key) -> params`.
        initial_carry: `(batch_shape) -> carry`, leaves `[*batch_shape, ...]`.
        apply: `(params, carry, PolicyInput) -> (carry, distribution [T, B])`; the carry is reset before every step
            where `first`.
        draw_noise: `(key, num_steps) -> pytree` of one environment, leaves `[T, ...]`, of a policy that is random
            besides its action (noisy nets, dropout, a goal per step); None for others.
    """

    init: Callable[[Array], Params]
    initial_carry: Callable[[tuple[int, ...]], Carry]
    apply: Callable[[Params, Carry, PolicyInput], tuple[Carry, Any]]
    draw_noise: Callable[[Array, int], PyTree] | None = None


class ActorCritic(NamedTuple):
    """As `Policy`, and `apply` returns `(carry, distribution, value [T, B])`."""

    init: Callable[[Array], Params]
    initial_carry: Callable[[tuple[int, ...]], Carry]
    apply: Callable[[Params, Carry, PolicyInput], tuple[Carry, Any, Array]]
    draw_noise: Callable[[Array, int], PyTree] | None = None


class Collector(NamedTuple):
    """Where batches come from: rollouts, a data set, a search.

    Attributes:
        init: `(key, params) -> state`; every leaf of the state has the environment axis first: devices split it.
        collect: `(state, params, key) -> (state, batch, metrics)`. What plays more than `steps_per_collect` has the
            metric `rounds`: how many times as many it played, thrown away or not. They all count in the budget. So they
            do in the `Count`s of experience among the metrics, named as in `COUNTERS`: episodes that ended, turns and
            tokens of dialogues (whoever sampled them), steps of the world; runs log their sums since the beginning.
        steps_per_collect: what one call counts for: environment steps of rollouts, episodes of dialogues, sequences of
            data sets.
        divided_option: name of the option of which devices divide what it counts, for messages.
        tempering: settings by which actions are not drawn from the policy itself, as `{"temperature": 0.7}`.
    """

    init: Callable[[Array, Params], State]
    collect: Callable[[State, Params, Array], tuple[State, PyTree, Metrics]]
    steps_per_collect: int
    divided_option: str = "num_envs"
    tempering: Mapping[str, float] = MappingProxyType({})


@struct.dataclass
class Sampled:
    """What a sampler hands over.

    Attributes:
        batch: as of `Collector.collect`: tokens and their log-probabilities, or transitions.
        metrics: of it, `Mean`s and `Count`s over all devices.
        version: int32, updates that the weights had behind them with which it was sampled.
    """

    batch: PyTree
    metrics: Metrics
    version: Array


class Sampler(NamedTuple):
    """Samples somewhere else than where a learner learns: on devices, or in processes, of its own.

    Attributes:
        init: `(state of a collector) -> state`, where the sampler has it.
        sample: `(state, params, version, key) -> (state, Sampled)`; returns at once, while devices work.
        abstract: shapes, types and shardings of the state.
        row_axes: axis of the rows in every leaf of the batches.
    """

    init: Callable[[State], State]
    sample: Callable[[State, Params, Array, Array], tuple[State, Sampled]]
    abstract: State
    row_axes: PyTree


class Learner(NamedTuple):
    """What turns batches into better parameters.

    Attributes:
        init: `(key, start=None) -> state`. `start` is the whole state of a learner of an earlier stage, or parameters.
            From a state of the same kind, all that was learned survives: critics, targets and moments of optimisers,
            but not replay buffers; from others the parameters do. Hyper-parameters, schedules, counts and frozen
            references are those of the new stage.
        update: `(state, key, batch) -> (state, metrics)`. `state.params` is what is learned and evaluated.
        partition: `(state) -> pytree` of int, the axis over which devices split a leaf (replay buffers), or
            `REPLICATED`; None when every leaf is replicated.
        acting: `(state) -> params` that the collector acts with, as of an opponent; None when it is `state.params`.
    """

    init: Callable[..., State]
    update: Callable[[State, Array, PyTree], tuple[State, Metrics]]
    partition: Callable[[State], PyTree] | None = None
    acting: Callable[[State], Params] | None = None


class Stateful(NamedTuple):
    """A choice of an algorithm that remembers something from update to update: running means, adaptive coefficients.

    Attributes:
        init: `(num_updates of the run) -> memory`, a pytree of arrays, the same on every device.
        apply: `(memory, *arguments, **keywords) -> (result, summary)`: the result of such a choice without memory, and
            a pytree of sums over what it was shown, which are added up over all that it is shown in an update.
        update: `(memory, summary of the whole update) -> memory`.
    """

    init: Callable[[int], PyTree]
    apply: Callable[..., tuple[Any, PyTree]]
    update: Callable[[PyTree, PyTree], PyTree]


class Agent(NamedTuple):
    """A policy and the learner that trains it.

    Attributes:
        policy: what acts, in training and in evaluation: a `Policy` or a `LanguagePolicy`.
        make_learner: `(collector, num_updates) -> Learner`; replay buffers take the shapes of the batches from the
            collector, schedules the updates of the whole run.
    """

    policy: Any
    make_learner: Callable[[Collector, int], Learner]
