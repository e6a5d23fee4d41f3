"""MuZero (Schrittwieser et al., 2020): a model that predicts rewards, values and the results of searches in it."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from jaxagents.learners.checks import check_fractions
from jaxagents.learners.combinators import params_of
from jaxagents.learners.optimizers import apply_updates, carry_over, learning_rate_of
from jaxagents.learners.replay import first_step, replay_agent
from jaxagents.learners.settings import Number, SettingsState, make_settings
from jaxagents.losses.imitation import search_cross_entropy
from jaxagents.losses.q import rescale, unscale
from jaxagents.losses.value import squared_loss
from jaxagents.ops.checks import check_counts
from jaxagents.ops.returns import lambda_returns
from jaxagents.policies.latent_model import LatentModel
from jaxagents.types import Agent, Array, Environment, Learner, Metrics, Params, Sample


@struct.dataclass
class MuZeroState:
    """State of the learner.

    Attributes:
        params: parameters of the model.
        target_params: moving average of the parameters, which gives values at the ends of sequences.
        opt_state: state of the optimiser.
        settings: hyper-parameters that can change.
    """

    params: Params
    target_params: Params
    opt_state: optax.OptState
    settings: SettingsState


def make_muzero(
    model: LatentModel,
    optimizer: optax.GradientTransformation,
    *,
    num_unroll: int = 5,
    discount: Number = 0.99,
    trace_decay: Number = 0.95,
    value_coefficient: Number = 0.25,
    target_update_rate: Number = 0.01,
    num_updates: int = 1,
    axis_name: str | None = None,
) -> Learner:
    """Makes MuZero over `Sample`s of what `search.self_play` collected.

    From the first observation of a sequence, the model is unrolled with the K actions that were taken. Minimises `l_0 +
    (l_1 + ... + l_K) / K` with `l_k = -sum_a w_k(a) log p_k(a) + value_coefficient (v_k - h(G_k))^2 / 2 + (r_k -
    h(reward_k))^2 / 2`, with the improved policies w of the searches, the lambda-returns G, and `h` of
    `losses.q.rescale`. Between two unrolled steps, gradients are halved. After a terminal step, rewards and values are
    zero and there is no policy to learn; nothing is learned after a truncation. Numbers may be schedules.

    Args:
        model: model that predicts `h` of rewards and values.
        optimizer: an optax transformation.
        num_unroll: K, number of unrolled steps; sequences are longer. Paper: 5.
        discount: gamma in [0, 1], per step.
        trace_decay: lambda of the returns.
        value_coefficient: weight of the values' loss. Paper: 0.25 with replay.
        target_update_rate: fraction by which the target parameters move per update, in [0, 1].
        num_updates: number of updates of the whole run, for schedules.
        axis_name: mapped device axis to average gradients over.

    Returns:
        The learner; wrap it in `with_replay`. `metrics["priority"]` is `|v_0 - h(G_0)|`, float32 `[B]`.

    Raises:
        ValueError: a number is out of its range; when an update is traced, sequences are too short, they contain no
            searches, or they contain both players of a game.

    References:
        Schrittwieser et al. (2020), Mastering Atari, Go, chess and shogi by planning with a learned model, equation 1,
        appendix G and `update_weights` of the pseudocode; for continuous actions, where a ranges over the actions that
        searches sampled, Hubert et al. (2021), Learning and planning in complex action spaces.

    Deviation: gradients to the latent of the first observation are not halved, as in the pseudocode; the text of
        appendix G, and Stoix, systems/search/ff_mz.py, also halve those of its first step.
    Deviation: values and rewards are regressed, not classified into bins; returns bootstrap from a moving average of
        the network, not from the values of the searches, and with lambda instead of after n steps.
    """
    check_counts(num_unroll=num_unroll)
    fractions = {"discount": discount, "trace_decay": trace_decay, "target_update_rate": target_update_rate}
    check_fractions(**fractions)
    settings = make_settings(fractions | {"value_coefficient": value_coefficient})

    def init(key: Array, start: MuZeroState | Params | None = None) -> MuZeroState:
        params = model.init(key) if start is None else params_of(start)
        is_state, opt_state = isinstance(start, MuZeroState), optimizer.init(params)
        return MuZeroState(
            params=params,
            # A copy, because a donated state must not contain the same buffer twice.
            target_params=start.target_params if is_state else jax.tree.map(jnp.copy, params),
            opt_state=carry_over(opt_state, start.opt_state) if is_state else opt_state,
            settings=settings.init(num_updates),
        )

    def update(state: MuZeroState, key: Array, batch: Sample) -> tuple[MuZeroState, Metrics]:
        del key
        _require_searches(batch, num_unroll)
        numbers, _ = settings.open(state.settings)
        targets = _targets(model, state.target_params, batch, numbers["discount"], numbers["trace_decay"])
        objective = partial(_loss, model, num_unroll, numbers["value_coefficient"], batch, *targets)
        grads, (metrics, priority) = jax.grad(objective, has_aux=True)(state.params)
        params, opt_state, _ = apply_updates(grads, state.params, state.opt_state, optimizer, axis_name=axis_name)
        metrics = metrics if axis_name is None else jax.lax.pmean(metrics, axis_name)
        new_state = state.replace(
            params=params,
            opt_state=opt_state,
            target_params=optax.incremental_update(params, state.target_params, numbers["target_update_rate"]),
            settings=settings.close(state.settings),
        )
        return new_state, metrics | learning_rate_of(optimizer, state.opt_state) | {"priority": priority}

    return Learner(init=init, update=update)


def make_agent(environment: Environment, *, policy: Callable[..., LatentModel], **options: Any) -> Agent:
    """Assembles MuZero for an environment.

    Args:
        environment: environment that defines the spaces.
        policy: `(observation_space, action_space) -> LatentModel`.
        **options: further arguments of `make_muzero` and of `replay_agent`.

    Raises:
        ValueError: the policy is not a latent model, or see `make_muzero`.
    """
    model = policy(environment.observation_space, environment.action_space)
    if not isinstance(model, LatentModel):
        raise ValueError(
            f"`policy` must be a latent model for MuZero, got a {type(model).__name__}; try policy=latent_model."
        )
    return replay_agent(partial(make_muzero, model), in_units_of_rewards(model), environment, **options)


def in_units_of_rewards(model: LatentModel) -> LatentModel:
    """Makes a model that predicts rewards and values from one that predicts `h` of them, because searches add them."""

    def step(params: Params, latent: Array, action: Array) -> tuple[Array, Array]:
        latent, reward = model.step(params, latent, action)
        return latent, unscale(reward)

    def predict(params: Params, latent: Array) -> tuple[Any, Array]:
        distribution, value = model.predict(params, latent)
        return distribution, unscale(value)

    return model._replace(step=step, predict=predict)


def _targets(
    model: LatentModel, params: Params, batch: Sample, discount: Array, trace_decay: Array
) -> tuple[Array, ...]:
    """Returns `h` of returns and rewards, zero after the end, and which steps are learned from, float32 `[n, B]`."""
    transition = batch.transition
    _, next_value = model.predict(params, model.represent(params, transition.next_observation))
    ends = transition.terminated, transition.truncated
    returns = lambda_returns(transition.reward, *ends, unscale(next_value), discount=discount, trace_decay=trace_decay)

    def before(ended: Array) -> Array:
        """Returns whether no earlier step of the sequence has ended."""
        count = jnp.cumsum(ended, axis=0, dtype=jnp.int32)
        return count - ended == 0

    running = before(ends[0] | ends[1])
    # After a truncation nothing is known; after a terminal step, everything is known to be zero.
    known = before(ends[1] & running)
    scaled = [jnp.where(running, rescale(value), 0.0) for value in (returns, transition.reward)]
    return jax.lax.stop_gradient((*scaled, jnp.stack([running, known]).astype(jnp.float32)))


def _loss(
    model: LatentModel,
    num_unroll: int,
    value_coefficient: Array,
    batch: Sample,
    returns: Array,
    reward: Array,
    masks: Array,
    params: Params,
) -> tuple[Array, tuple[dict[str, Array], Array]]:
    transition = batch.transition
    running, known = masks
    search = transition.extras["search_policy"], transition.extras.get("search_actions")

    def judge(latent: Array, index: Array) -> tuple[Array, Array, Array]:
        distribution, value = model.predict(params, latent)
        cross_entropy = search_cross_entropy(distribution, *jax.tree.map(lambda leaf: leaf[index], search))
        return running[index] * cross_entropy, known[index] * squared_loss(value, returns[index]), value

    def step(latent: Array, index: Array) -> tuple[Array, tuple[Array, Array, Array]]:
        latent, foreseen = model.step(params, latent, transition.action[index])
        policy_loss, value_loss, _ = judge(latent, index + 1)
        # Half of the later steps' gradient is passed back, so that all steps have equal weight.
        onward = 0.5 * latent + 0.5 * jax.lax.stop_gradient(latent)
        return onward, (policy_loss, value_loss, known[index] * squared_loss(foreseen, reward[index]))

    latent = model.represent(params, first_step(transition.observation))
    policy_loss, value_loss, value = judge(latent, jnp.int32(0))
    _, later = jax.lax.scan(step, latent, jnp.arange(num_unroll))
    later = jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), later)
    parts = {"policy_loss": policy_loss + later[0], "value_loss": value_loss + later[1], "reward_loss": later[2]}
    losses = parts["policy_loss"] + value_coefficient * parts["value_loss"] + parts["reward_loss"]
    metrics = {name: jnp.mean(batch.weight * part) for name, part in (parts | {"loss": losses}).items()}
    return metrics["loss"], (metrics, jnp.abs(value - returns[0]))


def _require_searches(batch: Sample, num_unroll: int) -> None:
    extras, length = batch.transition.extras, batch.transition.reward.shape[0]
    if "search_policy" not in extras:
        raise ValueError("`collector` must search for MuZero, got batches without searches; try collector=search.")
    if "perspective" in extras:
        raise ValueError("`environment` must have one agent for MuZero, got both players; try algorithm=alphazero.")
    if length <= num_unroll:
        raise ValueError(
            f"`num_unroll` must be below the {length} steps of a sequence, got {num_unroll}; try "
            f"learner.buffer.sequence_length={num_unroll + 5}."
        )
