"""DreamerV3 (Hafner et al., 2023): a policy that learns from imagined steps in a recurrent world model."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import struct

from jaxagents.learners.actor_critic_terms import draw, sample_alone, sample_keys
from jaxagents.learners.checks import check_fractions
from jaxagents.learners.combinators import params_of
from jaxagents.learners.optimizers import apply_updates, carry_over, learning_rate_of
from jaxagents.learners.replay import replay_agent
from jaxagents.learners.settings import Number, SettingsState, make_settings
from jaxagents.losses.dynamics import end_loss
from jaxagents.losses.world_models import balanced_kl, symlog_loss, two_hot_loss
from jaxagents.ops.checks import check_counts
from jaxagents.ops.returns import lambda_returns
from jaxagents.ops.symlog import two_hot_mean
from jaxagents.policies.world_model import LatentState, WorldModelPolicy
from jaxagents.types import Agent, Array, Environment, Learner, Metrics, Params, Sample, input_of


@struct.dataclass
class DreamerState:
    """State of the learner.

    Attributes:
        params: parameters of model, actor and critic.
        target_critic: moving average of the critic, towards whose values the critic is regularised.
        return_range: float32 `[]`, moving average of the range between the 5th and 95th percentiles of returns.
        opt_state: state of the optimiser.
        settings: hyper-parameters that can change.
    """

    params: Params
    target_critic: Params
    return_range: Array
    opt_state: optax.OptState
    settings: SettingsState


class Imagined(NamedTuple):
    """Imagined steps of a policy in a model, from N starting states.

    Attributes:
        states: leaves `[H + 1, N, ...]`.
        action: `[H, N, ...]`.
        reward: float32 `[H, N]`, expected rewards.
        going_on: float32 `[H, N]`, probability that the episode continues.
    """

    states: LatentState
    action: Array
    reward: Array
    going_on: Array


def make_dreamer(
    policy: WorldModelPolicy,
    optimizer: optax.GradientTransformation,
    *,
    horizon: int = 15,
    discount: Number = 0.997,
    trace_decay: Number = 0.95,
    entropy_coefficient: Number = 3e-4,
    free_nats: Number = 1.0,
    dynamics_coefficient: Number = 0.5,
    representation_coefficient: Number = 0.1,
    replay_value_coefficient: Number = 0.3,
    target_update_rate: Number = 0.02,
    range_update_rate: Number = 0.01,
    num_updates: int = 1,
    axis_name: str | None = None,
) -> Learner:
    """Makes DreamerV3 over `Sample`s of sequences. Numbers may be schedules.

    The model minimises `symlog_loss + two_hot_loss + end_loss + balanced_kl`. From every state of the sequences, the
    policy acts for `horizon` steps in the model. The actor minimises `-sg((G - v) / max(1, range of G)) log p - c H`
    for lambda-returns G with the REINFORCE gradient; the critic minimises the cross-entropy with G and with its moving
    average; steps are weighted by the discounted probability that the episode reaches them. The critic also learns the
    returns of the sequences themselves, see `replay_value_loss`.

    Args:
        policy: policy with its world model.
        optimizer: optax transformation for all parameters.
        horizon: H, number of imagined steps.
        discount: gamma in [0, 1], per step.
        trace_decay: lambda of the returns.
        entropy_coefficient: c, in units of the range of returns per nat.
        free_nats: see `balanced_kl`.
        dynamics_coefficient: see `balanced_kl`.
        representation_coefficient: see `balanced_kl`.
        replay_value_coefficient: coefficient of the critic's loss on replayed steps; 0: only imagined steps. Released
            code: 0.3.
        target_update_rate: fraction by which the moving average of the critic moves per update, in [0, 1].
        range_update_rate: the same for the range of returns.
        num_updates: number of updates of the whole run, for schedules.
        axis_name: mapped device axis to average gradients over.

    Returns:
        The learner; wrap it in `with_replay`.

    Raises:
        ValueError: a number is out of its range.

    References:
        Hafner et al. (2023), Mastering diverse domains through world models, equations 4 to 11; the released code,
        dreamerv3/agent.py (`repl_loss`).

    Deviation: the reward and the end of a step are predicted from the deterministic state after it, before the
        stochastic state is drawn, so that the observation after the last step of an episode need not be stored; values
        bootstrap from the critic, as in the released code; rewards and values are two-hot in symlog, as in the first
        version of the paper, whereas the released code spaces the bins by symexp.
    """
    check_counts(horizon=horizon)
    fractions = {"discount": discount, "trace_decay": trace_decay}
    fractions |= {"target_update_rate": target_update_rate, "range_update_rate": range_update_rate}
    check_fractions(**fractions)
    coefficients = {
        "entropy_coefficient": entropy_coefficient,
        "free_nats": free_nats,
        "dynamics_coefficient": dynamics_coefficient,
        "representation_coefficient": representation_coefficient,
        "replay_value_coefficient": replay_value_coefficient,
    }
    settings = make_settings(fractions | coefficients)

    def init(key: Array, start: DreamerState | Params | None = None) -> DreamerState:
        params = policy.init(key) if start is None else params_of(start)
        is_state, opt_state = isinstance(start, DreamerState), optimizer.init(params)
        return DreamerState(
            params=params,
            # A copy, because a donated state must not contain the same buffer twice.
            target_critic=start.target_critic if is_state else jax.tree.map(jnp.copy, params["critic"]),
            return_range=start.return_range if is_state else jnp.zeros(()),
            opt_state=carry_over(opt_state, start.opt_state) if is_state else opt_state,
            settings=settings.init(num_updates),
        )

    def update(state: DreamerState, key: Array, batch: Sample) -> tuple[DreamerState, Metrics]:
        numbers, _ = settings.open(state.settings)
        objective = partial(dreamer_losses, policy, horizon, axis_name, numbers, state, key, batch)
        grads, (metrics, return_range) = jax.grad(objective, has_aux=True)(state.params)
        params, opt_state, _ = apply_updates(grads, state.params, state.opt_state, optimizer, axis_name=axis_name)
        metrics = metrics if axis_name is None else jax.lax.pmean(metrics, axis_name)
        new_state = state.replace(
            params=params,
            opt_state=opt_state,
            target_critic=optax.incremental_update(
                params["critic"], state.target_critic, numbers["target_update_rate"]
            ),
            return_range=return_range,
            settings=settings.close(state.settings),
        )
        metrics |= learning_rate_of(optimizer, state.opt_state)
        return new_state, metrics | {"return_range": return_range}

    return Learner(init=init, update=update)


def make_agent(environment: Environment, *, policy: Callable[..., WorldModelPolicy], **options: Any) -> Agent:
    """Assembles DreamerV3 for an environment.

    Args:
        environment: environment that defines the spaces.
        policy: `(observation_space, action_space) -> WorldModelPolicy`.
        **options: further arguments of `make_dreamer` and of `replay_agent`; samples are sequences.

    Raises:
        ValueError: the policy has no world model, or see `make_dreamer`.
    """
    actor = policy(environment.observation_space, environment.action_space)
    if not isinstance(actor, WorldModelPolicy):
        raise ValueError(
            f"`policy` must have a world model for Dreamer, got a {type(actor).__name__}; try policy=world_model."
        )
    return replay_agent(partial(make_dreamer, actor), actor, environment, **options)


def dreamer_losses(
    policy: WorldModelPolicy,
    horizon: int,
    axis_name: str | None,
    numbers: dict[str, Array],
    state: DreamerState,
    key: Array,
    batch: Sample,
    params: Params,
) -> tuple[Array, tuple[dict[str, Array], Array]]:
    """Computes the sum of all losses, and `(losses and other metrics by name, range of the returns)`."""
    model_key, imagine_key = jax.random.split(key)
    length, rows = batch.transition.reward.shape
    keys = sample_keys(model_key, rows, axis_name)
    noise = jax.vmap(lambda key: policy.draw_noise(key, length), out_axes=1)(keys)
    parts, states = model_losses(policy, numbers, batch, noise, params)
    # Row by row, so that the index of a state among all states does not depend on the devices.
    start = jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1).reshape(-1, *leaf.shape[2:]), states)
    fixed = jax.lax.stop_gradient(params)
    imagined = imagine(policy, fixed, imagine_key, start, horizon=horizon, axis_name=axis_name)
    imagined = jax.lax.stop_gradient(imagined)
    logits = policy.values(params["critic"], imagined.states)
    value = jax.lax.stop_gradient(two_hot_mean(logits))
    discounts = numbers["discount"] * imagined.going_on
    never = jnp.zeros(imagined.reward.shape, bool)
    returns = lambda_returns(
        imagined.reward, never, never, value[1:], discount=discounts, trace_decay=numbers["trace_decay"]
    )
    weight = jnp.cumprod(jnp.concatenate([jnp.ones_like(discounts[:1]), discounts[:-1]]), axis=0)
    return_range = _range(returns, axis_name)
    return_range = state.return_range + numbers["range_update_rate"] * (return_range - state.return_range)
    acted = jax.tree.map(lambda leaf: leaf[:-1], imagined.states)
    distribution = policy.act(params, acted)
    advantage = (returns - value[:-1]) / jnp.maximum(1.0, return_range)
    entropy = distribution.entropy()
    policy_losses = -advantage * distribution.log_prob(imagined.action) - numbers["entropy_coefficient"] * entropy
    slow = two_hot_mean(policy.values(state.target_critic, acted))
    value_losses = two_hot_loss(logits[:-1], returns) + two_hot_loss(logits[:-1], jax.lax.stop_gradient(slow))
    parts |= {"policy_loss": jnp.mean(weight * policy_losses), "value_loss": jnp.mean(weight * value_losses)}
    bootstrap = jnp.swapaxes(returns[0].reshape(rows, length), 0, 1)
    parts["replay_value_loss"] = numbers["replay_value_coefficient"] * replay_value_loss(
        policy.values(params["critic"], states),
        two_hot_mean(policy.values(state.target_critic, states)),
        batch,
        bootstrap,
        discount=numbers["discount"],
        trace_decay=numbers["trace_decay"],
    )
    loss = sum(parts.values(), jnp.zeros(()))
    metrics = {"loss": loss, "entropy": jnp.mean(entropy), "imagined_return": jnp.mean(returns)}
    return loss, (parts | metrics, return_range)


def model_losses(
    policy: WorldModelPolicy, numbers: dict[str, Array], batch: Sample, noise: Array, params: Params
) -> tuple[dict[str, Array], LatentState]:
    """Computes the mean losses of the model by name, and the states `[n, B]` of the sequences."""
    transition = batch.transition
    inputs = input_of(transition).replace(noise=noise)
    states, posterior, prior = policy.observe(params, batch.carry, inputs)
    reward_logits, end_logit = policy.outcomes(params, policy.advance(params, states, transition.action))
    names = "free_nats", "dynamics_coefficient", "representation_coefficient"
    losses = {
        "reconstruction_loss": symlog_loss(policy.decode(params, states), transition.observation),
        "reward_loss": two_hot_loss(reward_logits, transition.reward),
        "end_loss": end_loss(end_logit, transition.terminated),
        "kl_loss": balanced_kl(posterior, prior, **{name: numbers[name] for name in names}),
    }
    return {name: jnp.mean(batch.weight[None] * loss) for name, loss in losses.items()}, states


def replay_value_loss(
    logits: Array, slow_value: Array, batch: Sample, bootstrap: Array, *, discount: Array, trace_decay: Array
) -> Array:
    """Computes the mean loss of the critic on replayed steps, whose gradient also reaches the model.

    The targets are `R_t = r_t + discount_t ((1 - trace_decay) b_{t+1} + trace_decay R_{t+1})`, with `discount_t = 0` if
    the step terminated, and the values of the critic's moving average. If the successor of a step is not in the
    sequence, at its end or after a truncation, then `R_t = b_t`, and the step itself does not count.

    Args:
        logits: logits of the critic, `[n, B, K]`.
        slow_value: values of the critic's moving average, `[n, B]`.
        batch: batch of the sequences.
        bootstrap: b, the returns that were imagined from the states of the sequences, `[n, B]`.
        discount: gamma.
        trace_decay: lambda.

    References:
        Hafner et al. (2023), the released code, dreamerv3/agent.py (`repl_loss` and `lambda_return`).
    """
    transition = batch.transition
    unknown = transition.truncated.at[-1].set(True)
    # As if the episode ended there with a reward of b.
    reward = jnp.where(unknown, bootstrap, transition.reward)
    successor = jnp.concatenate([bootstrap[1:], bootstrap[-1:]])
    targets = lambda_returns(
        reward, unknown | transition.terminated, unknown, successor, discount=discount, trace_decay=trace_decay
    )
    targets, slow_value = jax.lax.stop_gradient((targets, slow_value))
    losses = two_hot_loss(logits, targets) + two_hot_loss(logits, slow_value)
    return jnp.mean((batch.weight[None] * jnp.where(unknown, 0.0, losses))[:-1])


def imagine(
    policy: WorldModelPolicy,
    params: Params,
    key: Array,
    start: LatentState,
    *,
    horizon: int,
    axis_name: str | None = None,
) -> Imagined:
    """Lets a policy act in its world model.

    Args:
        policy: policy with its world model.
        params: parameters of both.
        key: PRNG key.
        start: leaves `[N, ...]`.
        horizon: H, number of steps.
        axis_name: mapped axis over which the states are spread.
    """
    rows = start.hidden.shape[0]

    def step(state: LatentState, key: Array) -> tuple[LatentState, tuple[LatentState, Array, Array, Array]]:
        action_key, latent_key = jax.random.split(key)
        action = draw(sample_alone, policy.act(params, state), action_key, axis_name)
        hidden = policy.advance(params, state, action)
        reward_logits, end_logit = policy.outcomes(params, hidden)
        keys = sample_keys(latent_key, rows, axis_name)
        following = policy.foresee(params, hidden, jax.vmap(lambda key: policy.draw_noise(key, 1)[0])(keys))
        return following, (state, action, two_hot_mean(reward_logits), jax.nn.sigmoid(-end_logit))

    last, (states, action, reward, going_on) = jax.lax.scan(step, start, jax.random.split(key, horizon))
    states = jax.tree.map(lambda steps, end: jnp.concatenate([steps, end[None]]), states, last)
    return Imagined(states, action, reward, going_on)


def _range(returns: Array, axis_name: str | None) -> Array:
    """Computes the range between the 5th and 95th percentiles over all devices."""
    if axis_name is not None:
        returns = jax.lax.all_gather(returns, axis_name)
    low, high = jnp.percentile(returns, jnp.array([5.0, 95.0]))
    return high - low
