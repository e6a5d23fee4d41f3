"""Turn values: the outputs of a model with a value head before and after an action, and a step of its fit.

`V_t` is the value at the first token that was sampled in turn t, whose context ends with the observation, and `Q_t` the
value at the last one, whose context includes the action. One head gives both. For fits to pairs of answers, see
`learners.reward_model`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import struct

from jaxagents.learners.microbatches import make_microbatches, score_episodes, weighted_gradient
from jaxagents.learners.optimizers import apply_updates, carry_over, init_optimizer
from jaxagents.ops.episodes import first_action_token_mask, last_action_token_mask
from jaxagents.types import Array, Episode, LanguageModel, Layout, Params


@struct.dataclass
class TurnValueState:
    """Parameters and optimiser state."""

    params: Params
    opt_state: optax.OptState


class TurnValues(NamedTuple):
    """A model of turn values.

    Attributes:
        init: `(params, start=None) -> TurnValueState`; starts as a copy of `params`, or continues from `start`.
        judge: `(params, episode) -> (V, Q)`, both float32 `[B, T]`, 0 in turns without a sampled token.
        step: `(state, episode, slope of V, slope of Q) -> state`: one optimiser step along the gradient of a loss with
            these derivatives in V and Q, `[B, T]`, averaged over devices.
    """

    init: Callable[..., TurnValueState]
    judge: Callable[[Params, Episode], tuple[Array, Array]]
    step: Callable[[TurnValueState, Episode, Array | float, Array | float], TurnValueState]


def make_turn_values(
    model: LanguageModel,
    layout: Layout,
    optimizer: optax.GradientTransformation,
    *,
    microbatch_tokens: int = 4096,
    axis_name: str | None = None,
) -> TurnValues:
    """Makes a model of turn values.

    Args:
        model: language model with a value head.
        layout: layout of the episodes.
        optimizer: optimiser of all parameters of the model.
        microbatch_tokens: approximate number of tokens per pass through the model.
        axis_name: mapped device axis to average gradients over.

    Returns:
        The functions.

    Raises:
        ValueError: the model has no value head.
    """
    if model.value is None:
        raise ValueError("`model` must have a value head to judge turns; try model.network.value_head=true.")
    microbatches = make_microbatches(layout, microbatch_tokens=microbatch_tokens)

    def init(params: Params, start: TurnValueState | None = None) -> TurnValueState:
        params = jax.tree.map(jnp.copy, params) if start is None else start.params
        opt_state = init_optimizer(optimizer, params)
        return TurnValueState(params, opt_state if start is None else carry_over(opt_state, start.opt_state))

    def judge(params: Params, episode: Episode) -> tuple[Array, Array]:
        value: Any = score_episodes(model, microbatches, params, episode, fields=("value",)).value
        before = jnp.sum(jnp.where(first_action_token_mask(episode), value, 0.0), axis=2)
        return before, jnp.sum(jnp.where(last_action_token_mask(episode), value, 0.0), axis=2)

    def step(state: TurnValueState, episode: Episode, before: Array | float, after: Array | float) -> TurnValueState:
        shape = episode.valid.shape
        slope = jnp.where(first_action_token_mask(episode), jnp.broadcast_to(before, shape)[:, :, None], 0.0)
        slope += jnp.where(last_action_token_mask(episode), jnp.broadcast_to(after, shape)[:, :, None], 0.0)
        grads = weighted_gradient(model, microbatches, state.params, episode, "value", slope)
        return TurnValueState(*apply_updates(grads, state.params, state.opt_state, optimizer, axis_name=axis_name)[:2])

    return TurnValues(init=init, judge=judge, step=step)


def cross_entropy(value: Array, target: Array, counted: Array, *, axis_name: str | None = None) -> tuple[Array, Array]:
    """Computes the mean of `-y log sigmoid(v) - (1 - y) log sigmoid(-v)` over the turns that count.

    Args:
        value: v, float32 `[B, T]`.
        target: y, bool `[B, T]`.
        counted: bool `[B, T]`, turns that count.
        axis_name: mapped device axis.

    Returns:
        The loss, and its derivative in v, `[B, T]`.
    """
    loss = optax.sigmoid_binary_cross_entropy(value, target.astype(jnp.float32))
    return _mean(loss, jax.nn.sigmoid(value) - target, counted, axis_name)


def squared_error(value: Array, target: Array, counted: Array, *, axis_name: str | None = None) -> tuple[Array, Array]:
    """Computes the mean of `(v - y)^2` over the turns that count, and its derivative in v; see `cross_entropy`."""
    return _mean(jnp.square(value - target), 2.0 * (value - target), counted, axis_name)


def _mean(loss: Array, slope: Array, counted: Array, axis_name: str | None) -> tuple[Array, Array]:
    count = jnp.sum(counted, dtype=jnp.float32)
    # Gradients are averaged over devices, which may have different numbers of turns.
    count = jnp.maximum(count if axis_name is None else jax.lax.pmean(count, axis_name), 1.0)
    total = jnp.sum(jnp.where(counted, loss, 0.0)) / count
    total = total if axis_name is None else jax.lax.pmean(total, axis_name)
    return total, jnp.where(counted, slope, 0.0) / count
