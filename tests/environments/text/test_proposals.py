"""Proposed tasks: what fits together, and what does not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text import shop
from jaxagents.environments.text.proposals import with_proposals

KEYS = jax.random.split(jax.random.key(5), 400)
HAS, PRICE = shop.draw_products(0)


def tasks(rate):
    """400 tasks of the level with a kind, a trait, a colour and a price."""
    world = shop.make_environment((1, 2), wrappers={"proposals": lambda rules: with_proposals(rules, rate=rate)})
    return jax.jit(jax.vmap(lambda key: world.sample_task(key, 1)))(KEYS)


def possible(task):
    """The share of tasks that some product meets."""
    wish, below = np.asarray(task["wish"]), np.asarray(task["below"])
    meets = np.all(HAS[:, np.where(wish < 0, wish[:, :1], wish)], axis=2) & (PRICE[:, None] < below[None])
    return meets.any(axis=0).mean()


@pytest.mark.slow
def test_parts_of_proposals_come_from_other_tasks():
    own, some, none = tasks(0.0), tasks(0.25), tasks(1.0)
    assert possible(own) == 1.0 and possible(none) < possible(some) < 1.0 and possible(some) > 0.4
    for proposed in (some, none):
        assert (proposed["level"] == 1).all() and (proposed["wish"][:, 2] == -1).all()
        for place in (0, 1, 3):  # Every word is one of its kind, as in tasks of the world.
            assert set(np.unique(proposed["wish"][:, place])) == set(np.unique(own["wish"][:, place]))
    # Without context the trait says nothing of the kind: the share of pairs that a product has is the product's.
    has = HAS[:, : shop.COLOUR].astype(float)
    pairs = has.T @ has > 0
    kinds, traits = np.asarray(none["wish"][:, 0]), np.asarray(none["wish"][:, 1])
    expected = np.mean(pairs[kinds][:, traits])
    assert np.mean(pairs[kinds, traits]) == pytest.approx(expected, abs=0.08)


@pytest.mark.slow
def test_elements_are_mixed_one_by_one():
    """A share `rate` of the prices comes from another task, whose price differs as often as that of any two tasks."""
    rules = shop_rules()
    draw = jax.vmap(lambda key, n: rules.sample(jax.random.fold_in(key, n), jnp.int32(0)), in_axes=(0, None))
    own, other = draw(KEYS, 0), draw(KEYS, 1)
    differ = np.mean(np.asarray(own["below"] != other["below"]))
    assert 0.5 < differ < 1.0
    complete = with_proposals(rules, rate=0.25).complete
    proposed = jax.vmap(lambda key, task: complete(key, task, False))(KEYS, own)
    assert np.mean(np.asarray(proposed["below"] != own["below"])) == pytest.approx(0.25 * differ, abs=0.06)
    held_out = jax.vmap(lambda key, task: complete(key, task, True))(KEYS, own)
    assert jax.tree.all(jax.tree.map(lambda one, two: bool((one == two).all()), held_out, own))
    with pytest.raises(ValueError, match="`rate`"):
        with_proposals(rules, rate=1.5)


def shop_rules():
    """Returns the rules of a shop before any wrapper."""
    kept = []
    shop.make_environment((2,), wrappers={"keep": lambda rules: kept.append(rules) or rules})
    return kept[0]
