"""PQN (Gallici et al., 2024): Q-learning on rollouts, without replay and without a target network."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from jaxagents.learners.agents import agent_weights, per_agent, require_agents
from jaxagents.learners.checks import check_fractions
from jaxagents.learners.combinators import params_of
from jaxagents.learners.dqn import EPSILON
from jaxagents.learners.minibatches import (
    minibatches_of_device,
    sequence_length_of,
    to_sequences,
    update_in_minibatches,
)
from jaxagents.learners.optimizers import Trainable, carry_over, init_optimizer
from jaxagents.learners.q_values import discount_per_step
from jaxagents.learners.rollouts import rollout_agent
from jaxagents.learners.settings import Number, Numbers, SettingsState, Slot, make_settings
from jaxagents.losses.value import squared_loss
from jaxagents.ops.checks import check_counts
from jaxagents.ops.returns import lambda_returns
from jaxagents.ops.value_distributions import mask_q, select_action
from jaxagents.policies.epsilon_greedy import make_epsilon_greedy
from jaxagents.types import (
    Agent,
    Array,
    Carry,
    Environment,
    Learner,
    Metrics,
    Params,
    PyTree,
    Rollout,
    Transition,
    input_of,
    input_of_successor,
)
from jaxagents.values.q_function import QFunction


@struct.dataclass
class PQNState:
    """Network, optimiser state, current epsilon, and settings."""

    network: Params
    opt_state: optax.OptState
    epsilon: Array
    settings: SettingsState

    @property
    def params(self) -> Params:
        """Returns the parameters of `policies.epsilon_greedy`, with the current epsilon."""
        return {"network": self.network, "epsilon": self.epsilon}


@struct.dataclass
class _Sequences:
    """Sequences to learn from, leaves `[S, n, ...]`, and their initial carry `[n, ...]`."""

    transition: Transition
    target: Array
    carry: Carry


def make_pqn(
    q_function: QFunction,
    optimizer: optax.GradientTransformation,
    *,
    num_epochs: int = 2,
    num_minibatches: int = 4,
    sequence_length: int | None = None,
    discount: Number = 0.99,
    trace_decay: Number = 0.65,
    epsilon: Number = EPSILON,
    loss: Slot = squared_loss,
    num_updates: int = 1,
    trainable: Trainable = None,
    axis_name: str | None = None,
) -> Learner:
    """Makes Q-learning on `Rollout` batches with lambda-returns; layer norms in the network keep it stable.

    Minimises, over shuffled minibatches of sequences, `mean(loss(Q(s_t, a_t), G_t))` with `G_t = r_t + discount ((1 -
    trace_decay) max_a Q(s_t+1, a) + trace_decay G_t+1)` for the network before the update.

    Args:
        q_function: Q-function for a discrete space, with expectations; its network should have layer norms.
        optimizer: optax transformation, including clipping and schedule.
        num_epochs: number of passes over each rollout.
        num_minibatches: number of minibatches, with one optimiser step each, per pass.
        sequence_length: see `make_ppo`.
        discount: gamma in [0, 1].
        trace_decay: lambda in [0, 1]. Paper: 0.65 for Atari.
        epsilon: share of random actions.
        loss: `(value, target) -> per element`.
        num_updates: number of updates of the whole run, for schedules and slots that depend on progress.
        trainable: prefix pytree of bool of the network's parameters, see `apply_updates`; null: everything is trained.
        axis_name: mapped device axis to average gradients over.

    Returns:
        The learner. With an agent axis (rewards `[T, B, N]`) it is independent Q-learning for living agents.

    Raises:
        ValueError: a number is out of its range; or, when the first update is traced, the batch does not divide into
            minibatches, or values are distributions.

    References:
        Gallici et al. (2024), Simplifying deep temporal difference learning, algorithm 1.

    Deviation: truncated steps bootstrap from their true successor; the released code treats them as terminated.
    """
    check_counts(num_epochs=num_epochs, num_minibatches=num_minibatches, sequence_length=sequence_length)
    hyperparameters = {"discount": discount, "trace_decay": trace_decay, "epsilon": epsilon}
    check_fractions(**hyperparameters)
    settings = make_settings(hyperparameters, {"loss": loss})

    def init(key: Array, start: PQNState | Params | None = None) -> PQNState:
        network = q_function.init(key) if start is None else params_of(start)["network"]
        opt_state = init_optimizer(optimizer, network, trainable)
        opened = settings.init(num_updates)
        return PQNState(
            network=network,
            opt_state=carry_over(opt_state, start.opt_state) if isinstance(start, PQNState) else opt_state,
            epsilon=jnp.copy(settings.open(opened)[0]["epsilon"]),
            settings=opened,
        )

    def update(state: PQNState, key: Array, rollout: Rollout) -> tuple[PQNState, Metrics]:
        num_steps, num_envs = rollout.transition.terminated.shape
        require_agents(rollout.transition)
        length = sequence_length_of(rollout, sequence_length)
        counts = {"num_epochs": num_epochs, "num_minibatches": num_minibatches}
        indices = minibatches_of_device(key, num_steps // length, num_envs, **counts, axis_name=axis_name)
        numbers, slots = settings.open(state.settings)
        batch = _Sequences(
            transition=rollout.transition,
            target=_targets(q_function, state.network, numbers, rollout),
            carry=jax.tree.map(lambda leaf: leaf[:-1], rollout.carry),
        )
        network, opt_state, metrics, summary = update_in_minibatches(
            partial(_loss, q_function, slots["loss"], axis_name),
            state.network,
            state.opt_state,
            optimizer,
            to_sequences(batch, length),
            indices,
            trainable=trainable,
            axis_name=axis_name,
        )
        closed = settings.close(state.settings, summary, axis_name=axis_name)
        following = jnp.copy(settings.open(closed)[0]["epsilon"])
        state = state.replace(network=network, opt_state=opt_state, epsilon=following, settings=closed)
        return state, metrics | {"epsilon": numbers["epsilon"]}

    return Learner(init=init, update=update)


def make_agent(environment: Environment, *, value: Callable[..., QFunction], **options: Any) -> Agent:
    """Assembles PQN for an environment with one agent, or for a team.

    Args:
        environment: environment that defines the spaces.
        value: `(observation_space, action_space) -> QFunction`.
        **options: further arguments of `make_pqn` and of `rollout_agent`.
    """
    q_function = value(environment.observation_space, environment.action_space)
    return rollout_agent(partial(make_pqn, q_function), make_epsilon_greedy(q_function), environment, **options)


def _targets(q_function: QFunction, network: Params, numbers: Numbers, rollout: Rollout) -> Array:
    """Computes lambda-returns `[T, B, ...]` from the best values of the true successors."""
    transition = rollout.transition
    # All as one batch of single steps, with the carries that the policy had there.
    rows = transition.terminated.size
    successor = jax.tree.map(lambda leaf: leaf.reshape(1, rows, *leaf.shape[2:]), input_of_successor(transition))
    carry = jax.tree.map(lambda leaf: leaf[1:].reshape(rows, *leaf.shape[2:]), rollout.carry)
    _, values = q_function.apply(network, carry, successor)
    if not isinstance(values, jax.Array):
        raise ValueError(f"`value.distribution` must be null for lambda-returns, got {type(values).__name__}.")
    reward = transition.reward
    return lambda_returns(
        reward,
        per_agent(transition.terminated, reward),
        per_agent(transition.truncated, reward),
        jnp.max(mask_q(values, successor.action_mask), axis=-1).reshape(reward.shape),
        discount=per_agent(discount_per_step(transition, numbers["discount"]), reward),
        trace_decay=numbers["trace_decay"],
    )


def _loss(
    q_function: QFunction,
    loss: Callable[..., tuple[Array, dict[str, PyTree]]],
    axis_name: str | None,
    network: Params,
    batch: _Sequences,
) -> tuple[Array, tuple[dict[str, Array], dict[str, PyTree]]]:
    transition = batch.transition
    _, q = q_function.apply(network, batch.carry, input_of(transition))
    chosen = select_action(q, transition.action)
    losses, summary = loss(chosen, batch.target)
    if "agent_mask" in transition.extras:
        losses = losses * agent_weights(transition.extras["agent_mask"], axis_name=axis_name)
    total = jnp.mean(losses)
    metrics = {"loss": total, "q": jnp.mean(q), "absolute_error": jnp.mean(jnp.abs(batch.target - chosen))}
    return total, (metrics, summary)
