"""Small episodes of text, made by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.types import Episode


@pytest.fixture(scope="session")
def make_episode():
    """Returns the function below."""
    return _make_episode


def _make_episode(reward, num_tokens, *, group=None, valid=None, terminated=True, slot=4, **changes):
    """Makes episodes of one prompt token, then slots of one observation token and up to `slot - 1` sampled ones.

    Args:
        reward: `[B][T]`.
        num_tokens: `[B][T]`, tokens that the policy sampled in the turn; the rest of the slot is padding.
        group: `[B]`; None puts all into one.
        valid: `[B][T]`; None takes the turns with sampled tokens.
        terminated: the last turn that took place ended in a terminal state; else it was cut off.
        slot: tokens per turn.
        **changes: further fields.
    """
    reward, num_tokens = np.asarray(reward, np.float32), np.asarray(num_tokens)
    valid = num_tokens > 0 if valid is None else np.asarray(valid, bool)
    rows, num_turns = reward.shape
    place = np.arange(slot)[None, None]
    sampled = (place >= 1) & (place <= num_tokens[..., None])
    observed = (place == 0) & valid[..., None]
    prompt = np.ones((rows, 1), bool)
    action_mask = np.concatenate([~prompt, sampled.reshape(rows, -1)], axis=1)
    turn = np.concatenate([-prompt.astype(np.int32), np.repeat(np.arange(num_turns), slot)[None].repeat(rows, 0)], 1)
    last = valid & ~np.concatenate([valid[:, 1:], ~prompt], axis=1)
    zeros = jnp.zeros(action_mask.shape, jnp.float32)
    fields = {
        "tokens": jnp.zeros(action_mask.shape, jnp.int32),
        "token_mask": jnp.asarray(np.concatenate([prompt, (sampled | observed).reshape(rows, -1)], axis=1)),
        "action_mask": jnp.asarray(action_mask),
        "thought_mask": jnp.zeros(action_mask.shape, bool),
        "position": jnp.zeros(action_mask.shape, jnp.int32),
        "turn": jnp.asarray(turn, jnp.int32),
        "agent": jnp.zeros(action_mask.shape, jnp.int32),
        "behavior_log_prob": zeros,
        "sampling_log_prob": zeros,
        "reward": jnp.asarray(reward),
        "valid": jnp.asarray(valid),
        "action_valid": jnp.asarray(valid),
        "terminated": jnp.asarray(last & terminated),
        "truncated": jnp.asarray(last & (not terminated)),
        "fingerprint": jnp.zeros(reward.shape, jnp.uint32),
        "success": jnp.zeros(rows, bool),
        "group": jnp.asarray(np.zeros(rows) if group is None else group, jnp.int32),
    }
    return Episode(**(fields | changes))
