"""Action values: for all actions of a discrete space, or two or more values for one continuous action."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from jaxagents.networks.heads import ActionValueHead, CosineEmbedding, ValueHead
from jaxagents.networks.torsos import make_torso
from jaxagents.ops.distributions import is_bounded, require_vector
from jaxagents.ops.value_distributions import Values
from jaxagents.types import Array, Box, Carry, Discrete, Params, PolicyInput, PyTree
from jaxagents.values.distributions import EXPECTATIONS, ReturnDistribution


class QFunction(NamedTuple):
    """Values of all actions of a discrete space, over sequences; a feed-forward function has the empty carry `()`.

    Attributes:
        init: `(key) -> params`.
        apply: `(params, carry, PolicyInput) -> (carry, values)` as in a `Policy`; values are `[T, B, A]`, or one of the
            records of `ops.value_distributions`.
        initial_carry: `(batch_shape) -> carry`.
        draw_noise: function as in a `Policy`, for noisy weights and for fractions of distributions; None for others.
        draw_learning_noise: the same for values that are trained, with more fractions (IQN); None: the same as for
            acting.
    """

    init: Callable[[Array], Params]
    apply: Callable[[Params, Carry, PolicyInput], tuple[Carry, Values]]
    initial_carry: Callable[[tuple[int, ...]], Carry] = lambda batch_shape: ()
    draw_noise: Callable[[Array, int], PyTree] | None = None
    draw_learning_noise: Callable[[Array, int], PyTree] | None = None


class TwinQ(NamedTuple):
    """Two or more independent values of one continuous action.

    Attributes:
        init: `(key) -> params`, leaves `[E, ...]` of E critics.
        apply: `(params, observation [..., D], action [..., A]) -> [E, ...]`; actions are unsquashed.
        drop_out: `(params, observation [B, D], action [B, A], keys [B]) -> [E, B]`: like `apply`, with dropout that
            differs between samples; None without dropout.
        fit: `(params, observation, action, axis_name) -> ([E, B], statistics)`: values normalised by the batch, and the
            updated running statistics, see `with_statistics`; None without batch normalisation.
    """

    init: Callable[[Array], Params]
    apply: Callable[[Params, Array, Array], Array]
    drop_out: Callable[[Params, Array, Array, Array], Array] | None = None
    fit: Callable[..., tuple[Array, PyTree]] | None = None


def make_q_function(
    observation_space: PyTree,
    action_space: Discrete,
    *,
    encoder: nn.Module,
    memory: nn.Module | None = None,
    history: bool = False,
    dueling: bool = False,
    noise_scale: float | None = None,
    distribution: ReturnDistribution | None = None,
) -> QFunction:
    """Makes the values of all actions of a discrete space.

    Args:
        observation_space: observation space of one agent.
        action_space: space of A actions.
        encoder: observation `[..., *shape]` -> features `[..., D]`.
        memory: recurrent module of `networks.recurrent`; None for a feed-forward function.
        history: whether the memory also reads the previous action, one-hot, and the previous reward, as in R2D2.
        dueling: whether to add a state value and centred advantages (Wang et al., 2016), instead of one linear layer.
        noise_scale: initial scale of the noise of the last layers' weights (Fortunato et al., 2018: 0.5); None: no
            noise.
        distribution: predicted distribution of returns, see `values.distributions`; None: expectations.

    Returns:
        The function, with parameters `{"torso", "head"}`, and `"embedding"` for implicit quantiles.

    Raises:
        ValueError: the actions are not discrete, the scale of the noise is not positive, or there is no memory that
            could read a history.

    References:
        Kapturowski et al. (2019), Recurrent experience replay in distributed reinforcement learning, section 2.3
        (history).

    Deviation: only the last layers are noisy; every step of a batch has separate noise.
    """
    if not isinstance(action_space, Discrete):
        raise ValueError(f"`action_space` must be Discrete, got {action_space}; try `make_twin_q`.")
    if noise_scale is not None and noise_scale <= 0.0:
        raise ValueError(f"`noise_scale` must be positive, got {noise_scale}; try 0.5, or null for no noise.")
    if history and memory is None:
        raise ValueError(
            "`memory` must be chosen for a Q-function of `history` (R2D2), got null; try policy=gru, or value=q_gru."
        )
    distribution = distribution or EXPECTATIONS
    torso = make_torso(observation_space, encoder, memory, action_space.num_values + 1 if history else 0)
    head = ActionValueHead(action_space.num_values, distribution.num_outputs, dueling, noise_scale)
    embedding = CosineEmbedding(distribution.num_cosines)
    num_features = jax.eval_shape(torso.init, jax.random.key(0))[1].shape[-1]

    def init(key: Array) -> Params:
        torso_key, head_key, embedding_key = jax.random.split(key, 3)
        torso_params, features = torso.init(torso_key)
        params = {"torso": torso_params, "head": head.init(head_key, features)}
        if distribution.num_fractions:
            fractions = jnp.zeros((*features.shape[:-1], 1))
            params["embedding"] = embedding.init(embedding_key, features, fractions)
        return params

    def apply(params: Params, carry: Carry, inputs: PolicyInput) -> tuple[Carry, Values]:
        noise = inputs.noise or {}
        previous = _previous_step(inputs, action_space) if history else None
        carry, features = torso.apply(params["torso"], carry, inputs.observation, inputs.first, previous)
        if not distribution.num_fractions:
            outputs = head.apply(params["head"], features, noise.get("weights"))
            return carry, distribution.to_values(outputs, None)
        fractions = distribution.spread(features.shape[:-1], noise.get("fractions"))
        features = embedding.apply(params["embedding"], features, fractions)
        outputs = head.apply(params["head"], features, noise.get("weights"))[..., 0]
        return carry, distribution.to_values(jnp.swapaxes(outputs, -1, -2), fractions)

    def draw_noise(key: Array, num_steps: int, num_fractions: int = distribution.num_acting_fractions) -> PyTree:
        weights_key, fractions_key = jax.random.split(key)
        noise = {}  # type: dict[str, PyTree]
        if noise_scale is not None:
            noise["weights"] = head.draw_noise(weights_key, (num_steps,), num_features)
        if distribution.num_fractions:
            noise["fractions"] = jax.random.uniform(fractions_key, (num_steps, num_fractions))
        return noise

    is_random = noise_scale is not None or distribution.num_fractions
    learning = partial(draw_noise, num_fractions=distribution.num_fractions) if distribution.num_fractions else None
    return QFunction(
        init=init,
        apply=apply,
        initial_carry=torso.initial_carry,
        draw_noise=draw_noise if is_random else None,
        draw_learning_noise=learning,
    )


def _previous_step(inputs: PolicyInput, action_space: Discrete) -> Array:
    """Returns the previous action, one-hot, and the previous reward, `[T, B, ..., A + 1]`; zeros in first steps."""
    if inputs.previous_action is None or inputs.previous_reward is None:
        raise ValueError("`previous_action` must be kept for `history`, got None; try collector=rollout.")
    action = jax.nn.one_hot(inputs.previous_action, action_space.num_values)
    reward = jnp.broadcast_to(inputs.previous_reward, inputs.previous_action.shape)
    first = inputs.first.reshape(inputs.first.shape + (1,) * (action.ndim - inputs.first.ndim))
    return jnp.where(first, 0.0, jnp.concatenate([action, reward[..., None]], axis=-1))


def make_twin_q(observation_space: Box, action_space: Box, *, encoder: nn.Module, num_critics: int = 2) -> TwinQ:
    """Makes two or more values of one continuous action, which differ only in their initial parameters.

    The encoder sees the observation and the squashed action, `tanh(action)`, in one vector.

    Args:
        observation_space: space of a vector.
        action_space: space of a bounded vector.
        encoder: `[..., D + A]` -> features `[..., F]`; a `RegularizedMLP` may have dropout or batch normalisation.
        num_critics: E, number of critics.

    Returns:
        The function, with parameters `{"encoder", "head"}`, whose leaves have a leading axis of E.

    Raises:
        ValueError: a space is not a vector, the actions are unbounded, or there are no critics.

    References:
        Fujimoto, van Hoof and Meger (2018), section 4.2.
        Chen et al. (2021), Randomized ensembled double Q-learning (E = 10).
    """
    for name, space in (("observation_space", observation_space), ("action_space", action_space)):
        require_vector(name, space, "flatten it or try `make_q_function`")
    if not is_bounded(action_space):
        raise ValueError(f"`action_space` must be bounded, got {action_space}; clip the actions.")
    if num_critics < 1:
        raise ValueError(f"`num_critics` must be at least 1, got {num_critics}; try 2.")
    head = ValueHead()

    def join(observation: Array, action: Array) -> Array:
        return jnp.concatenate([observation.astype(jnp.float32), jnp.tanh(action)], axis=-1)

    def init_one(key: Array) -> Params:
        encoder_key, head_key = jax.random.split(key)
        inputs = jnp.zeros((1, observation_space.shape[0] + action_space.shape[0]))
        features, encoder_params = encoder.init_with_output(encoder_key, inputs)
        return {"encoder": encoder_params, "head": head.init(head_key, features)}

    def apply_one(params: Params, inputs: Array) -> Array:
        return head.apply(params["head"], encoder.apply(params["encoder"], inputs))

    def init(key: Array) -> Params:
        return jax.vmap(init_one)(jax.random.split(key, num_critics))

    def apply(params: Params, observation: Array, action: Array) -> Array:
        return jax.vmap(apply_one, (0, None))(params, join(observation, action))

    def drop_out(params: Params, observation: Array, action: Array, keys: Array) -> Array:
        def drop_one(params: Params, index: Array, inputs: Array, key: Array) -> Array:
            rngs = {"dropout": jax.random.fold_in(key, index)}
            return head.apply(params["head"], encoder.apply(params["encoder"], inputs, rngs=rngs))

        indices = jnp.arange(jax.tree.leaves(params)[0].shape[0])
        of_samples = jax.vmap(drop_one, (None, None, 0, 0))
        return jax.vmap(of_samples, (0, 0, None, None))(params, indices, join(observation, action), keys)

    def fit(params: Params, observation: Array, action: Array, axis_name: str | None) -> tuple[Array, PyTree]:
        def fit_one(params: Params, inputs: Array) -> tuple[Array, PyTree]:
            features, changed = encoder.apply(params["encoder"], inputs, axis_name, mutable=["batch_stats"])
            return head.apply(params["head"], features), changed["batch_stats"]

        return jax.vmap(fit_one, (0, None))(params, join(observation, action))

    return TwinQ(
        init=init,
        apply=apply,
        drop_out=drop_out if getattr(encoder, "dropout_rate", 0.0) else None,
        fit=fit if getattr(encoder, "batch_norm", False) else None,
    )


def with_statistics(params: Params, statistics: PyTree) -> Params:
    """Returns the parameters of critics with their running batch statistics replaced."""
    return {**params, "encoder": {**params["encoder"], "batch_stats": statistics}}
