"""MBPO (Janner et al., 2019) and PETS (Chua et al., 2018): ensembles of learned models, and imagined steps in them."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax import struct

from jaxagents.learners.actor_critic_terms import choose_actions, sample_alone, sample_keys
from jaxagents.learners.agents import agent_weights
from jaxagents.learners.checks import check_fractions, check_positive
from jaxagents.learners.combinators import params_of, start_of_inner, wrap
from jaxagents.learners.optimizers import apply_updates, carry_over
from jaxagents.learners.replay import replay_agent
from jaxagents.losses.dynamics import end_loss, gaussian_loss
from jaxagents.ops.checks import check_counts
from jaxagents.types import Agent, Array, Box, Environment, Learner, Metrics, Params, Policy, Sample, Transition
from jaxagents.values.dynamics import Dynamics, Prediction, make_dynamics


@struct.dataclass
class ModelState:
    """State of the inner learner, parameters of the model, and its optimiser state."""

    inner: Any
    model: Params
    opt_state: optax.OptState

    @property
    def params(self) -> Params:
        """Returns the parameters of the policy."""
        return self.inner.params


def with_model(
    learner: Learner,
    policy: Policy,
    observation_space: Box,
    action_space: Box,
    *,
    encoder: nn.Module,
    num_members: int = 5,
    horizon: int = 1,
    real_share: float = 0.05,
    learning_rate: float = 1e-3,
    weigh: Callable[[Prediction], Array] | None = None,
    axis_name: str | None = None,
) -> Learner:
    """Makes a learner that fits a model to its samples, and also learns from what the model imagines.

    An update takes a step of the model on the sample, lets the policy act in the model for `horizon` steps from every
    observation of the sample, and passes both kinds of steps on. A model that diverges gives infinite or NaN rewards,
    which stop a run.

    Args:
        learner: learner for `Sample`s of single steps.
        policy: feed-forward policy with the parameters of the learner's states.
        observation_space: see `make_dynamics`.
        action_space: see `make_dynamics`.
        encoder: see `make_dynamics`.
        num_members: see `make_dynamics`.
        horizon: k, number of steps imagined from each observation. Paper: 1, or from 1 to 25 over the run.
        real_share: share of the total weight that the sampled steps have, in [0, 1]; steps after an imagined end have
            none. Paper: 0.05.
        learning_rate: learning rate of Adam for the model.
        weigh: `(predictions of the members, leaves [E, horizon, B, ...]) -> [horizon, B]`, factors for the weights of
            imagined steps, such as `meee.disagreement_weight`; None: equal weights.
        axis_name: mapped device axis to average gradients over.

    Returns:
        The learner. Metrics: `model_loss`, and those of the learner; `priority` is that of the sample.

    Raises:
        ValueError: a number is out of its range, or, when the first update is traced, samples have several steps.

    References:
        Janner et al. (2019), When to trust your model: model-based policy optimization, algorithm 2.

    Deviation: one step of the model per step of the policy, instead of occasional fits to convergence; all members
        learn from the same batches and are all used; imagined steps are used once, not stored in a buffer; the share of
        real steps is a share of weight.
    """
    check_counts(horizon=horizon)
    check_fractions(real_share=real_share)
    check_positive(learning_rate=learning_rate)
    dynamics = make_dynamics(observation_space, action_space, encoder=encoder, num_members=num_members)
    optimizer = optax.adam(learning_rate)

    def init(key: Array, start: ModelState | Params | None = None) -> ModelState:
        inner_key, model_key = jax.random.split(key)
        inner, model = learner.init(inner_key, start_of_inner(start, ModelState)), dynamics.init(model_key)
        if isinstance(start, ModelState):
            model = start.model
        return ModelState(inner=inner, model=model, opt_state=optimizer.init(model))

    def update(state: ModelState, key: Array, batch: Sample) -> tuple[ModelState, Metrics]:
        rows = _rows_of_single_steps(batch)
        key, imagine_key = jax.random.split(key)
        loss, grads = jax.value_and_grad(model_loss)(state.model, dynamics, batch)
        model, opt_state, _ = apply_updates(grads, state.model, state.opt_state, optimizer, axis_name=axis_name)
        imagined, alive = imagine(
            dynamics, policy, model, state.inner.params, imagine_key, batch, horizon=horizon, axis_name=axis_name
        )
        imagined_weight = (1.0 - real_share) * (1.0 + 1.0 / horizon) * agent_weights(alive, axis_name=axis_name)
        if weigh is not None:
            imagined_weight *= weigh(dynamics.apply(model, imagined.observation, imagined.action))
        weights = real_share * (1 + horizon) * batch.weight[None], imagined_weight
        kinds = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), batch.transition, imagined)
        # Row by row, so that the index of a step among all does not depend on the devices.
        kinds, weight = jax.tree.map(
            lambda leaf: jnp.swapaxes(leaf, 0, 1).reshape(-1, *leaf.shape[2:]), (kinds, jnp.concatenate(weights))
        )
        mixed = Sample(transition=jax.tree.map(lambda leaf: leaf[None], kinds), weight=weight)
        inner, metrics = learner.update(state.inner, key, mixed)
        loss = loss if axis_name is None else jax.lax.pmean(loss, axis_name)
        priority: Any = metrics["priority"]
        own = {"model_loss": loss, "priority": priority.reshape(rows, -1)[:, 0]}
        return state.replace(inner=inner, model=model, opt_state=opt_state), {**metrics, **own}

    return wrap(learner, init, update)


@struct.dataclass
class PlanningState:
    """Parameters of the model used for planning, and its optimiser state."""

    params: Params
    opt_state: optax.OptState


def make_model_learner(
    dynamics: Dynamics,
    optimizer: optax.GradientTransformation,
    *,
    num_updates: int = 1,
    axis_name: str | None = None,
) -> Learner:
    """Makes the learner of a model of single steps, over `Sample` batches.

    Args:
        dynamics: model that is trained.
        optimizer: an optax transformation.
        num_updates: number of updates of the whole run; not used.
        axis_name: mapped device axis to average gradients over.

    Returns:
        The learner; wrap it in `with_replay`. Metrics: `model_loss`, the mean over members and steps.

    Raises:
        ValueError: when the first update is traced, samples have several steps.

    References:
        Chua et al. (2018), Deep reinforcement learning in a handful of trials using probabilistic dynamics models,
        algorithm 1.

    Deviation: one step for each of a few batches after every rollout, instead of occasional fits; all members learn
        from the same batches, so that they differ only by their initial parameters; ends are predicted, too.
    """

    def init(key: Array, start: PlanningState | Params | None = None) -> PlanningState:
        params = dynamics.init(key) if start is None else params_of(start)
        opt_state = optimizer.init(params)
        if isinstance(start, PlanningState):
            opt_state = carry_over(opt_state, start.opt_state)
        return PlanningState(params=params, opt_state=opt_state)

    def update(state: PlanningState, key: Array, batch: Sample) -> tuple[PlanningState, Metrics]:
        del key
        _rows_of_single_steps(batch)
        loss, grads = jax.value_and_grad(model_loss)(state.params, dynamics, batch)
        params, opt_state, _ = apply_updates(grads, state.params, state.opt_state, optimizer, axis_name=axis_name)
        loss = loss if axis_name is None else jax.lax.pmean(loss, axis_name)
        return PlanningState(params=params, opt_state=opt_state), {"model_loss": loss}

    return Learner(init=init, update=update)


def make_agent(
    environment: Environment,
    *,
    policy: Callable[..., Policy],
    value: Callable[..., Dynamics],
    normalize_observations: bool = True,
    **options: Any,
) -> Agent:
    """Assembles an agent that plans in a model of the world that it learns.

    Args:
        environment: environment that defines the spaces.
        policy: `(observation_space, action_space, *, dynamics) -> Policy` that plans.
        value: `(observation_space, action_space) -> Dynamics`.
        normalize_observations: see `replay_agent`.
        **options: further arguments of `make_model_learner` and of `replay_agent`.

    Raises:
        ValueError: `value` is not a model of the world.
    """
    spaces = environment.observation_space, environment.action_space
    dynamics = value(*spaces)
    if not isinstance(dynamics, Dynamics):
        raise ValueError(
            f"`value` must be a model of the world to plan in, got a {type(dynamics).__name__}; try value=dynamics."
        )
    make_learner = partial(make_model_learner, dynamics)
    options["normalize_observations"] = normalize_observations
    return replay_agent(make_learner, policy(*spaces, dynamics=dynamics), environment, **options)


def model_loss(model: Params, dynamics: Dynamics, batch: Sample) -> Array:
    """Computes the weighted mean loss of all members on a sample of single steps."""
    transition = jax.tree.map(lambda leaf: leaf[0], batch.transition)
    predicted = dynamics.apply(model, transition.observation, transition.action)
    change = transition.next_observation - transition.observation
    target = jnp.concatenate([change, transition.reward[..., None]], axis=-1)[None]
    losses = gaussian_loss(predicted.mean, predicted.log_scale, target)
    return jnp.mean(batch.weight[None] * (losses + end_loss(predicted.end_logit, transition.terminated[None])))


def imagine(
    dynamics: Dynamics,
    policy: Policy,
    model: Params,
    params: Params,
    key: Array,
    batch: Sample,
    *,
    horizon: int,
    axis_name: str | None = None,
) -> tuple[Transition, Array]:
    """Lets the policy act in the model, with a new random member for every step of every row.

    Returns:
        Steps `[horizon, B, ...]` with the leaves of the sample's steps, and 1 if the episode continued until then, else
        0, float32 `[horizon, B]`.
    """
    start = jax.tree.map(lambda leaf: leaf[0], batch.transition)
    rows = start.reward.shape[0]

    def draw(key: Array, predicted: Prediction, observation: Array) -> tuple[Array, Array, Array]:
        member_key, key = jax.random.split(key)
        member = jax.random.randint(member_key, (), 0, predicted.end_logit.shape[0])
        return jax.tree.map(lambda leaf: leaf[member], predicted).sample(key, observation)

    def step(carry: tuple[Array, Array], key: Array) -> tuple[tuple[Array, Array], tuple[Transition, Array]]:
        observation, alive = carry
        action_key, key = jax.random.split(key)
        action, log_prob = choose_actions(policy, sample_alone, axis_name, params, action_key, observation)
        predicted = dynamics.apply(model, observation, action)
        reached, reward, ends = jax.vmap(draw, (0, 1, 0))(sample_keys(key, rows, axis_name), predicted, observation)
        transition = start.replace(
            observation=observation,
            action=action,
            behavior_log_prob=log_prob,
            reward=reward,
            terminated=ends,
            truncated=jnp.zeros_like(ends),
            next_observation=reached,
        )
        return (reached, alive * (1.0 - ends)), (transition, alive)

    begin = start.observation.astype(jnp.float32), jnp.ones(rows)
    _, steps = jax.lax.scan(step, begin, jax.random.split(key, horizon))
    return jax.lax.stop_gradient(steps)


def _rows_of_single_steps(batch: Sample) -> int:
    """Returns the number of rows of a batch, and refuses sequences of several steps."""
    length, rows = batch.transition.reward.shape
    if length > 1:
        raise ValueError(f"`sequence_length` must be 1 for a model of single steps, got {length}.")
    return rows
