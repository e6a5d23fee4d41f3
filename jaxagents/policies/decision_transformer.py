"""Policies conditioned on a target return, which see the latest steps: decision transformers."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct

from jaxagents.networks.heads import CategoricalHead, TanhNormalHead
from jaxagents.networks.windows import StepTokens
from jaxagents.ops.distributions import Categorical, TanhNormal, is_bounded, require_vector
from jaxagents.types import Array, Box, Carry, Discrete, Params, Policy, PolicyInput, Sample, input_of


@struct.dataclass
class Window:
    """Memory of a decision transformer: the latest steps, in order.

    Attributes:
        previous_action: float32 `[B, K - 1, A]`.
        return_to_go: float32 `[B, K - 1, 1]`, scaled.
        observation: float32 `[B, K - 1, D]`.
        age: int32 `[B]`, number of steps of the episode so far; earlier entries are not seen.
        target: float32 `[B]`, remaining return in units of the reward, before the reward of the next step is
            subtracted.
    """

    previous_action: Array
    return_to_go: Array
    observation: Array
    age: Array
    target: Array


def make_decision_transformer(
    observation_space: Box,
    action_space: Discrete | Box,
    *,
    target_return: float,
    return_scale: float = 1.0,
    encoder: nn.Module | None = None,
) -> Policy:
    """Makes a policy that sees the latest K steps: previous actions, remaining target returns, and observations.

    The oldest of the K steps has no previous action, whether or not it begins an episode or a sequence of a data set.

    Args:
        observation_space: space of a vector.
        action_space: discrete space, or that of a bounded vector.
        target_return: target return at the beginning of an episode; rewards are subtracted as they arrive.
        return_scale: number by which returns are divided.
        encoder: see `networks.windows.StepTokens`; None uses its defaults.

    Returns:
        The policy; its carry is a `Window`.

    Raises:
        ValueError: the observations are not a vector, the actions are unbounded, or the scale is not positive.

    References:
        Chen et al. (2021), Decision transformer, section 3; atari/mingpt/model_atari.py of kzl/decision-transformer,
        whose sequences begin with a return and a state.

    Deviation: positions are distances, not absolute time steps; actions are distributions, fitted by likelihood.
    """
    require_vector("observation_space", observation_space, "flatten it")
    if return_scale <= 0.0:
        raise ValueError(f"`return_scale` must be positive, got {return_scale}; try the target return.")
    bounded = is_bounded(action_space)
    if isinstance(action_space, Box) and not bounded:
        raise ValueError(f"`action_space` must be Discrete or a bounded Box, got {action_space}.")
    encoder = StepTokens() if encoder is None else encoder
    size = action_space.num_values if isinstance(action_space, Discrete) else action_space.shape[0]
    head = TanhNormalHead(action_dim=size) if bounded else CategoricalHead(num_actions=size)
    remembered, features = encoder.num_steps - 1, observation_space.shape[0]

    def init(key: Array) -> Params:
        key, head_key = jax.random.split(key)
        parts = tuple(jnp.zeros((1, 1, width)) for width in (size, 1, features))
        encoded, params = encoder.init_with_output(key, parts, jnp.zeros((1, 1), jnp.int32))
        return {"encoder": params, "head": head.init(head_key, encoded)}

    def initial_carry(batch_shape: tuple[int, ...]) -> Window:
        def zeros(width: int) -> Array:
            return jnp.zeros((*batch_shape, remembered, width))

        return Window(
            previous_action=zeros(size),
            return_to_go=zeros(1),
            observation=zeros(features),
            age=jnp.zeros(batch_shape, jnp.int32),
            target=jnp.full(batch_shape, target_return, jnp.float32),
        )

    def apply(params: Params, carry: Window, inputs: PolicyInput) -> tuple[Carry, Any]:
        if inputs.previous_reward is None or inputs.previous_action is None:
            raise ValueError(
                "`previous_reward` and `previous_action` must be told to a decision transformer, got none; act in "
                "rollouts or evaluations."
            )
        length, before = inputs.first.shape[0], carry.observation.shape[1]
        if length > 1 and before:

            def step(carry: Window, step_inputs: PolicyInput) -> tuple[Window, Any]:
                carry, distribution = see(params, carry, jax.tree.map(lambda leaf: leaf[None], step_inputs))
                return carry, jax.tree.map(lambda leaf: leaf[0], distribution)

            return jax.lax.scan(step, carry, inputs)
        if length > encoder.num_steps:
            raise ValueError(
                f"`sequence_length` must be at most the {encoder.num_steps} steps that are seen, got {length}; try "
                f"{encoder.num_steps}."
            )
        return see(params, carry, inputs)

    def see(params: Params, carry: Window, inputs: PolicyInput) -> tuple[Window, Any]:
        """Attends to the window and the steps together; no step sees more steps than the length of the window."""

        def step(state: tuple[Array, Array], step_inputs: tuple[Array, Array]) -> tuple[tuple[Array, Array], Array]:
            left, age = state
            first, reward = step_inputs
            left = jnp.where(first, target_return, left - reward)
            age = jnp.where(first, 0, age)
            return (left, age + 1), left

        (left, age), target = jax.lax.scan(step, (carry.target, carry.age), (inputs.first, inputs.previous_reward))
        action = inputs.previous_action
        action = jnp.tanh(action) if bounded else jax.nn.one_hot(action, size)
        action = jnp.where(inputs.first[..., None], 0.0, action)
        new = (action, target[..., None] / return_scale, inputs.observation.astype(jnp.float32))
        old = (carry.previous_action, carry.return_to_go, carry.observation)
        parts = tuple(jnp.concatenate([a, jnp.swapaxes(b, 0, 1)], axis=1) for a, b in zip(old, new, strict=True))
        episodes = _episodes(carry.age, jnp.swapaxes(inputs.first, 0, 1), carry.observation.shape[1])
        # The action before the oldest step is masked, because training sequences lack it.
        seen = (parts[0].at[:, 0].set(0.0), *parts[1:])
        encoded = encoder.apply(params["encoder"], seen, episodes)
        outputs = head.apply(params["head"], jnp.swapaxes(encoded[:, -inputs.first.shape[0] :], 0, 1))
        if isinstance(action_space, Box):
            low, high = float(action_space.low), float(action_space.high)
            distribution: TanhNormal | Categorical = TanhNormal(loc=outputs[0], scale=outputs[1], low=low, high=high)
        else:
            distribution = Categorical(logits=outputs)
        kept = [part[:, max(part.shape[1] - remembered, 0) :] for part in parts]
        window = Window(previous_action=kept[0], return_to_go=kept[1], observation=kept[2], age=age, target=left)
        return window, distribution.mask(inputs.action_mask)

    return Policy(init=init, initial_carry=initial_carry, apply=apply)


def _episodes(age: Array, first: Array, remembered: int) -> Array:
    """Numbers the episodes of remembered and new steps, int32 `[B, K - 1 + T]`; entries outside any episode are -1."""
    before = jnp.where(jnp.arange(remembered)[None] >= remembered - age[:, None], 0, -1)
    return jnp.concatenate([before, jnp.cumsum(first, axis=1, dtype=jnp.int32)], axis=1)


def condition_on_returns(carry: Window, batch: Sample) -> tuple[Window, PolicyInput, Array]:
    """Computes the inputs of a decision transformer for sequences of a data set, with the returns that were reached.

    Args:
        carry: carry of the policy, at the beginning.
        batch: batch from `make_dataset_collector` with a discount of 1.

    Returns:
        The carry, the inputs, and bool `[n, B]`, the steps that count: those of the episode in which a sequence begins.
    """
    transition = batch.transition
    first = transition.first.at[0].set(False)
    inputs = input_of(transition).replace(
        first=first,
        previous_action=_shift(transition.action),
        previous_reward=_shift(transition.reward),
        noise=None,
    )
    # A sequence has no earlier steps to attend to.
    carry = jax.tree.map(lambda leaf: leaf[:, :0] if leaf.ndim == 3 else leaf, carry)
    return carry.replace(target=transition.extras["return_to_go"][0]), inputs, jnp.cumsum(first, axis=0) == 0


def _shift(values: Array) -> Array:
    return jnp.concatenate([jnp.zeros_like(values[:1]), values[:-1]])
