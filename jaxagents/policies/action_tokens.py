"""Policies that decode an action as one token per number, or all of its numbers in one pass."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from jaxagents.ops.distributions import TanhNormal, is_bounded, require_vector, unsquash
from jaxagents.types import Array, Box, Carry, Params, PolicyInput, PyTree, Sample

_SCALE = 1e-3  # Scale of the distribution around the action, before squashing.


class DecodedPolicy(NamedTuple):
    """A `Policy` whose distribution is nearly a point, and the loss that trains it.

    Attributes:
        init: see `Policy`.
        initial_carry: see `Policy`.
        apply: see `Policy`.
        draw_noise: None: the most probable token is taken.
        loss: `(params, observation [..., S], action [..., D]) -> [...]`, for actions in [-1, 1].
    """

    init: Callable[[Array], Params]
    initial_carry: Callable[[tuple[int, ...]], Carry]
    apply: Callable[[Params, Carry, PolicyInput], tuple[Carry, TanhNormal]]
    draw_noise: Callable[[Array, int], PyTree] | None
    loss: Callable[[Params, Array, Array], Array]


def make_token_policy(
    observation_space: Box, action_space: Box, *, encoder: nn.Module, num_bins: int = 256
) -> DecodedPolicy:
    """Makes a policy that chooses a bin for each number of the action in turn, given the numbers before it.

    An action of D numbers takes D passes through the network. The loss is the mean cross-entropy of the bins, each
    given the right bins before it.

    Args:
        observation_space: space of a vector.
        action_space: space of a bounded vector.
        encoder: `[..., S + 2 D]` -> features `[..., F]`: for the observation, the numbers so far, and which one is
            next.
        num_bins: number of equal parts of a number's range, whose midpoints are the actions.

    Returns:
        The policy, with parameters `{"encoder", "head"}`.

    Raises:
        ValueError: a space is not a vector, the actions are not bounded, or there are fewer than two bins.

    References:
        Kim et al. (2024), OpenVLA: an open-source vision-language-action model, section 3.2.

    Deviation: bins span the action's range instead of the data's 1st to 99th percentile; the numbers so far are inputs
        of a dense network instead of tokens of a transformer.
    """
    size = _check(observation_space, action_space, num_bins)
    head = nn.Dense(num_bins)
    earlier = jnp.tril(jnp.ones((size, size)), -1)

    def logits_of(params: Params, observation: Array, action: Array) -> Array:
        leading = (1,) * (action.ndim - 1)
        before = action[..., None, :] * earlier.reshape(*leading, size, size)
        seen = jnp.broadcast_to(observation[..., None, :], (*before.shape[:-1], observation.shape[-1]))
        place = jnp.broadcast_to(jnp.eye(size).reshape(*leading, size, size), before.shape)
        features = encoder.apply(params["encoder"], jnp.concatenate([seen, before, place], axis=-1))
        return head.apply(params["head"], features)

    def decode(params: Params, observation: Array) -> Array:
        def choose(action: Array, index: Array) -> tuple[Array, None]:
            chosen = jnp.argmax(logits_of(params, observation, action)[..., index, :], axis=-1)
            return action.at[..., index].set(middle_of(chosen, num_bins)), None

        action = jnp.zeros((*observation.shape[:-1], size))
        return jax.lax.scan(choose, action, jnp.arange(size))[0]

    def loss(params: Params, observation: Array, action: Array) -> Array:
        index = bin_of(action, num_bins)
        return _cross_entropy(logits_of(params, observation, middle_of(index, num_bins)), index)

    return _make_policy(encoder, head, observation_space.shape[0] + 2 * size, decode, loss, action_space)


def make_parallel_policy(
    observation_space: Box, action_space: Box, *, encoder: nn.Module, num_bins: int | None = None
) -> DecodedPolicy:
    """Makes a policy that outputs all numbers of an action in one pass, as numbers or as one bin each.

    The loss is the mean absolute error of the numbers, or the mean cross-entropy of the bins, which are independent of
    each other.

    Args:
        observation_space: space of a vector.
        action_space: space of a bounded vector.
        encoder: observation `[..., S]` -> features `[..., F]`.
        num_bins: see `make_token_policy`; None gives numbers.

    Returns:
        The policy, with parameters `{"encoder", "head"}`.

    Raises:
        ValueError: a space is not a vector, the actions are not bounded, or there are fewer than two bins.

    References:
        Kim, Finn and Liang (2025), Fine-tuning vision-language-action models: optimizing speed and success, section IV.

    Deviation: a dense network; in the paper, a residual network reads the empty places of a transformer with
        bidirectional attention (openvla-oft at 213c5ff, prismatic/models/action_heads.py, lines 84 to 107).
    """
    size = _check(observation_space, action_space, num_bins)
    head = nn.Dense(size * (num_bins or 1))

    def predict(params: Params, observation: Array) -> Array:
        outputs = head.apply(params["head"], encoder.apply(params["encoder"], observation))
        return outputs if num_bins is None else outputs.reshape(*outputs.shape[:-1], size, num_bins)

    def decode(params: Params, observation: Array) -> Array:
        outputs = predict(params, observation)
        return outputs if num_bins is None else middle_of(jnp.argmax(outputs, axis=-1), num_bins)

    def loss(params: Params, observation: Array, action: Array) -> Array:
        outputs = predict(params, observation)
        if num_bins is None:
            return jnp.mean(jnp.abs(outputs - action), axis=-1)
        return _cross_entropy(outputs, bin_of(action, num_bins))

    return _make_policy(encoder, head, observation_space.shape[0], decode, loss, action_space)


def decoding_objective(
    policy: DecodedPolicy, params: Params, key: Array, batch: Sample, axis_name: str | None = None
) -> Array:
    """Computes the policy's own loss on the actions in samples, as the `objective` of `learners.imitation`.

    Args:
        policy: see `make_token_policy` and `make_parallel_policy`.
        params: parameters of the policy.
        key: not used.
        batch: leaves `[n, B, ...]`.
        axis_name: not used.

    Returns:
        float32 `[n, B]`.
    """
    del key, axis_name
    return policy.loss(params, batch.transition.observation, jnp.tanh(batch.transition.action))


def bin_of(action: Array, num_bins: int) -> Array:
    """Returns the bin of [-1, 1] that contains an action, int32 `[...]`."""
    return jnp.clip(jnp.floor((action + 1.0) * (num_bins / 2)), 0, num_bins - 1).astype(jnp.int32)


def middle_of(index: Array, num_bins: int) -> Array:
    """Returns the midpoint of a bin of [-1, 1], float32 `[...]`."""
    return (index + 0.5) * (2.0 / num_bins) - 1.0


def _cross_entropy(logits: Array, index: Array) -> Array:
    """Returns the mean over the numbers of an action, `[...]`, from logits `[..., D, num_bins]`."""
    chosen = jax.nn.one_hot(index, logits.shape[-1], dtype=bool)
    return -jnp.mean(jnp.sum(jnp.where(chosen, jax.nn.log_softmax(logits), 0.0), axis=-1), axis=-1)


def _make_policy(
    encoder: nn.Module,
    head: nn.Module,
    num_inputs: int,
    decode: Callable[[Params, Array], Array],
    loss: Callable[[Params, Array, Array], Array],
    action_space: Box,
) -> DecodedPolicy:
    low, high = float(action_space.low), float(action_space.high)

    def init(key: Array) -> Params:
        encoder_key, head_key = jax.random.split(key)
        features, params = encoder.init_with_output(encoder_key, jnp.zeros((1, num_inputs)))
        return {"encoder": params, "head": head.init(head_key, features)}

    def apply(params: Params, carry: Carry, inputs: PolicyInput) -> tuple[Carry, TanhNormal]:
        loc = unsquash(decode(params, inputs.observation.astype(jnp.float32)), low=-1.0, high=1.0)
        distribution = TanhNormal(loc=loc, scale=jnp.full_like(loc, _SCALE), low=low, high=high)
        return carry, distribution.mask(inputs.action_mask)

    return DecodedPolicy(init=init, initial_carry=lambda batch_shape: (), apply=apply, draw_noise=None, loss=loss)


def _check(observation_space: Box, action_space: Box, num_bins: int | None) -> int:
    for name, space in (("observation_space", observation_space), ("action_space", action_space)):
        require_vector(name, space, "try `make_policy`")
    if not is_bounded(action_space):
        raise ValueError(f"`action_space` must be bounded, got {action_space}; clip the actions.")
    if num_bins is not None and num_bins < 2:
        raise ValueError(f"`num_bins` must be at least 2, got {num_bins}; try 256.")
    return action_space.shape[0]
