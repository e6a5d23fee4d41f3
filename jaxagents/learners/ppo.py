"""PPO (Schulman et al., 2017) for feed-forward and recurrent actor-critics, for one agent or teams."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from jaxagents.learners.agents import agent_weights, per_agent, require_agents
from jaxagents.learners.checks import check_fractions, check_positive
from jaxagents.learners.combinators import params_of
from jaxagents.learners.minibatches import (
    minibatches_of_device,
    sequence_length_of,
    to_sequences,
    update_in_minibatches,
)
from jaxagents.learners.optimizers import Trainable, carry_over, init_optimizer
from jaxagents.learners.popart import rescale_values, with_value_scale
from jaxagents.learners.rollouts import rollout_agent
from jaxagents.learners.settings import Bound, Number, Numbers, SettingsState, Slot, make_settings, without_memory
from jaxagents.losses.policy_gradient import approximate_kl, clip_fraction, clipped_surrogate, importance_ratio
from jaxagents.losses.value import clipped_value_loss, squared_loss
from jaxagents.ops.advantages import generalized_advantage, normalize_advantage
from jaxagents.ops.checks import check_counts
from jaxagents.policies.actor_critic import as_policy
from jaxagents.types import (
    ActorCritic,
    Agent,
    Array,
    Carry,
    Environment,
    Learner,
    Metrics,
    Params,
    PyTree,
    Rollout,
    input_of,
    input_of_successor,
)


@struct.dataclass
class PPOState:
    """Parameters, optimiser state, and settings."""

    params: Params
    opt_state: optax.OptState
    settings: SettingsState


@struct.dataclass
class PPOBatch:
    """Sequences to learn from, leaves `[S, n, ...]` (S steps of n sequences), and their initial carry `[n, ...]`."""

    transition: Any
    advantage: Array
    target: Array
    value: Array
    carry: Carry


def make_ppo(
    actor_critic: ActorCritic,
    optimizer: optax.GradientTransformation,
    *,
    num_epochs: int = 4,
    num_minibatches: int = 4,
    sequence_length: int | None = None,
    discount: Number = 0.99,
    trace_decay: Number = 0.95,
    clip_epsilon: Number = 0.2,
    value_clip_epsilon: Number | None = None,
    value_coefficient: Number = 0.5,
    entropy_coefficient: Number = 0.01,
    normalize_advantages: bool = True,
    target_kl: Number | None = None,
    kl_coefficient: Number | None = None,
    popart_rate: Number | None = None,
    advantage: Slot | None = None,
    loss: Slot | None = None,
    value_loss: Slot | None = None,
    num_updates: int = 1,
    trainable: Trainable = None,
    axis_name: str | None = None,
) -> Learner:
    """Makes PPO with generalised advantage estimation over `Rollout` batches, with or without an agent axis.

    Minimises, over shuffled minibatches of sequences, `mean(clipped_surrogate + value_coefficient * value_loss -
    entropy_coefficient * entropy + kl_coefficient * approximate_kl)`. Every number may be a schedule (see
    `ops.schedules`), and every slot a `Stateful`; their floats are arrays in the state. Other slots give A2C or APPO.

    Args:
        actor_critic: policy and value; its carry decides whether sequences keep their order.
        optimizer: optax transformation, including clipping and schedule.
        num_epochs: number of passes over each rollout.
        num_minibatches: number of minibatches, with one optimiser step each, per pass.
        sequence_length: S, number of consecutive steps kept together; null: 1 without memory, all steps with memory.
        discount: gamma in [0, 1].
        trace_decay: lambda of the advantage estimate, in [0, 1].
        clip_epsilon: clipping range of the probability ratio.
        value_clip_epsilon: clipping range of the value's change per update; null: no clipping.
        value_coefficient: weight of the value loss.
        entropy_coefficient: weight of the entropy bonus.
        normalize_advantages: whether to standardise advantages in each minibatch.
        target_kl: mean KL estimate of a minibatch above which updates on a rollout stop; null: no limit.
        kl_coefficient: weight of the estimate of `KL(acting policy || policy)` in the loss; null leaves it out.
        popart_rate: rate for an actor-critic of `with_value_scale`, see `rescale_values`; null keeps its units.
        advantage: `(reward, value, next_value, terminated, truncated, ratio, *, discount, trace_decay) -> (advantage,
            target)`, see `ops.advantages.vtrace`; null: `generalized_advantage` and its returns.
        loss: `(log_prob, behavior_log_prob, advantage) -> per element`; null: `clipped_surrogate`.
        value_loss: `(value, old_value, target) -> per element`; null: `squared_loss`, or `clipped_value_loss`.
        num_updates: number of updates of the whole run, for schedules and slots that depend on progress.
        trainable: prefix pytree of bool of the parameters, see `apply_updates`; null: everything is trained.
        axis_name: mapped device axis to average gradients over.

    Returns:
        The learner. If present, `transition.extras["perspective"]` multiplies the discount: with -1, the successor is
        valued by the opponent, which turns the update into self-play of a zero-sum game.
        With an agent axis (rewards `[T, B, N]`) it is IPPO, or MAPPO if the critic sees the team: the policy's terms
        are means over living agents (`extras["agent_mask"]`, bool `[T, B, N]`). The value is fitted for dead agents as
        well, because living agents bootstrap from what the team still gets after their death.

    Raises:
        ValueError: a count is not positive; or, when the first update is traced, the batch does not divide into
            minibatches, or a mask does not fit the agents.

    References:
        Schulman et al. (2017), "Proximal Policy Optimization Algorithms", eq. 7 and 9.
        De Witt et al. (2020), "Is Independent Learning All You Need in the StarCraft Multi-Agent Challenge?"
        Yu et al. (2022), "The Surprising Effectiveness of PPO in Cooperative Multi-Agent Games".

    Deviation: minibatches take an equal share of every environment (or of every few environments), drawn at random,
        instead of a global shuffle, so that one seed gives the same updates on any number of devices.
    """
    check_counts(num_epochs=num_epochs, num_minibatches=num_minibatches, sequence_length=sequence_length)
    check_fractions(discount=discount, trace_decay=trace_decay)
    check_positive(clip_epsilon=clip_epsilon, value_clip_epsilon=value_clip_epsilon, popart_rate=popart_rate)
    hyperparameters = {"discount": discount, "trace_decay": trace_decay, "clip_epsilon": clip_epsilon}
    hyperparameters |= {"value_clip_epsilon": value_clip_epsilon, "value_coefficient": value_coefficient}
    hyperparameters |= {"entropy_coefficient": entropy_coefficient, "target_kl": target_kl}
    hyperparameters |= {"kl_coefficient": kl_coefficient, "popart_rate": popart_rate}
    settings = make_settings(hyperparameters, {"advantage": advantage, "loss": loss, "value_loss": value_loss})
    objective = partial(_loss, actor_critic, normalize=normalize_advantages, axis_name=axis_name)

    def init(key: Array, start: PPOState | Params | None = None) -> PPOState:
        params = actor_critic.init(key) if start is None else params_of(start)
        opt_state = init_optimizer(optimizer, params, trainable)
        return PPOState(
            params=params,
            opt_state=carry_over(opt_state, start.opt_state) if isinstance(start, PPOState) else opt_state,
            settings=settings.init(num_updates),
        )

    def update(state: PPOState, key: Array, rollout: Rollout) -> tuple[PPOState, Metrics]:
        num_steps, num_envs = rollout.transition.terminated.shape
        require_agents(rollout.transition)
        length = sequence_length_of(rollout, sequence_length)
        counts = {"num_epochs": num_epochs, "num_minibatches": num_minibatches}
        indices = minibatches_of_device(key, num_steps // length, num_envs, **counts, axis_name=axis_name)
        numbers, slots = settings.open(state.settings)
        terms = _default_slots(numbers) | slots
        batch, seen = _evaluate(actor_critic, state.params, numbers, terms["advantage"], rollout)
        sequences, params = to_sequences(batch, length), state.params
        if popart_rate is not None:
            params = rescale_values(params, batch.target, numbers["popart_rate"], axis_name)
        params, opt_state, metrics, summary = update_in_minibatches(
            partial(objective, numbers, terms),
            params,
            state.opt_state,
            optimizer,
            sequences,
            indices,
            stop=None if target_kl is None else lambda metrics: metrics["approximate_kl"] > numbers["target_kl"],
            trainable=trainable,
            axis_name=axis_name,
        )
        metrics["explained_variance"] = _explained_variance(sequences.value, sequences.target, axis_name)
        closed = settings.close(state.settings, summary | seen, axis_name=axis_name)
        return state.replace(params=params, opt_state=opt_state, settings=closed), metrics

    return Learner(init=init, update=update)


def make_agent(
    environment: Environment,
    *,
    policy: Callable[..., ActorCritic],
    popart_rate: Number | None = None,
    **options: Any,
) -> Agent:
    """Assembles PPO for an environment with one agent, or for a team.

    Args:
        environment: environment that defines the spaces.
        policy: `(observation_space, action_space) -> ActorCritic`.
        popart_rate: see `make_ppo`.
        **options: further arguments of `make_ppo` and of `rollout_agent`.
    """
    actor_critic = policy(environment.observation_space, environment.action_space)
    if not isinstance(actor_critic, ActorCritic):
        raise ValueError(
            f"`policy` must have a critic for PPO, got a {type(actor_critic).__name__} without one; try policy=mlp."
        )
    if popart_rate is not None:
        actor_critic = with_value_scale(actor_critic)
    make_learner = partial(make_ppo, actor_critic, popart_rate=popart_rate)
    return rollout_agent(make_learner, as_policy(actor_critic), environment, **options)


def values_of(actor_critic: ActorCritic, params: Params, rollout: Rollout) -> tuple[Any, Array, Array]:
    """Computes distributions and values of a rollout and the values of its true successors, leaves `[T, B, ...]`."""
    transition = rollout.transition
    first_carry = jax.tree.map(lambda leaf: leaf[0], rollout.carry)
    _, distribution, value = actor_critic.apply(params, first_carry, input_of(transition))
    # The true successors, as one batch of single steps with the carries that the policy had there.
    shape = transition.terminated.shape
    num_steps = shape[0] * shape[1]
    successor = jax.tree.map(lambda leaf: leaf.reshape(1, num_steps, *leaf.shape[2:]), input_of_successor(transition))
    next_carry = jax.tree.map(lambda leaf: leaf[1:].reshape(num_steps, *leaf.shape[2:]), rollout.carry)
    _, _, next_value = actor_critic.apply(params, next_carry, successor)
    return distribution, value, next_value.reshape(value.shape)


def _evaluate(
    actor_critic: ActorCritic, params: Params, numbers: Numbers, advantage_of: Bound, rollout: Rollout
) -> tuple[PPOBatch, dict[str, PyTree]]:
    """Computes values, advantages and targets of a rollout, leaves `[T, B, ...]`, and summaries."""
    transition = rollout.transition
    distribution, value, next_value = values_of(actor_critic, params, rollout)
    ratio = importance_ratio(distribution.log_prob(transition.action), transition.behavior_log_prob)
    perspective = transition.extras.get("perspective")
    discount = numbers["discount"]
    (advantage, target), seen = advantage_of(
        transition.reward,
        value,
        next_value,
        per_agent(transition.terminated, value),
        per_agent(transition.truncated, value),
        ratio,
        discount=discount if perspective is None else discount * per_agent(perspective, value),
        trace_decay=numbers["trace_decay"],
    )
    carry = jax.tree.map(lambda leaf: leaf[:-1], rollout.carry)
    return PPOBatch(transition=transition, advantage=advantage, target=target, value=value, carry=carry), seen


def _loss(
    actor_critic: ActorCritic,
    numbers: Numbers,
    terms: Mapping[str, Bound],
    params: Params,
    batch: PPOBatch,
    *,
    normalize: bool,
    axis_name: str | None,
) -> tuple[Array, tuple[dict[str, Array], dict[str, PyTree]]]:
    transition = batch.transition
    _, distribution, value = actor_critic.apply(params, batch.carry, input_of(transition))
    log_prob = distribution.log_prob(transition.action)
    clip_epsilon, agent_mask = numbers["clip_epsilon"], transition.extras.get("agent_mask")
    advantage = batch.advantage
    if normalize:
        advantage = normalize_advantage(advantage, agent_mask, axis_name=axis_name)
    policy_loss, summary = terms["loss"](log_prob, transition.behavior_log_prob, advantage)
    value_loss, summary_of_value = terms["value_loss"](value, batch.value, batch.target)
    per_element = {
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy": distribution.entropy(),
        "approximate_kl": approximate_kl(log_prob, transition.behavior_log_prob),
        "clip_fraction": clip_fraction(log_prob, transition.behavior_log_prob, clip_epsilon=clip_epsilon),
    }
    elements = list(per_element.values())
    if agent_mask is not None:
        alive = agent_weights(agent_mask, axis_name=axis_name)
        elements = [term if name == "value_loss" else alive * term for name, term in per_element.items()]
    # One reduction for all: small kernels dominate small networks on CPU.
    means = jnp.mean(jnp.stack(elements), axis=range(1, 1 + log_prob.ndim))
    metrics = dict(zip(per_element, means, strict=True))
    metrics["loss"] = (
        metrics["policy_loss"]
        + numbers["value_coefficient"] * metrics["value_loss"]
        - numbers["entropy_coefficient"] * metrics["entropy"]
    )
    if "kl_coefficient" in numbers:
        metrics["loss"] += numbers["kl_coefficient"] * metrics["approximate_kl"]
    return metrics["loss"], (metrics, summary | summary_of_value)


def _generalized(*steps: Array, **numbers: Array) -> tuple[Array, Array]:
    reward, value, next_value, terminated, truncated, _ = steps
    advantage = generalized_advantage(reward, value, next_value, terminated, truncated, **numbers)
    return advantage, advantage + value


def _default_slots(numbers: Numbers) -> dict[str, Bound]:
    clip_epsilon, value_clip = numbers["clip_epsilon"], numbers.get("value_clip_epsilon")
    default: dict[str, Callable[..., Any]] = {
        "advantage": _generalized,
        "loss": partial(clipped_surrogate, clip_epsilon=clip_epsilon),
        "value_loss": partial(clipped_value_loss, clip_epsilon=value_clip)
        if value_clip is not None
        else lambda value, old_value, target: squared_loss(value, target),
    }
    return without_memory(default)


def _explained_variance(value: Array, target: Array, axis_name: str | None) -> Array:
    mean = partial(_mean, axis_name=axis_name)
    residual, error_mean = mean((jnp.mean(jnp.square(target - value)), jnp.mean(target - value)))
    square, target_mean = mean((jnp.mean(jnp.square(target)), jnp.mean(target)))
    return 1.0 - (residual - error_mean**2) / jnp.maximum(square - target_mean**2, 1e-8)


def _mean(tree: PyTree, *, axis_name: str | None) -> PyTree:
    return tree if axis_name is None else jax.lax.pmean(tree, axis_name)
