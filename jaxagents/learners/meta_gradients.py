"""Meta-gradients (Xu et al., 2018): hyper-parameters that are learned through a learner's own updates."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from jaxagents.learners.checks import check_fractions
from jaxagents.learners.combinators import params_of, replace_innermost, start_of_inner, steps_per_update, wrap
from jaxagents.learners.optimizers import apply_updates, carry_over
from jaxagents.learners.ppo import make_ppo, values_of
from jaxagents.ops.advantages import generalized_advantage
from jaxagents.policies.actor_critic import as_policy
from jaxagents.types import ActorCritic, Agent, Array, Environment, Learner, Metrics, Params, PyTree, Rollout

_EDGE = 1e-3  # Least distance of initial numbers from 0 and 1, where a sigmoid has no slope.


@struct.dataclass
class MetaGradientState:
    """State of the inner learner, logits of the learned hyper-parameters, and the state of their optimiser."""

    inner: Any
    logits: dict[str, Array]
    opt_state: optax.OptState

    @property
    def params(self) -> Params:
        """Returns the parameters of the inner learner."""
        return self.inner.params


def with_meta_gradients(
    learner: Learner,
    objective: Callable[[Params, Rollout], Array],
    optimizer: optax.GradientTransformation,
    *,
    learned: Sequence[str] = ("discount", "trace_decay"),
    axis_name: str | None = None,
) -> Learner:
    """Makes a learner some of whose hyper-parameters follow the gradient of an objective through its own update.

    A rollout is split in two: with numbers `eta = sigmoid(x)`, the learner goes from theta to `theta'(eta)` on the
    earlier half; then x follows `-d objective(theta'(eta), later half) / dx`, and the learner learns from the later
    half with the new numbers.

    Args:
        learner: learner for rollouts; its hyper-parameters are arrays in its state. Its update is differentiated: Adam
            needs an `eps_root`, because the square root has no finite slope at zero, and stopped gradients, such as
            those of the targets in usual value losses, hide the effect of a number.
        objective: `(params, rollout) -> float []`, objective of the learned numbers, such as
            `policy_gradient_objective`.
        optimizer: optimiser of the logits x.
        learned: names of hyper-parameters in [0, 1] without schedules; those at 0 or 1 start 0.001 inside the interval.
        axis_name: mapped device axis to average gradients over.

    Returns:
        The learner. Metrics are those of the later half, every learned number, and `meta_objective`.

    Raises:
        ValueError: no number is to be learned, or the learner has no such number; when an update is traced, the number
            of steps of a rollout is odd.

    References:
        Xu, van Hasselt and Silver (2018), Meta-gradient reinforcement learning, equations 3 to 8.

    Deviation: the validation sample is the later half of the same rollout; the derivative is exact for one update, and
        does not extend through earlier updates.
    """
    if not learned:
        raise ValueError("`learned` must name a hyper-parameter, got none; try [discount, trace_decay].")

    def init(key: Array, start: MetaGradientState | Params | None = None) -> MetaGradientState:
        inner = learner.init(key, start_of_inner(start, MetaGradientState))
        if isinstance(start, MetaGradientState):
            return start.replace(inner=inner, opt_state=carry_over(optimizer.init(start.logits), start.opt_state))
        numbers = {name: n for name, n in _innermost(inner).settings.numbers.items() if not isinstance(n, dict)}
        if unknown := set(learned) - set(numbers):
            raise ValueError(
                f"`learned` must be hyper-parameters without schedules, got {sorted(unknown)}; try {sorted(numbers)}."
            )
        share = {name: jnp.clip(numbers[name], _EDGE, 1.0 - _EDGE) for name in learned}
        logits = {name: jnp.log(value) - jnp.log1p(-value) for name, value in share.items()}
        return MetaGradientState(inner=inner, logits=logits, opt_state=optimizer.init(logits))

    def learn(logits: dict[str, Array], inner: Any, key: Array, rollout: Rollout) -> tuple[Any, Metrics]:
        numbers = {name: jax.nn.sigmoid(value) for name, value in logits.items()}

        def tell(state: Any) -> Any:
            return state.replace(settings=state.settings.replace(numbers=state.settings.numbers | numbers))

        return learner.update(replace_innermost(inner, tell), key, rollout)

    def update(state: MetaGradientState, key: Array, rollout: Rollout) -> tuple[MetaGradientState, Metrics]:
        earlier_key, later_key = jax.random.split(key)
        earlier, later = halves(rollout)

        def foresee(logits: dict[str, Array]) -> tuple[Array, Any]:
            inner, _ = learn(logits, state.inner, earlier_key, earlier)
            return objective(params_of(inner), later), inner

        (value, inner), grads = jax.value_and_grad(foresee, has_aux=True)(state.logits)
        value = value if axis_name is None else jax.lax.pmean(value, axis_name)
        logits, opt_state, _ = apply_updates(grads, state.logits, state.opt_state, optimizer, axis_name=axis_name)
        inner, metrics = learn(logits, inner, later_key, later)
        own = {name: jax.nn.sigmoid(number) for name, number in logits.items()} | {"meta_objective": value}
        return MetaGradientState(inner=inner, logits=logits, opt_state=opt_state), {**metrics, **own}

    return wrap(learner, init, update)


def halves(rollout: Rollout) -> tuple[Rollout, Rollout]:
    """Returns the earlier and the later half of the steps of a rollout.

    Raises:
        ValueError: the number of steps is odd.
    """
    num_steps = rollout.transition.terminated.shape[0]
    if num_steps % 2:
        raise ValueError(f"`num_steps` must be even to be halved, got {num_steps}; try {num_steps + 1}.")
    middle = num_steps // 2

    def part(start: int) -> Rollout:
        def cut(tree: PyTree, length: int) -> PyTree:
            return jax.tree.map(lambda leaf: leaf[start : start + length], tree)

        # There is a carry before every step, and one after the last.
        return Rollout(transition=cut(rollout.transition, middle), carry=cut(rollout.carry, middle + 1))

    return part(0), part(middle)


def policy_gradient_objective(
    actor_critic: ActorCritic, params: Params, rollout: Rollout, *, discount: float = 0.99, trace_decay: float = 1.0
) -> Array:
    """Computes `-mean(A log pi(a | s))` for a rollout; advantages use fixed numbers and pass no gradient.

    References:
        Xu, van Hasselt and Silver (2018), Meta-gradient reinforcement learning, equations 7 and 10.

    Deviation: there are no losses of value and entropy, which the numbers could reduce without better actions.
    """
    distribution, value, next_value = values_of(actor_critic, params, rollout)
    transition = rollout.transition
    ends = transition.terminated, transition.truncated
    advantage = generalized_advantage(
        transition.reward, value, next_value, *ends, discount=discount, trace_decay=trace_decay
    )
    return -jnp.mean(jax.lax.stop_gradient(advantage) * distribution.log_prob(transition.action))


def open_squared_loss(value: Array, old_value: Array, target: Array) -> Array:
    """Computes `0.5 (value - target)^2` per element, with gradients to the target, so that numbers learn through it."""
    del old_value
    return 0.5 * jnp.square(value - target)


def make_agent(
    environment: Environment,
    *,
    policy: Callable[..., ActorCritic],
    optimizer: Callable[..., optax.GradientTransformation],
    meta_optimizer: Callable[..., optax.GradientTransformation],
    learned: Sequence[str] = ("discount", "trace_decay"),
    outer_discount: float = 0.99,
    outer_trace_decay: float = 1.0,
    axis_name: str | None = None,
    **options: Any,
) -> Agent:
    """Assembles PPO that learns some of its hyper-parameters.

    Args:
        environment: environment that defines the spaces.
        policy: `(observation_space, action_space) -> ActorCritic`.
        optimizer: `(optimiser steps of the whole run) -> optax.GradientTransformation`.
        meta_optimizer: `(updates of the whole run) -> optax.GradientTransformation` for the hyper-parameters.
        learned: see `with_meta_gradients`.
        outer_discount: see `policy_gradient_objective`.
        outer_trace_decay: see `policy_gradient_objective`.
        axis_name: see `make_ppo`.
        **options: further arguments of `make_ppo`.
    """
    check_fractions(outer_discount=outer_discount, outer_trace_decay=outer_trace_decay)
    actor_critic = policy(environment.observation_space, environment.action_space)
    if not isinstance(actor_critic, ActorCritic):
        kind = type(actor_critic).__name__
        raise ValueError(f"`policy` must have a critic for meta-gradients, got a {kind} without one; try policy=mlp.")
    options.setdefault("value_loss", open_squared_loss)
    objective = partial(policy_gradient_objective, actor_critic, discount=outer_discount, trace_decay=outer_trace_decay)

    def make_learner(num_updates: int) -> Learner:
        steps = 2 * num_updates * steps_per_update(make_ppo, options)
        learner = make_ppo(actor_critic, optimizer(steps), num_updates=2 * num_updates, axis_name=axis_name, **options)
        return with_meta_gradients(
            learner, objective, meta_optimizer(num_updates), learned=tuple(learned), axis_name=axis_name
        )

    jax.eval_shape(make_learner(1).init, jax.random.key(0))  # Refuses invalid settings before anything is compiled.
    return Agent(policy=as_policy(actor_critic), make_learner=lambda collector, num_updates: make_learner(num_updates))


def _innermost(state: Any) -> Any:
    return _innermost(state.inner) if hasattr(state, "inner") else state
