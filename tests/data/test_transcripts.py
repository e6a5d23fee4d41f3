"""Packed transcripts as batches of a compiled supervised learner."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxagents.data.trajectories import from_episodes, write_trajectories
from jaxagents.data.transcripts import make_transcript_collector
from jaxagents.language.demonstrations import make_demonstrations
from jaxagents.learners.supervised import make_supervised

KEY = jax.random.key(2)


@pytest.fixture(scope="module")
def shown(lake, speak, params_of, tmp_path_factory):
    """Returns a policy that sees its whole past, parameters, demonstrations, and the file that they are written to."""
    policy = speak(lake, prompt=False)
    episode = jax.jit(make_demonstrations(lake, policy, noise=0.3))(KEY, jnp.arange(6))
    path = tmp_path_factory.mktemp("data") / "lake.jsonl"
    write_trajectories(path, from_episodes(jax.device_get(episode), policy.tokenizer, world="lake"))
    return policy, params_of(policy), episode, path


def losses(policy, params, episode):
    learner = make_supervised(policy.model, optax.sgd(0.0))
    return jax.jit(learner.update)(learner.init(KEY, params), KEY, episode)[1]


def test_files_teach_what_the_demonstrations_teach(shown, lake):
    policy, params, episode, path = shown
    longest = int(episode.token_mask.sum(axis=1).max())
    collector = make_transcript_collector(lake, policy, paths=str(path), num_rows=64, row_length=4 * longest)
    _, packed, _ = collector.collect(collector.init(KEY, params), params, KEY)
    # Every row that there is, once.
    rows = np.unique(np.asarray(packed.tokens), axis=0, return_index=True)[1]
    assert len(rows) < 6 and int(packed.agent.max()) > 0
    taken = jax.tree.map(lambda leaf: leaf[rows], packed.replace(layout=None)).replace(layout=packed.layout)
    assert int(taken.action_mask.sum()) == int(episode.action_mask.sum())
    ours, theirs = losses(policy, params, taken), losses(policy, params, episode)
    np.testing.assert_allclose(ours["loss"], theirs["loss"], rtol=1e-4)
    np.testing.assert_allclose(ours["entropy"], theirs["entropy"], rtol=1e-4)


def test_weights_of_the_file_count(shown, lake):
    policy, params, _, path = shown
    collector = make_transcript_collector(lake, policy, paths=str(path), num_rows=4, row_length=512)
    _, packed, _ = collector.collect(collector.init(KEY, params), params, KEY)
    halved = packed.replace(loss_weight=0.5 * packed.loss_weight)
    np.testing.assert_allclose(
        losses(policy, params, halved)["loss"], 0.5 * losses(policy, params, packed)["loss"], rtol=1e-5
    )


def test_rows_that_are_too_short_are_refused(shown, lake):
    policy, _, _, path = shown
    with pytest.raises(ValueError, match="row_length"):
        make_transcript_collector(lake, policy, paths=str(path), num_rows=4, row_length=8)
    with pytest.raises(ValueError, match="`num_rows` must be at least 1, got 0"):
        make_transcript_collector(lake, policy, paths=str(path), num_rows=0, row_length=512)
