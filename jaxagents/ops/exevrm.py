"""ExeVRM (Song et al., 2026): which parts of an episode a judge of screens reads, without unchanged tokens."""

import jax.numpy as jnp

from jaxagents.ops.episodes import kept_rows
from jaxagents.types import Array, Episode, Layout


def screens_of(episode: Episode) -> Episode:
    """Keeps only the instruction and the observations of episodes, all of which are visible in the last turn.

    Answers and thoughts are removed and take up no positions. One place counts as sampled: the one after the last
    observation, whose value is the judge's opinion of the episode, see `learners.turn_values`.

    Args:
        episode: B episodes of T turns, with one seat.

    Returns:
        The episodes, with a layout in which all turns are visible; rows that do not count become empty.

    Raises:
        ValueError: the episodes have no layout.
    """
    layout, valid = _layout_of(episode), episode.valid & kept_rows(episode)[:, None]
    column = jnp.arange(layout.turn)[None, None]
    mask = episode.token_mask & valid[:, :, None] & (column < layout.observation)
    flat = mask.reshape(mask.shape[0], -1)
    position = jnp.sum(episode.prompt_mask, axis=1, keepdims=True) + jnp.cumsum(flat, axis=1) - flat
    nothing = jnp.zeros(mask.shape, jnp.float32)
    return episode.replace(
        tokens=jnp.where(mask, episode.tokens, 0),
        token_mask=mask,
        action_mask=_last_turn(valid)[:, :, None] & (column == layout.observation),
        thought_mask=jnp.zeros_like(mask),
        position=position.reshape(mask.shape),
        behavior_log_prob=nothing,
        sampling_log_prob=nothing,
        reward=jnp.zeros_like(episode.reward),
        valid=valid,
        keep=None,
        control=None,
        loss_weight=None,
        bootstrap_value=None,
        extras={},
        layout=layout._replace(context_turns=layout.num_turns),
    )


def prune_unchanged(screens: Episode) -> Episode:
    """Drops tokens that equal the token in the same place of the previous observation; positions do not change.

    A token is kept if it differs from the reference of its place, which is the last token kept there; it then becomes
    the reference. An empty place has no reference. The marks around an observation are kept.

    Args:
        screens: episodes from `screens_of`.

    Returns:
        The episodes with fewer tokens.

    References:
        Song et al. (2026), "Video-Based Reward Modeling for Computer-Use Agents", arXiv 2603.10178 (temporal pruning);
        limenlp/ExeVRM@9da3446, src/llamafactory/model/model_utils/ttp.py:169-206.

    Deviation: tokens are compared for equality, instead of by a cosine above 0.9999. Nothing is dropped within an
        observation: words have no neighbours that look the same.
    """
    tokens, there = screens.tokens, screens.token_mask
    # With equality, the reference is the token in the previous observation, whether it was kept or not.
    same = (tokens[:, 1:] == tokens[:, :-1]) & there[:, 1:] & there[:, :-1]
    column = jnp.arange(tokens.shape[2])[None, None]
    same &= (column > 0) & (column < _layout_of(screens).observation - 1)
    return screens.replace(token_mask=there & ~jnp.pad(same, ((0, 0), (1, 0), (0, 0))))


def subsample(screens: Episode) -> Episode:
    """Keeps every n-th observation, counted back from the last, for the least n with no more tokens than pruning.

    Args:
        screens: episodes from `screens_of`.

    Returns:
        The episodes with fewer observations, and at most as many tokens as after `prune_unchanged`; the last
        observation is always kept.
    """
    valid, num_turns = screens.valid, screens.valid.shape[1]
    budget = jnp.sum(prune_unchanged(screens).token_mask, axis=(1, 2))
    to_last = jnp.sum(valid, axis=1, keepdims=True) - 1 - jnp.arange(num_turns)[None]
    every = jnp.arange(1, num_turns + 1)[None, :, None]
    kept = valid[:, None] & (to_last[:, None] % every == 0)
    size = jnp.sum(kept * jnp.sum(screens.token_mask, axis=2)[:, None], axis=2)
    chosen = jnp.argmax(size <= budget[:, None], axis=1)
    kept = jnp.take_along_axis(kept, chosen[:, None, None], axis=1)[:, 0]
    return screens.replace(token_mask=screens.token_mask & kept[:, :, None])


def _last_turn(valid: Array) -> Array:
    """Returns the last turn that took place, bool `[B, T]`."""
    return valid & ~jnp.pad(valid[:, 1:], ((0, 0), (0, 1)))


def _layout_of(episode: Episode) -> Layout:
    if episode.layout is None:
        raise ValueError("`episode` must have a layout, which says where observations end, got None.")
    return episode.layout
