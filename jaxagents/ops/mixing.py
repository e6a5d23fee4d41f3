"""Weights of own episodes and demonstrations in one batch, as changes of advantages, see `ops.credit_shaping`."""

import jax
import jax.numpy as jnp

from jaxagents.ops.episodes import credited_tokens
from jaxagents.types import Array, EpisodeView


def mixed(view: EpisodeView, advantage: Array, *, axis_name: str | None = None, weight: Array | float = 0.5) -> Array:
    """Changes the loss to `(1 - weight) L_own + weight L_shown`, where each L is a mean over its own tokens.

    Demonstrated tokens have the advantage 1 in L_shown, whatever their outcome. It needs
    `losses.aggregation.token_mean`: with N tokens that count, a factor of `N / N_k` turns a mean over all into a mean
    over N_k.

    Args:
        view: view of B episodes; rows of `control` are demonstrations.
        advantage: `[B, T, S]`, read for own tokens.
        axis_name: mapped device axis to count tokens over.
        weight: mu, in [0, 1]; a schedule can make imitation fade out.

    Returns:
        The advantages.

    Raises:
        ValueError: no rows are marked as demonstrated.

    References:
        Zhang et al. (2025), "On-Policy RL Meets Off-Policy Experts: Harmonizing Supervised Fine-Tuning and
        Reinforcement Learning via Dynamic Weighting" (CHORD-mu), section 3.
    """
    if view.episode.control is None:
        raise ValueError("`learner` must put demonstrations beside own episodes; try learner=demonstrated.")
    demonstrated = view.episode.control[:, None, None]
    counted = credited_tokens(view.episode)
    totals = jnp.sum(counted & ~demonstrated, dtype=jnp.float32), jnp.sum(counted & demonstrated, dtype=jnp.float32)
    if axis_name is not None:
        totals = jax.lax.psum(totals, axis_name)
    own_share, demonstrated_share = (jnp.maximum(total, 1.0) / jnp.maximum(sum(totals), 1.0) for total in totals)
    return jnp.where(demonstrated, weight / demonstrated_share, (1.0 - weight) / own_share * advantage)


def communicated(
    view: EpisodeView, advantage: Array, *, axis_name: str | None = None, weight: Array | float = 1.0
) -> Array:
    """Changes the loss to `L_own + weight L_said`, with L_said the negative log-likelihood of right answers.

    L_own is a mean over own tokens. L_said is a mean over the tokens of own successes and of a teacher's demonstrations
    of tasks that an own episode of the batch failed: the teacher answers only where the student was wrong. It needs
    `losses.aggregation.token_mean` and, at one optimiser step per batch, is exact for own tokens.

    Args:
        view: view of B episodes; rows of `control` are demonstrations, of the same tasks as own episodes.
        advantage: `[B, T, S]`, read for own tokens.
        axis_name: mapped device axis to count tokens over; all episodes of a task are on the same device.
        weight: beta, non-negative.

    Returns:
        The advantages; zero for demonstrations of tasks that no own episode failed.

    Raises:
        ValueError: no rows are marked as demonstrated.

    References:
        Wang et al. (2023), "Adapting LLM Agents Through Communication" (LTC), section 3 (language-modelling loss of
        conversations with a positive reward, beside PPO).
    """
    if view.episode.control is None:
        raise ValueError("`learner` must put demonstrations beside own episodes; try learner=demonstrated.")
    demonstrated, opening = view.episode.control, view.episode.fingerprint[:, 0]
    failed = ~demonstrated & ~view.episode.success
    asked = jnp.any((opening[:, None] == opening[None, :]) & failed[None, :], axis=1)
    imitable = jnp.where(demonstrated, asked, view.episode.success)[:, None, None]
    demonstrated, counted = demonstrated[:, None, None], credited_tokens(view.episode)
    totals = (jnp.sum(counted & part, dtype=jnp.float32) for part in (True, ~demonstrated, imitable))
    every, own, of_imitable = totals if axis_name is None else jax.lax.psum(tuple(totals), axis_name)
    imitated = jnp.where(imitable, weight * every / jnp.maximum(of_imitable, 1.0), 0.0)
    return imitated + jnp.where(demonstrated, 0.0, every / jnp.maximum(own, 1.0) * advantage)


def guided(view: EpisodeView, advantage: Array, *, axis_name: str | None = None, weight: Array | float = 1.0) -> Array:
    """Changes the loss to `L_own + weight L_thought`, with the negative log-likelihood of shown thoughts, not actions.

    L_own is a mean over own tokens, L_thought a mean over the tokens of thoughts in the rows of `control`, such as an
    expert's thoughts in visited states, see `language.gtr`. It needs `losses.aggregation.token_mean` and, at one
    optimiser step per batch, is exact for own tokens.

    Args:
        view: view of B episodes; rows of `control` are demonstrations.
        advantage: `[B, T, S]`, read for own tokens.
        axis_name: mapped device axis to count tokens over.
        weight: non-negative weight of L_thought.

    Returns:
        The advantages; zero for shown actions.

    Raises:
        ValueError: no rows are marked as demonstrated.

    References:
        Wei et al. (2025), "GTR: Guided Thought Reinforcement Prevents Thought Collapse in RL-based VLM Agent Training",
        section 4 (PPO of actions and SFT of corrected thoughts).
    """
    if view.episode.control is None:
        raise ValueError("`learner` must put demonstrations beside own episodes; try learner=demonstrated.")
    demonstrated, counted = view.episode.control[:, None, None], credited_tokens(view.episode)
    thought = demonstrated & view.episode.thought_mask
    totals = tuple(jnp.sum(counted & part, dtype=jnp.float32) for part in (True, ~demonstrated, thought))
    every, own, thoughts = totals if axis_name is None else jax.lax.psum(totals, axis_name)
    imitated = jnp.where(thought, weight * every / jnp.maximum(thoughts, 1.0), 0.0)
    return imitated + jnp.where(demonstrated, 0.0, every / jnp.maximum(own, 1.0) * advantage)
