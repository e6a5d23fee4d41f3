"""Mixtures of squashed Gaussians, for states in which several different actions may be right."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxagents.ops.distributions import TanhNormal
from jaxagents.types import Array


def _standard_points(num_dimensions: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns points `[S, D]` of a standard normal distribution and their weights `[S]`."""
    if num_dimensions == 1:
        nodes, weights = np.polynomial.hermite_e.hermegauss(16)
        return nodes[:, None].astype(np.float32), (weights / weights.sum()).astype(np.float32)
    half = np.random.default_rng(0).standard_normal((32, num_dimensions))
    # Mirrored and with variance one, so that every quadratic without mixed terms has its exact mean.
    points = np.concatenate([half, -half]) / np.sqrt(np.mean(np.square(half), axis=0))
    return points.astype(np.float32), np.full(64, 1.0 / 64.0, np.float32)


@struct.dataclass
class TanhNormalMixture:
    """The mixture of M squashed Gaussians: `x ~ sum_m w_m N(loc_m, scale_m^2)`, `a = middle + half_range * tanh(x)`.

    Actions are the unsquashed `x`, as in `TanhNormal`; probabilities are those of `a`.

    Attributes:
        logits: float32 `[..., M]`, unnormalised logits of the weights w.
        loc: float32 `[..., M, D]`.
        scale: float32 `[..., M, D]`, positive.
        low: lower bound of every action dimension.
        high: upper bound of every action dimension.

    References:
        Bishop (1994), Mixture density networks; of policies, Haarnoja et al. (2018), first version of Soft
        actor-critic, section 5.2.
    """

    logits: Array
    loc: Array
    scale: Array
    low: float = struct.field(pytree_node=False, default=-1.0)
    high: float = struct.field(pytree_node=False, default=1.0)

    def mask(self, action_mask: Array | None) -> "TanhNormalMixture":
        """Returns the distribution itself: continuous actions are never masked.

        Raises:
            ValueError: a mask is given.
        """
        TanhNormal(self.loc, self.scale).mask(action_mask)
        return self

    def noise(self, key: Array) -> tuple[Array, Array]:
        """Draws Gumbel noise `[..., M]`, which chooses a component, and standard normal noise `[..., D]`."""
        choice_key, normal_key = jax.random.split(key)
        choice = jax.random.gumbel(choice_key, self.logits.shape, self.logits.dtype)
        shape = (*self.loc.shape[:-2], self.loc.shape[-1])
        return choice, jax.random.normal(normal_key, shape, self.loc.dtype)

    def transform(self, noise: tuple[Array, Array]) -> Array:
        """Returns the unsquashed action `[..., D]` that corresponds to `noise`; no gradient flows to the weights."""
        choice, normal = noise
        loc, scale = self._component(jnp.argmax(self.logits + choice, axis=-1))
        return loc + scale * normal

    def sample(self, key: Array) -> Array:
        """Draws unsquashed actions `[..., D]`, differentiable in all parameters, including the weights.

        For the conditional distribution functions `F_d(x_d | x_<d)`, the gradient is `-(dF/dx)^-1 dF/dparameters`: how
        a sample moves if its quantiles are fixed. Gradients of expectations are unbiased, as if summed over the
        components.

        References:
            Figurnov, Mohamed and Mnih (2018), Implicit reparameterization gradients, section 4; Graves (2016),
            Stochastic backpropagation through mixture density distributions.
        """
        action = jax.lax.stop_gradient(self.transform(self.noise(key)))
        move = jnp.vectorize(_implicit, signature="(m),(m,d),(m,d),(d)->(d)")
        return move(self.logits, self.loc, self.scale, action)

    def log_prob(self, action: Array) -> Array:
        """Returns `log sum_m w_m p_m(a)` of the squashed `action` (`[..., D]`, unsquashed), `[...]`."""
        parts = TanhNormal(self.loc, self.scale, self.low, self.high).log_prob(action[..., None, :])
        return jax.nn.logsumexp(jax.nn.log_softmax(self.logits) + parts, axis=-1)

    def entropy(self) -> Array:
        """Returns an estimate of the differential entropy in nats, `[...]`: `-sum_m w_m E_m[log p]` over fixed points.

        The points are 16 Gauss-Hermite points for D = 1, else 64 fixed standardised draws. Before squashing, the
        estimate is exact if the components coincide, and nearly so if they are far apart. With partial overlap, the
        error was at most 0.06 in random mixtures of two to five components of one to six dimensions and scales of 0.1
        to 1.
        """
        standard, weights = _standard_points(self.loc.shape[-1])
        # Points of every component, and an axis of the components that evaluate them: [..., M, S, D].
        leading = (1,) * (self.loc.ndim - 1)
        points = jnp.asarray(standard).reshape(*leading, *standard.shape)
        actions = self.loc[..., None, :] + self.scale[..., None, :] * points
        judge = jax.tree.map(lambda leaf: jnp.expand_dims(leaf, (self.logits.ndim - 1, self.logits.ndim)), self)
        log_prob = jnp.sum(judge.log_prob(actions) * jnp.asarray(weights).reshape(*leading, -1), axis=-1)
        return -jnp.sum(jax.nn.softmax(self.logits) * log_prob, axis=-1)

    def mode(self) -> Array:
        """Returns the location `[..., D]` of the component with the greatest weight.

        This is not the point of highest density: after fitting repeated actions, that is in a narrow component of tiny
            weight.
        """
        return self._component(jnp.argmax(self.logits, axis=-1))[0]

    def kl_divergence(self, other: "TanhNormalMixture") -> Array:
        """Raises an error, because the divergence of mixtures has no closed form.

        Raises:
            ValueError: always.
        """
        raise ValueError(
            "`policy` must have a divergence in closed form for this learner, got a mixture of Gaussians; try "
            "policy=mlp or policy=tanh_normal."
        )

    def _component(self, index: Array) -> tuple[Array, Array]:
        chosen = jax.nn.one_hot(index, self.logits.shape[-1], dtype=self.loc.dtype)[..., None]
        return jnp.sum(chosen * self.loc, axis=-2), jnp.sum(chosen * self.scale, axis=-2)


def _implicit(logits: Array, loc: Array, scale: Array, action: Array) -> Array:
    """Returns a constant `action` `[D]`, with the gradient of a sample whose quantiles are fixed."""

    def quantiles(logits: Array, loc: Array, scale: Array, action: Array) -> Array:
        standardised = (action[None] - loc) / scale
        log_density = -0.5 * jnp.square(standardised) - jnp.log(scale)
        # The weights of the components given the previous dimensions, [M, D].
        log_weights = logits[:, None] + jnp.cumsum(log_density, axis=-1) - log_density
        return jnp.sum(jax.nn.softmax(log_weights, axis=0) * jax.scipy.special.ndtr(standardised), axis=0)

    parameters = jax.lax.stop_gradient((logits, loc, scale))
    slopes = jax.lax.stop_gradient(jax.jacfwd(lambda action: quantiles(*parameters, action))(action))
    moved = quantiles(logits, loc, scale, action)
    return action - jax.scipy.linalg.solve_triangular(slopes, moved - jax.lax.stop_gradient(moved), lower=True)
