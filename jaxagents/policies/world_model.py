"""A policy that acts on the state of a recurrent world model, in which it can also imagine (DreamerV3)."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.networks.world_model import RecurrentStateSpace
from jaxagents.ops.distributions import require_vector
from jaxagents.ops.rows import where_rows
from jaxagents.ops.symlog import symlog
from jaxagents.policies.actor_critic import make_policy
from jaxagents.types import Array, Box, Carry, Discrete, Params, PolicyInput, PyTree


@struct.dataclass
class LatentState:
    """State of a world model.

    Attributes:
        hidden: float32 `[..., H]`, deterministic state h.
        latent: float32 `[..., G C]`, categories z, one-hot.
    """

    hidden: Array
    latent: Array

    @property
    def features(self) -> Array:
        """Returns both parts, `[..., H + G C]`."""
        return jnp.concatenate([self.hidden, self.latent], axis=-1)


class WorldModelPolicy(NamedTuple):
    """A `Policy` on the states of a world model, whose carry is a `LatentState`.

    Attributes:
        init: see `Policy`; the parameters are `{"model", "actor", "critic"}`.
        initial_carry: see `Policy`.
        apply: see `Policy`.
        draw_noise: see `Policy`; Gumbel noise `[T, G, C]` of the categories. Without it, the most probable ones are
            taken.
        observe: `(params, carry, PolicyInput [T, B]) -> (states, posterior, prior)`, log-probabilities `[T, B, G, C]`.
        advance: `(params, state, action) -> hidden`.
        outcomes: `(params, hidden) -> (reward logits [..., K], end logit [...])` of the step that led to the state.
        foresee: `(params, hidden, noise [..., G, C]) -> state`.
        decode: `(params, state) -> symlog of the observation [..., D]`.
        act: `(params, state) -> distribution`.
        values: `(params of the critic, state) -> logits [..., K]`.
    """

    init: Callable[[Array], Params]
    initial_carry: Callable[[tuple[int, ...]], Carry]
    apply: Callable[[Params, Carry, PolicyInput], tuple[Carry, Any]]
    draw_noise: Callable[[Array, int], PyTree]
    observe: Callable[[Params, Carry, PolicyInput], tuple[LatentState, Array, Array]]
    advance: Callable[[Params, LatentState, Array], Array]
    outcomes: Callable[[Params, Array], tuple[Array, Array]]
    foresee: Callable[[Params, Array, Array], LatentState]
    decode: Callable[[Params, LatentState], Array]
    act: Callable[[Params, LatentState], Any]
    values: Callable[[Params, LatentState], Array]


def make_world_model_policy(
    observation_space: Box,
    action_space: Discrete | Box,
    *,
    encoder: nn.Module,
    actor_encoder: nn.Module,
    critic_encoder: nn.Module,
    hidden_size: int = 128,
    num_variables: int = 8,
    num_categories: int = 8,
    width: int = 128,
    num_bins: int = 255,
    uniform_share: float = 0.01,
) -> WorldModelPolicy:
    """Makes a recurrent state-space model, with a policy and values on its states.

    Args:
        observation_space: space of a vector of D numbers.
        action_space: space of one discrete action, or of a bounded vector.
        encoder: observation `[..., D]` -> features.
        actor_encoder: state `[..., H + G C]` -> features of the policy.
        critic_encoder: the same for the values.
        hidden_size: see `RecurrentStateSpace`.
        num_variables: see `RecurrentStateSpace`. Paper: 32.
        num_categories: see `RecurrentStateSpace`. Paper: 32.
        width: see `RecurrentStateSpace`.
        num_bins: K, number of bins for rewards and values.
        uniform_share: see `RecurrentStateSpace`.

    Returns:
        The policy.

    Raises:
        ValueError: observations are not a vector, or a size is too small.

    References:
        Hafner et al. (2023), Mastering diverse domains through world models, section 2 and appendix B.

    Deviation: the policy's own distribution has no uniform share.
    """
    least_one = {"hidden_size": hidden_size, "num_variables": num_variables, "width": width}
    _check(observation_space, uniform_share, least_one, {"num_categories": num_categories, "num_bins": num_bins})
    sizes = hidden_size, num_variables, num_categories, width, num_bins
    model = RecurrentStateSpace(encoder, observation_space.shape[0], *sizes, uniform_share)
    size = num_variables * num_categories
    actor = make_policy(Box((hidden_size + size,)), action_space, encoder=actor_encoder)
    critic = nn.Sequential([critic_encoder, nn.Dense(num_bins, kernel_init=nn.initializers.zeros)])

    def initial_carry(batch_shape: tuple[int, ...]) -> LatentState:
        return LatentState(hidden=jnp.zeros((*batch_shape, hidden_size)), latent=jnp.zeros((*batch_shape, size)))

    def init(key: Array) -> Params:
        keys = jax.random.split(key, 3)
        state = initial_carry((1,))
        action = _numbers(action_space, jnp.zeros((1, *action_space.shape), action_space.dtype))
        return {
            "model": model.init(keys[0], state.hidden, state.latent, action, jnp.zeros((1, *observation_space.shape))),
            "actor": actor.init(keys[1]),
            "critic": critic.init(keys[2], state.features),
        }

    def part(params: Params, method: str, *arguments: Array) -> Any:
        return model.apply(params["model"], *arguments, method=method)

    def advance(params: Params, state: LatentState, action: Array) -> Array:
        return part(params, "advance", state.hidden, state.latent, _numbers(action_space, action))

    def foresee(params: Params, hidden: Array, noise: Array) -> LatentState:
        return LatentState(hidden=hidden, latent=_draw(part(params, "prior", hidden), noise))

    def observe(params: Params, carry: LatentState, inputs: PolicyInput) -> tuple[LatentState, Array, Array]:
        if inputs.previous_action is None:
            raise ValueError("`previous_action` must be kept for a world model, got None.")
        shape = *inputs.first.shape, num_variables, num_categories
        noise = jnp.zeros(shape) if inputs.noise is None else inputs.noise
        features = part(params, "encode", symlog(inputs.observation.astype(jnp.float32)))

        def step(state: LatentState, steps: tuple) -> tuple[LatentState, tuple[LatentState, Array]]:
            features, first, action, noise = steps
            hidden = advance(params, state, action)
            hidden = where_rows(first, jnp.zeros_like(hidden), hidden)
            posterior = part(params, "posterior", hidden, features)
            state = LatentState(hidden=hidden, latent=_draw(posterior, noise))
            return state, (state, posterior)

        steps = features, inputs.first, inputs.previous_action, noise
        _, (states, posterior) = jax.lax.scan(step, carry, steps)
        return states, posterior, part(params, "prior", states.hidden)

    def act(params: Params, state: LatentState) -> Any:
        first = jnp.zeros(state.hidden.shape[:-1], bool)
        return actor.apply(params["actor"], (), PolicyInput(observation=state.features, first=first))[1]

    def apply(params: Params, carry: LatentState, inputs: PolicyInput) -> tuple[LatentState, Any]:
        states, _, _ = observe(params, carry, inputs)
        return jax.tree.map(lambda leaf: leaf[-1], states), act(params, states).mask(inputs.action_mask)

    def draw_noise(key: Array, num_steps: int) -> Array:
        return jax.random.gumbel(key, (num_steps, num_variables, num_categories))

    return WorldModelPolicy(
        init=init,
        initial_carry=initial_carry,
        apply=apply,
        draw_noise=draw_noise,
        observe=observe,
        advance=advance,
        outcomes=lambda params, hidden: part(params, "outcomes", hidden),
        foresee=foresee,
        decode=lambda params, state: part(params, "decode", state.features),
        act=act,
        values=lambda critic_params, state: critic.apply(critic_params, state.features),
    )


def _numbers(action_space: Discrete | Box, action: Array) -> Array:
    """Returns an action as a vector of numbers in [-1, 1]."""
    if isinstance(action_space, Discrete):
        return jax.nn.one_hot(action, action_space.num_values)
    return jnp.tanh(action)


def _draw(log_probs: Array, noise: Array) -> Array:
    """Draws one-hot categories `[..., G C]`, whose gradient is that of the probabilities `[..., G, C]`."""
    probs = jnp.exp(log_probs)
    chosen = jax.nn.one_hot(jnp.argmax(log_probs + noise, axis=-1), probs.shape[-1])
    straight = chosen + probs - jax.lax.stop_gradient(probs)
    return straight.reshape(*straight.shape[:-2], -1)


def _check(
    observation_space: Box, uniform_share: float, least_one: Mapping[str, int], least_two: Mapping[str, int]
) -> None:
    """Refuses observations that are not vectors, and sizes and shares outside their range."""
    require_vector("observation_space", observation_space, purpose=" for a world model")
    for least, sizes in ((1, least_one), (2, least_two)):
        for name, size in sizes.items():
            if size < least:
                raise ValueError(f"`{name}` must be at least {least}, got {size}.")
    if not 0.0 < uniform_share < 1.0:
        raise ValueError(f"`uniform_share` must be in (0, 1), got {uniform_share}; try 0.01.")
