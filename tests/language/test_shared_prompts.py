"""Prompts of a group that are read once are read as those of every episode."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.language.collect import make_dialogue_collector
from jaxagents.language.shared_prompts import make_shared_prompt_collector, share_prompts
from jaxagents.networks.transformer import Transformer
from jaxagents.policies.language_model import make_language_model

SIZES = {"num_groups": 2, "group_size": 3}


@pytest.mark.exhaustive
@pytest.mark.parametrize("scan_layers", [False, True])
def test_episodes_are_those_of_prompts_that_are_read_by_every_row(lake, speak, scan_layers):
    network = partial(Transformer, num_layers=1, features=16, num_heads=2, scan_layers=scan_layers)
    policy = speak(lake, num_turns=2, model=partial(make_language_model, network=network))
    params = jax.tree.map(lambda leaf: leaf * 2.0, policy.init(jax.random.key(7)))

    def play(make, **settings):
        collector = make(lake, policy, **SIZES, **settings)
        collect = jax.jit(collector.collect)
        return collect(collector.init(jax.random.key(0), params), params, jax.random.key(1))[1]

    for settings in ({}, {"top_k": 1}):  # Sampled, and the most probable token only.
        wanted, episode = (play(make, **settings) for make in (make_dialogue_collector, make_shared_prompt_collector))
        assert policy.layout.prompt > 2
        np.testing.assert_array_equal(episode.tokens, wanted.tokens)
        np.testing.assert_allclose(episode.behavior_log_prob, wanted.behavior_log_prob, atol=1e-5)
        np.testing.assert_array_equal(episode.reward, wanted.reward)


@pytest.mark.exhaustive
def test_only_the_first_rows_of_groups_go_through_the_model(lake, speak):
    policy = speak(lake, num_turns=2)
    layout, rows = policy.layout, []

    def extend(params, cache, tokens, **inputs):
        rows.append(tokens.shape)
        return policy.model.extend(params, cache, tokens, **inputs)

    model = share_prompts(policy.model._replace(extend=extend), layout, group_size=3)
    params, width = policy.init(jax.random.key(0)), layout.prompt + layout.turn

    def read(size):
        tokens = jnp.repeat(jnp.arange(2 * size).reshape(2, size) % 5, 3, axis=0)
        mask = jnp.broadcast_to(jnp.tril(jnp.ones((size, width), bool)), (6, size, width))
        positions = jnp.broadcast_to(jnp.arange(size), (6, size))
        inputs = {"positions": positions, "index": jnp.int32(0), "mask": mask}
        cache = policy.model.init_cache(6, width)
        both = [m.extend(params, cache, tokens, **inputs) for m in (model, policy.model)]
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), *both)

    read(layout.prompt)
    read(layout.prompt - 1)
    assert rows == [(2, layout.prompt), (6, layout.prompt - 1)]


def test_refused(lake, speak):
    with pytest.raises(ValueError, match="`num_rows` must be null with shared prompts, got 2"):
        make_shared_prompt_collector(lake, speak(lake, num_turns=2), **SIZES, num_rows=2)
    with pytest.raises(ValueError, match="`policy` must have prompts of at least 2 tokens"):
        make_shared_prompt_collector(lake, speak(lake, num_turns=2, prompt=False), **SIZES)
