"""Policies that remove noise from actions step by step: diffusion policies."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from jaxagents.ops.distributions import TanhNormal, is_bounded, require_vector, unsquash
from jaxagents.types import Array, Box, Carry, Params, PolicyInput, PyTree, Sample

_SCALE = 1e-3  # Scale of the distribution around the end of the chain, before squashing.


class DiffusionPolicy(NamedTuple):
    """A `Policy` whose action is the end of a denoising chain, and the parts of the chain.

    Attributes:
        init: see `Policy`.
        initial_carry: see `Policy`.
        apply: see `Policy`; the distribution is nearly a point.
        draw_noise: see `Policy`; noise of the chain, float32 `[T, K, D]`. Without it, as in greedy acting, only the
            observation determines the noise: the same observation gives the same action.
        predict_noise: `(params, observation [..., S], noisy [..., D], step [...]) -> [..., D]`, for actions in [-1, 1].
        signal: float32 `[K]`, the product of `1 - beta` up to every step, decreasing.
    """

    init: Callable[[Array], Params]
    initial_carry: Callable[[tuple[int, ...]], Carry]
    apply: Callable[[Params, Carry, PolicyInput], tuple[Carry, TanhNormal]]
    draw_noise: Callable[[Array, int], PyTree]
    predict_noise: Callable[[Params, Array, Array, Array], Array]
    signal: np.ndarray


def make_diffusion_policy(
    observation_space: Box, action_space: Box, *, encoder: nn.Module, num_diffusion_steps: int = 20
) -> DiffusionPolicy:
    """Makes a policy that starts with normal noise, and predicts and removes noise in K steps.

    Args:
        observation_space: space of a vector.
        action_space: space of a bounded vector.
        encoder: `[..., S + D + K]` -> features `[..., F]`: for the observation, the noisy action and the one-hot step.
        num_diffusion_steps: K, number of steps.

    Returns:
        The policy, with parameters `{"encoder", "head"}`.

    Raises:
        ValueError: a space is not a vector, the actions are not bounded, or there are no steps.

    References:
        Ho, Jain and Abbeel (2020), Denoising diffusion probabilistic models, algorithm 2; Nichol and Dhariwal (2021),
        equation 17 (cosine schedule); Chi et al. (2023), Diffusion policy.

    Deviation: one action at a time, without chunks; a dense network.
    """
    for name, space in (("observation_space", observation_space), ("action_space", action_space)):
        require_vector(name, space, "try `make_policy`")
    if not is_bounded(action_space):
        raise ValueError(f"`action_space` must be bounded, got {action_space}; clip the actions.")
    if num_diffusion_steps < 1:
        raise ValueError(f"`num_diffusion_steps` must be at least 1, got {num_diffusion_steps}; try 20.")
    count, size = num_diffusion_steps, action_space.shape[0]
    head, signal = nn.Dense(size), cosine_signal(count)

    def join(observation: Array, noisy: Array, step: Array) -> Array:
        return jnp.concatenate([observation.astype(jnp.float32), noisy, jax.nn.one_hot(step, count)], axis=-1)

    def init(key: Array) -> Params:
        encoder_key, head_key = jax.random.split(key)
        inputs = jnp.zeros((1, observation_space.shape[0] + size + count))
        features, params = encoder.init_with_output(encoder_key, inputs)
        return {"encoder": params, "head": head.init(head_key, features)}

    def predict_noise(params: Params, observation: Array, noisy: Array, step: Array) -> Array:
        features = encoder.apply(params["encoder"], join(observation, noisy, step))
        return head.apply(params["head"], features)

    def apply(params: Params, carry: Carry, inputs: PolicyInput) -> tuple[Carry, TanhNormal]:
        leading = inputs.first.shape
        noise = _noise_of(inputs.observation, (count, size)) if inputs.noise is None else inputs.noise

        def denoise(noisy: Array, step: Array) -> tuple[Array, None]:
            index = jnp.broadcast_to(step, leading)
            predicted = predict_noise(params, inputs.observation, noisy, index)
            mean, scale = posterior(noisy, predicted, step, signal)
            return mean + scale * jnp.where(step > 0, noise[..., step, :], 0.0), None

        action, _ = jax.lax.scan(denoise, noise[..., 0, :], jnp.arange(count)[::-1])
        loc = unsquash(action, low=-1.0, high=1.0)
        low, high = float(action_space.low), float(action_space.high)
        distribution = TanhNormal(loc=loc, scale=jnp.full_like(loc, _SCALE), low=low, high=high)
        return carry, distribution.mask(inputs.action_mask)

    return DiffusionPolicy(
        init=init,
        initial_carry=lambda batch_shape: (),
        apply=apply,
        draw_noise=lambda key, num_steps: jax.random.normal(key, (num_steps, count, size)),
        predict_noise=predict_noise,
        signal=signal,
    )


def cosine_signal(num_steps: int) -> np.ndarray:
    """Computes `prod_{j <= k} (1 - beta_j)` for k in `0 .. num_steps - 1`, with betas bounded by 0.999.

    References:
        Nichol and Dhariwal (2021), Improved denoising diffusion probabilistic models, equation 17.
    """
    places = np.arange(num_steps + 1) / num_steps
    cosine = np.cos((places + 0.008) / 1.008 * np.pi / 2.0) ** 2
    return np.cumprod(1.0 - np.minimum(1.0 - cosine[1:] / cosine[:-1], 0.999)).astype(np.float32)


def _noise_of(observation: Array, shape: tuple[int, ...]) -> Array:
    """Draws normal noise `[..., *shape]` that depends only on the observation `[..., S]`.

    A chain that starts at zero ends between the modes of the data, where there may be no data.
    """
    bits = jax.lax.bitcast_convert_type(observation.astype(jnp.float32), jnp.uint32)
    odd = np.random.default_rng(0).integers(1 << 31, size=bits.shape[-1], dtype=np.uint32) * 2 + 1
    seeds = jnp.sum(bits * jnp.broadcast_to(jnp.asarray(odd, jnp.uint32), bits.shape), axis=-1, dtype=jnp.uint32)
    keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(0), seeds.reshape(-1))
    return jax.vmap(lambda key: jax.random.normal(key, shape))(keys).reshape(*seeds.shape, *shape)


def posterior(noisy: Array, predicted: Array, step: Array, signal: np.ndarray) -> tuple[Array, Array]:
    """Computes mean and scale of the action one step earlier, given the predicted noise.

    Args:
        noisy: float `[..., D]`, action after step `step`.
        predicted: float `[..., D]`, predicted noise.
        step: int `[]`.
        signal: see `DiffusionPolicy`.

    Returns:
        The mean `[..., D]`, for an action that is clipped to [-1, 1], and the scale `[]`.

    References:
        Ho, Jain and Abbeel (2020), equations 6, 7 and 15.
    """
    now = jnp.asarray(signal)[step]
    before = jnp.where(step > 0, jnp.asarray(signal)[jnp.maximum(step - 1, 0)], 1.0)
    action = jnp.clip((noisy - jnp.sqrt(1.0 - now) * predicted) / jnp.sqrt(now), -1.0, 1.0)
    beta = 1.0 - now / before
    mean = (jnp.sqrt(before) * beta * action + jnp.sqrt(now / before) * (1.0 - before) * noisy) / (1.0 - now)
    return mean, jnp.sqrt(beta * (1.0 - before) / (1.0 - now))


def denoising_objective(
    policy: DiffusionPolicy, params: Params, key: Array, batch: Sample, axis_name: str | None = None
) -> Array:
    """Computes `|noise - predict_noise(sqrt(signal_k) a + sqrt(1 - signal_k) noise, k)|^2` for a random step k.

    Args:
        policy: see `make_diffusion_policy`.
        params: parameters of the policy.
        key: PRNG key of steps and noise; the random stream of a sequence is folded in by its global index.
        batch: leaves `[n, B, ...]`.
        axis_name: mapped axis over which the batch is spread.

    Returns:
        float32 `[n, B]`, the mean over the dimensions of an action.

    References:
        Ho, Jain and Abbeel (2020), equation 14; Chi et al. (2023), equation 5.
    """
    action = jnp.tanh(batch.transition.action)
    length, size = action.shape[:2]
    start = 0 if axis_name is None else jax.lax.axis_index(axis_name) * size

    def draw(index: Array) -> tuple[Array, Array]:
        step_key, noise_key = jax.random.split(jax.random.fold_in(key, index))
        step = jax.random.randint(step_key, (length,), 0, len(policy.signal))
        return step, jax.random.normal(noise_key, (length, action.shape[-1]))

    step, noise = jax.vmap(draw, out_axes=1)(start + jnp.arange(size))
    signal = jnp.asarray(policy.signal)[step][..., None]
    noisy = jnp.sqrt(signal) * action + jnp.sqrt(1.0 - signal) * noise
    predicted = policy.predict_noise(params, batch.transition.observation, noisy, step)
    return jnp.mean(jnp.square(predicted - noise), axis=-1)
