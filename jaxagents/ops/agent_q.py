"""Agent Q (Putta et al., 2024): pairs of actions from one state, ranked by their outcomes in a group."""

from functools import partial

import jax
import jax.numpy as jnp

from jaxagents.ops.checks import within_groups
from jaxagents.ops.episodes import kept_rows, require_one_seat
from jaxagents.types import Array, Episode, Pairs

_OF_TURNS = (  # Fields of an episode that have an axis of turns.
    *("tokens", "token_mask", "action_mask", "thought_mask", "position", "agent"),
    *("behavior_log_prob", "sampling_log_prob", "loss_weight"),
    *("reward", "valid", "action_valid", "terminated", "truncated", "fingerprint"),
)


@within_groups
def siblings(episode: Episode, *, gap: Array | float = 0.2, visits: Array | int = 1) -> Pairs:
    """Prefers the action with the highest success rate in a state to actions whose rate is lower by more than a gap.

    `Q(s, a) = mean_{i: a_i = a in s} success_i` over the episodes of a group, the value that a search tree backs up.
    Turns of a group in the same state are siblings; `a` is preferred to `b` if `Q(s, a) = max Q(s, .)` and `Q(s, a) -
    Q(s, b) > gap`, both taken at least `visits` times.

    Args:
        episode: B episodes of T turns in groups of the same task, with one seat; a turn does not see earlier turns.
        gap: smallest difference of values that makes a pair.
        visits: least number of times that an action must be taken in a state for its value to count. A tree search
            returns to promising actions; among sampled episodes, one may succeed after a useless action.

    Returns:
        B T rows of one turn; an action is compared once per state, in its first turn. Actions whose value counts and
        that are not behind the best action are desirable.

    Raises:
        ValueError: the episodes are of a game with several seats, or turns see earlier ones.

    References:
        Putta et al. (2024), "Agent Q: Advanced Reasoning and Learning for Autonomous AI Agents", section 4.

    Deviation: no upper confidence bound chooses which actions to try, and no critic ranks actions.
    """
    require_one_seat(episode, "actions of the same state")
    if episode.layout is not None and episode.layout.context_turns > 1:
        raise ValueError(
            f"`policy.context_turns` must be 1 to compare actions of a state, got {episode.layout.context_turns}; rows "
            "of one turn do not show what was said before."
        )
    rows = _rows_of_turns(episode)
    size = rows.group.shape[0]
    counted = kept_rows(rows) & jnp.any(rows.action_mask[:, 0], axis=1)
    action = _hash(jnp.where(rows.action_mask[:, 0], rows.tokens[:, 0] + 1, 0))
    order = jnp.lexsort((action, rows.fingerprint[:, 0], rows.group, ~counted))
    state_keys = jnp.stack([rows.group[order].astype(jnp.uint32), rows.fingerprint[order, 0]])
    new_state = _changes(state_keys)
    new_action = new_state | _changes(action[order][None])
    state, move = jnp.cumsum(new_state) - 1, jnp.cumsum(new_action) - 1
    weight = counted[order].astype(jnp.float32)
    count, wins = (jax.ops.segment_sum(values, move, size)[move] for values in (weight, weight * rows.success[order]))
    known = (weight > 0.0) & (count >= visits)
    value = jnp.where(known, wins / jnp.maximum(count, 1.0), -jnp.inf)
    highest = jax.ops.segment_max(value, state, size)[state]
    place = jnp.where(value == highest, jnp.arange(size), size)
    best = order[jnp.minimum(jax.ops.segment_min(place, state, size)[state], size - 1)].astype(jnp.int32)
    behind = known & (highest - value > gap)
    pair = jnp.zeros(size, jnp.int32).at[order].set(jnp.where(behind & new_action, best, -1))
    desirable = jnp.zeros(size, bool).at[order].set(known & ~behind)
    return Pairs(episode=rows, pair=pair, desirable=desirable)


def _rows_of_turns(episode: Episode) -> Episode:
    """Makes a separate episode of every turn, with those of a row next to each other; empty turns are not kept."""
    num_rows, num_turns = episode.reward.shape
    keep = jnp.repeat(kept_rows(episode), num_turns) & episode.valid.reshape(-1)
    layout = None if episode.layout is None else episode.layout._replace(num_turns=1)
    episode = episode.replace(bootstrap_value=None, keep=None, layout=layout)
    of_turns = {name: getattr(episode, name) for name in _OF_TURNS}
    rows = jax.tree.map(partial(jnp.repeat, repeats=num_turns, axis=0), episode.replace(**dict.fromkeys(_OF_TURNS)))
    turns = jax.tree.map(lambda leaf: leaf.reshape(num_rows * num_turns, 1, *leaf.shape[2:]), of_turns)
    return rows.replace(**turns, keep=keep)


def _hash(tokens: Array) -> Array:
    """Computes a hash of every row of tokens `[N, S]`, uint32: equal rows have equal hashes; collisions are rare."""
    weight = jnp.uint32(2654435761) ** jnp.arange(1, 1 + tokens.shape[1], dtype=jnp.uint32)
    mixed = tokens.astype(jnp.uint32) * weight[None]
    return jnp.sum(mixed ^ (mixed >> 15), axis=1, dtype=jnp.uint32)


def _changes(keys: Array) -> Array:
    """Returns where a column of `[K, N]` differs from the previous one, bool `[N]`."""
    return jnp.concatenate([jnp.ones(1, bool), jnp.any(keys[:, 1:] != keys[:, :-1], axis=0)])
