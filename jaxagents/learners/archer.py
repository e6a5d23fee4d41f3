"""ArCHer (Zhou et al., 2024): turn values from temporal differences on stored turns; fresh actions earn them."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from jaxagents.learners import policy_gradient
from jaxagents.learners.combinators import params_of, rollout_shapes, start_of_inner, wrap, wrapper_agent
from jaxagents.learners.stores import draw_rows, empty_store
from jaxagents.learners.turn_values import TurnValues, TurnValueState, make_turn_values, squared_error
from jaxagents.ops.checks import check_counts, require_between
from jaxagents.ops.episodes import acting_turns, kept_rows
from jaxagents.ops.rows import put_in_front, rows_of_all_devices, share_of_device
from jaxagents.types import Agent, Array, Collector, Environment, Episode, LanguagePolicy, Learner, Metrics, Params

NUM_CRITICS = 2


@struct.dataclass
class ArcherState:
    """States of the actor and its critics, target parameters, own episodes `[C, ...]`, and number of updates."""

    inner: Any
    critics: tuple[TurnValueState, ...]
    targets: tuple[Params, ...]
    store: Episode
    filled: Array
    num_updates: Array

    @property
    def params(self) -> Params:
        """Returns the parameters that are trained."""
        return self.inner.params


def make_archer(
    actor: Learner,
    values: TurnValues,
    utter: Callable[[Params, Array, Episode], Episode],
    example: Episode,
    *,
    capacity: int,
    value_batch_size: int,
    batch_size: int,
    num_value_steps: int,
    num_steps: int = 1,
    num_exploring: int = 0,
    discount: float = 0.9,
    target_update_rate: float = 0.1,
    axis_name: str | None = None,
) -> Learner:
    """Makes a learner of turn values by temporal differences on stored turns, and of tokens from fresh actions' values.

    In every step of the critics, on drawn episodes, with a ~ pi drawn again in every state and bars for targets, which
    follow with `target_update_rate`:

        `Q_j(s_t, a_t) -> r_t + discount Vbar_j(s_{t+1})`,  `V_j(s_t) -> Qbar_j(s_t, a)`,

    and nothing after the last turn. In every step of the actor, a turn of other drawn episodes, again with a ~ pi,
    earns `min_j Q_j(s, a) - min_j V_j(s)`.

    Args:
        actor: policy-gradient learner of `Episode`s whose credit is the reward of the turn, such as
            `advantage=reinforce` with `discount: 0` and `baseline: 0`.
        values: Q and V of a critic.
        utter: `(params, key, episode) -> Episode` with fresh actions, see `language.utterances`.
        example: batch of arrays or `ShapeDtypeStruct`s, which defines the shapes.
        capacity: C, number of stored own episodes; the oldest ones are forgotten first.
        value_batch_size: number of episodes in a step of the critics.
        batch_size: number of episodes in a step of the actor.
        num_value_steps: number of steps of the critics per update.
        num_steps: number of steps of the actor per update.
        num_exploring: number of first updates in which only the critics learn.
        discount: per turn, in [0, 1].
        target_update_rate: target update rate in [0, 1].
        axis_name: mapped device axis. Every device stores the episodes of all, and takes its share of those of a step.

    Returns:
        The learner. Metrics are those of the actor, `q_loss` and `v_loss` of the first critic, and `stored`.

    Raises:
        ValueError: a count is not positive, or a number out of its range.

    References:
        Zhou et al. (2024), "ArCHer: Training Language Model Agents via Hierarchical Multi-Turn RL", algorithm 1.
        YifeiZhou02/ArCHer@1bcbf80, archer/algorithms/archer/trainer.py:52-76 (critics), 211-224 (actor).

    Deviation: one head gives Q and V, see `turn_values`. Both critics start as the policy, and each is fitted to a
        random half of the drawn episodes; the authors' critics have different initial heads and are fitted to all of
        them.
    """
    check_counts(capacity=capacity, batch_size=batch_size, num_steps=num_steps, num_value_steps=num_value_steps)
    check_counts(value_batch_size=value_batch_size)
    for name, number in {"discount": discount, "target_update_rate": target_update_rate}.items():
        require_between(name, number, 0.0, 1.0)

    def init(key: Array, start: ArcherState | Params | None = None) -> ArcherState:
        inner = actor.init(key, start_of_inner(start, ArcherState))
        earlier = start.critics if isinstance(start, ArcherState) else (None,) * NUM_CRITICS
        critics = tuple(values.init(params_of(inner), one) for one in earlier)
        targets = tuple(jax.tree.map(jnp.copy, critic.params) for critic in critics)
        return ArcherState(
            inner=inner,
            critics=critics,
            targets=start.targets if isinstance(start, ArcherState) else targets,
            store=empty_store(example, capacity),
            filled=jnp.zeros(capacity, bool),
            num_updates=jnp.int32(0),
        )

    def draw(state: ArcherState, key: Array, size: int) -> tuple[Episode, Episode]:
        """Draws stored episodes of this device, and a copy of them with fresh actions."""
        draw_key, say_key = jax.random.split(key)
        rows = draw_rows(draw_key, state.filled, size)
        episode = share_of_device(jax.tree.map(lambda leaf: leaf[rows], state.store), axis_name)
        say_key = say_key if axis_name is None else jax.random.fold_in(say_key, jax.lax.axis_index(axis_name))
        return episode, utter(params_of(state.inner), say_key, episode)

    def fit(state: ArcherState, key: Array) -> tuple[ArcherState, Metrics]:
        draw_key, half_key = jax.random.split(key)
        episode, fresh = draw(state, draw_key, value_batch_size)
        critics, targets, losses = [], [], []
        for number, (critic, target) in enumerate(zip(state.critics, state.targets, strict=True)):
            half = jax.random.bernoulli(jax.random.fold_in(half_key, number), 0.5, episode.success.shape)
            critic, loss = _fit_critic(values, critic, target, episode, fresh, half, discount, axis_name)
            critics.append(critic)
            targets.append(optax.incremental_update(critic.params, target, target_update_rate))
            losses.append(loss)
        return state.replace(critics=tuple(critics), targets=tuple(targets)), losses[0]

    def act(state: ArcherState, key: Array) -> tuple[ArcherState, Metrics]:
        draw_key, update_key = jax.random.split(key)
        _, fresh = draw(state, draw_key, batch_size)
        before, after = zip(*(values.judge(critic.params, fresh) for critic in state.critics), strict=True)
        earned = jnp.min(jnp.stack(after), axis=0) - jnp.min(jnp.stack(before), axis=0)
        inner, metrics = actor.update(state.inner, update_key, fresh.replace(reward=earned))
        ready = state.num_updates >= num_exploring
        inner = jax.tree.map(lambda new, old: jnp.where(ready, new, old), inner, state.inner)
        return state.replace(inner=inner), metrics

    def update(state: ArcherState, key: Array, batch: Episode) -> tuple[ArcherState, Metrics]:
        fit_key, act_key = jax.random.split(key)
        rows, kept = rows_of_all_devices((batch, kept_rows(batch)), axis_name)
        store, filled = put_in_front(state.store, state.filled, rows, kept)
        state = state.replace(store=store, filled=filled)
        state, losses = jax.lax.scan(fit, state, jax.random.split(fit_key, num_value_steps))
        state, metrics = jax.lax.scan(act, state, jax.random.split(act_key, num_steps))
        means = jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), {**metrics, **losses})
        return state.replace(num_updates=state.num_updates + 1), means | {"stored": jnp.sum(filled, dtype=jnp.float32)}

    return wrap(actor, init, update)


def turn_targets(reward: Array, value: Array, acting: Array, *, discount: float) -> Array:
    """Computes `r_t + discount V(s_{t+1})`, without the second term after the last turn.

    Args:
        reward: float32 `[B, T]`.
        value: V of the states of the turns, float32 `[B, T]`.
        acting: bool `[B, T]`, whether something was sampled in each turn.
        discount: per turn.

    Returns:
        float32 `[B, T]`.
    """
    following = jnp.where(acting[:, 1:], value[:, 1:], 0.0)
    return reward + discount * jnp.pad(following, ((0, 0), (0, 1)))


def _fit_critic(
    values: TurnValues,
    critic: TurnValueState,
    target: Params,
    episode: Episode,
    fresh: Episode,
    chosen: Array,
    discount: float,
    axis_name: str | None,
) -> tuple[TurnValueState, Metrics]:
    """Takes one step of a critic on the chosen episodes, whose fresh actions are those of `fresh`."""
    acting = acting_turns(episode)
    counted = acting & chosen[:, None]
    value, action_value = values.judge(critic.params, episode)
    goal = turn_targets(episode.reward, values.judge(target, episode)[0], acting, discount=discount)
    q_loss, q_slope = squared_error(action_value, goal, counted, axis_name=axis_name)
    v_loss, v_slope = squared_error(value, values.judge(target, fresh)[1], counted, axis_name=axis_name)
    return values.step(critic, episode, v_slope, q_slope), {"q_loss": q_loss, "v_loss": v_loss}


def make_agent(
    environment: Environment,
    *,
    utterances: Callable[[LanguagePolicy], Callable[[Params, Array, Episode], Episode]],
    value_optimizer: Callable[..., optax.GradientTransformation],
    capacity: int,
    value_batch_size: int,
    batch_size: int,
    num_value_steps: int,
    num_steps: int = 1,
    num_exploring: int = 0,
    discount: float = 0.9,
    target_update_rate: float = 0.1,
    microbatch_tokens: int = 4096,
    axis_name: str | None = None,
    **options: Any,
) -> Agent:
    """Assembles ArCHer for a text world with one seat whose observations are complete.

    Args:
        environment: text world with one seat.
        utterances: see `language.utterances.make_utterances`.
        value_optimizer: `(steps of a critic in the whole run) -> optax.GradientTransformation`.
        capacity: see `make_archer`, also for the following arguments.
        value_batch_size: see there.
        batch_size: see there.
        num_value_steps: see there.
        num_steps: see there.
        num_exploring: see there.
        discount: see there.
        target_update_rate: see there.
        microbatch_tokens: approximate number of tokens per pass through the model.
        axis_name: see `make_archer`.
        **options: further arguments of `learners.policy_gradient.make_agent`; the policy has a value head.
    """
    both: dict[str, Any] = {"microbatch_tokens": microbatch_tokens, "axis_name": axis_name}
    agent = policy_gradient.make_agent(environment, **both, **options)
    policy = agent.policy
    utter = utterances(policy)

    def change(learner: Learner, collector: Collector, num_updates: int) -> Learner:
        values = make_turn_values(policy.model, policy.layout, value_optimizer(num_updates * num_value_steps), **both)
        return make_archer(
            learner,
            values,
            utter,
            rollout_shapes(collector, policy),
            capacity=capacity,
            value_batch_size=value_batch_size,
            batch_size=batch_size,
            num_value_steps=num_value_steps,
            num_steps=num_steps,
            num_exploring=num_exploring,
            discount=discount,
            target_update_rate=target_update_rate,
            axis_name=axis_name,
        )

    return wrapper_agent(agent, change)
