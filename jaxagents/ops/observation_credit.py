"""Credit through observation tokens, which an advantage mask prevents (Agent-R1, Cheng et al., 2025)."""

from typing import Any

import jax.numpy as jnp

from jaxagents.ops.credit import Credit, gae_token, to_tokens
from jaxagents.types import Array, EpisodeView


def gae_every_token(
    view: EpisodeView,
    *,
    axis_name: str | None = None,
    discount: Array | float = 1.0,
    trace_decay: Array | float = 1.0,
    normalize: bool = False,
    bootstrap: bool = False,
) -> Credit:
    """Computes `gae_token` over all tokens but the first of each turn, as if the policy had sampled them all.

    A step of the trace then leads from the action to the first token of the answer, whose value is used to bootstrap,
    and long observations discount what comes after them; advantages are standardised over all these tokens.

    Args:
        view: view of B episodes of T turns; reads `policy.value`, which `learner=observation_loss` computes for all
            tokens.
        axis_name: mapped device axis to normalise over.
        discount: per token, in [0, 1].
        trace_decay: lambda per token, in [0, 1].
        normalize: whether to standardise advantages over all these tokens of the batch.
        bootstrap: see `gae_token`.

    Returns:
        The credit of the sampled tokens.

    References:
        Cheng et al. (2025), "Agent-R1: Training Powerful LLM Agents with End-to-End Reinforcement Learning", ablation.
    """
    episode = view.episode
    every = episode.token_mask & (jnp.arange(episode.tokens.shape[2]) > 0)[None, None]
    options: dict[str, Any] = {
        "discount": discount,
        "trace_decay": trace_decay,
        "normalize": normalize,
        "bootstrap": bootstrap,
    }
    credit = gae_token(view.replace(episode=episode.replace(action_mask=every)), axis_name=axis_name, **options)
    return Credit(advantage=to_tokens(episode, credit.advantage), target=to_tokens(episode, jnp.asarray(credit.target)))


def weigh_observations(
    view: EpisodeView,
    advantage: Array,
    *,
    axis_name: str | None = None,
    num_tokens: int,
    weight: Array | float = 1.0,
) -> Array:
    """Multiplies the advantages of the tokens of observations.

    Args:
        view: view of B episodes.
        advantage: `[B, T, S]`.
        axis_name: not used.
        num_tokens: number of observation tokens, which come first in a turn.
        weight: factor for their advantages.

    Returns:
        The advantages.
    """
    return jnp.where((jnp.arange(advantage.shape[2]) < num_tokens)[None, None], weight * advantage, advantage)
