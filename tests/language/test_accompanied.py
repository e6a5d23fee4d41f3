"""Own episodes and an expert's beside them."""

from functools import partial

import jax
import numpy as np
import pytest

from jaxagents.language.accompanied import make_accompanied_collector
from jaxagents.language.collect import make_dialogue_collector
from jaxagents.language.demonstrations import make_demonstration_collector

KEY = jax.random.key(2)


@pytest.mark.exhaustive
def test_both_are_what_their_collectors_make(lake, wanderer):
    policy, params = wanderer, wanderer.init(KEY)
    shown = partial(make_demonstration_collector, num_episodes=5, noise=0.5)
    both = make_accompanied_collector(lake, policy, demonstrations=shown, num_groups=3, group_size=2)
    apart = make_dialogue_collector(lake, policy, num_groups=3, group_size=2), shown(lake, policy)
    assert both.steps_per_collect == 6 and both.divided_option == "num_groups"

    def collect(key):
        state = both.init(key, params)
        alone = [
            collector.collect(collector.init(own_key, params), params, own_key)[1]
            for collector, own_key in zip(apart, jax.random.split(key))
        ]
        return both.collect(state, params, key)[1:], alone

    (batch, metrics), (own, demonstration) = jax.jit(collect)(KEY)
    for one, other in ((batch.own, own), (batch.demonstration, demonstration)):
        np.testing.assert_array_equal(one.tokens, other.tokens)
        np.testing.assert_array_equal(one.success, other.success)
    assert int(metrics["episodes"].total) == 6
