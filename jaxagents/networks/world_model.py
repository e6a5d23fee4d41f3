"""A recurrent state-space model: a deterministic memory, and categorical variables drawn given it."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from jaxagents.networks.recurrent import GRU
from jaxagents.networks.torsos import MLP
from jaxagents.types import Array


class RecurrentStateSpace(nn.Module):
    """The parts of a recurrent state-space model (RSSM) with G categorical variables of C categories each.

    `h_t = f(h_(t-1), z_(t-1), a_(t-1))`, prior `p(z_t | h_t)`, posterior `q(z_t | h_t, x_t)`, decoder `p(x_t | h_t,
    z_t)`; the reward of a step and the end of the episode are predicted from `f(h_t, z_t, a_t)`. Any leading axes.

    Attributes:
        encoder: module from observations `[..., *shape]` to features.
        observation_size: number of entries of an observation.
        hidden_size: H, size of h.
        num_variables: G, number of categorical variables.
        num_categories: C, number of categories of each variable.
        width: width of the hidden layer of every part.
        num_bins: K, number of bins of the reward.
        uniform_share: weight of a uniform distribution that is mixed into every prior and posterior.

    References:
        Hafner et al. (2023), Mastering diverse domains through world models, equation 3 and appendix B.

    Deviation: the gated recurrent unit is not normalised.
    """

    encoder: nn.Module
    observation_size: int
    hidden_size: int
    num_variables: int
    num_categories: int
    width: int
    num_bins: int
    uniform_share: float

    def setup(self):
        """Makes the parts."""
        size = self.num_variables * self.num_categories
        self.cell = GRU(self.hidden_size)
        self.joint = self._torso()
        self.prior_head = nn.Sequential([self._torso(), nn.Dense(size)])
        self.posterior_head = nn.Sequential([self._torso(), nn.Dense(size)])
        self.decoder = nn.Sequential([self._torso(), nn.Dense(self.observation_size)])
        # Rewards are predicted uniformly over the bins at first.
        self.reward_head = nn.Sequential([self._torso(), nn.Dense(self.num_bins, kernel_init=nn.initializers.zeros)])
        self.end_head = nn.Sequential([self._torso(), nn.Dense(1)])

    def _torso(self) -> MLP:
        return MLP((self.width,), activation="silu", layer_norm=True)

    def __call__(self, hidden: Array, latent: Array, action: Array, observation: Array) -> tuple:
        """Calls every part, so that all have parameters."""
        features = jnp.concatenate([hidden, latent], axis=-1)
        following = self.advance(hidden, latent, action)
        seen = self.posterior(hidden, self.encode(observation))
        return seen, self.prior(following), self.outcomes(following), self.decode(features)

    def encode(self, observation: Array) -> Array:
        """Computes features `[..., F]` of observations in `symlog`."""
        return self.encoder(observation)

    def advance(self, hidden: Array, latent: Array, action: Array) -> Array:
        """Computes the next `h` `[..., H]` from an action `[..., A]`, `h` `[..., H]` and `z` `[..., GC]`."""
        features = self.joint(jnp.concatenate([latent, action], axis=-1))
        never = jnp.zeros((1, *hidden.shape[:-1]), bool)
        return self.cell(hidden, features[None], never)[0]

    def prior(self, hidden: Array) -> Array:
        """Computes log-probabilities `[..., G, C]` of the categories."""
        return self._log_probs(self.prior_head(hidden))

    def posterior(self, hidden: Array, features: Array) -> Array:
        """Computes log-probabilities `[..., G, C]` of the categories, given features of the observation."""
        return self._log_probs(self.posterior_head(jnp.concatenate([hidden, features], axis=-1)))

    def outcomes(self, following: Array) -> tuple[Array, Array]:
        """Computes logits of the reward bins `[..., K]` and of the end `[...]` for the step that led to `h`."""
        return self.reward_head(following), self.end_head(following)[..., 0]

    def decode(self, features: Array) -> Array:
        """Computes the `symlog` of the observation, `[..., D]`, from `h` and `z` `[..., H + GC]`."""
        return self.decoder(features)

    def _log_probs(self, outputs: Array) -> Array:
        shape = *outputs.shape[:-1], self.num_variables, self.num_categories
        probs = jax.nn.softmax(outputs.reshape(shape))
        return jnp.log((1.0 - self.uniform_share) * probs + self.uniform_share / self.num_categories)
