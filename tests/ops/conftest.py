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
    """Makes episodes of one prompt token and turns of one observation token and up to `slot - 1` sampled ones.

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
    rows = reward.shape[0]
    place = np.arange(slot)[None, None]
    sampled = (place >= 1) & (place <= num_tokens[..., None])
    observed = np.broadcast_to((place == 0) & valid[..., None], sampled.shape)
    last = valid & ~np.concatenate([valid[:, 1:], np.zeros((rows, 1), bool)], axis=1)
    zeros = jnp.zeros(sampled.shape, jnp.float32)
    fields = {
        "prompt_tokens": jnp.zeros((rows, 1), jnp.int32),
        "prompt_mask": jnp.ones((rows, 1), bool),
        "tokens": jnp.zeros(sampled.shape, jnp.int32),
        "token_mask": jnp.asarray(sampled | observed),
        "action_mask": jnp.asarray(sampled),
        "thought_mask": jnp.zeros(sampled.shape, bool),
        "position": jnp.zeros(sampled.shape, jnp.int32),
        "agent": jnp.zeros(sampled.shape, jnp.int32),
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
