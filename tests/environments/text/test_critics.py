"""Critics who err: votes by hand, how often they miss and invent, and the actions that they come to."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text import lists
from jaxagents.environments.text.builder import make_text_world
from jaxagents.environments.text.critics import merge, name_flaws, with_critics

KEY = jax.random.key(6)
NAMED = jnp.array([[1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1, 0], [1, 0, 0, 0]], bool)  # Four critics, four flaws.


@pytest.fixture(scope="module")
def rules():
    return lists.make_environment((4,), operations=("reverse",), mode="critique").text.rules


@pytest.mark.parametrize("votes, kept", [(1, [1, 1, 1, 0]), (2, [1, 1, 0, 0]), (3, [1, 0, 0, 0]), (4, [1, 0, 0, 0])])
def test_votes_by_hand(votes, kept):
    assert merge(NAMED, votes).tolist() == [bool(one) for one in kept]


def test_flaws_are_missed_and_invented_as_often_as_said():
    there = jnp.array([True, False])
    draw = jax.vmap(lambda key: name_flaws(key, there, 4, miss=0.3, invent=0.1))
    named = np.asarray(draw(jax.random.split(KEY, 4000)))
    np.testing.assert_allclose(named.mean(axis=(0, 1)), [0.7, 0.1], atol=0.01)
    # Of four, two or more: 1 - 0.3^4 - 4 0.7 0.3^3 and 1 - 0.9^4 - 4 0.1 0.9^3.
    np.testing.assert_allclose((named.sum(axis=1) >= 2).mean(axis=0), [0.9163, 0.0523], atol=0.015)


@pytest.mark.parametrize("miss, invent", [(0.0, 0.0), (1.0, 0.0), (0.3, 0.2)])
def test_what_the_expert_says_is_an_action(rules, miss, invent):
    """Critics who do not err say what is right, those who miss everything say none, and all can be understood."""
    world = make_text_world(with_critics(rules, miss=miss, invent=invent))

    def play(key):
        task = world.sample_task(key)
        state, _ = world.reset(key, task)
        action = world.text.expert(key, state)[0]
        _, timestep = world.step(key, state, action)
        clean = lists.find_flaws(task["criticised"], lists.solve(task), 4)[0] < 0
        return timestep.info["success"], ~timestep.info["valid"], clean

    success, invalid, clean = (np.asarray(leaf) for leaf in jax.jit(jax.vmap(play))(jax.random.split(KEY, 200)))
    assert not invalid.any()
    if miss == 0.0:
        assert success.all()
    elif miss == 1.0:
        np.testing.assert_array_equal(success, clean)
    else:
        assert 0.2 < success.mean() < 0.9


@pytest.mark.parametrize(
    "options, message",
    [({"votes": 5}, "`votes` must be from 1 to 4, got 5"), ({"miss": 1.5}, "`miss` must be from 0.0 to 1.0, got 1.5")],
)
def test_numbers_out_of_range_are_refused(rules, options, message):
    with pytest.raises(ValueError, match=message):
        with_critics(rules, **options)


def test_worlds_without_critiques_are_refused():
    with pytest.raises(ValueError, match="`world` must answer with a list or with none, got 'lists'; try"):
        with_critics(lists.make_environment((4,)).text.rules)
