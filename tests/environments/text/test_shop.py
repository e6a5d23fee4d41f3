"""A shop: products that are graded by hand, and a purchase."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text import shop

make = functools.cache(shop.make_environment)


def index(*words):
    return jnp.asarray([shop.WORDS.index(word) if word else -1 for word in words], jnp.int32)


@pytest.mark.parametrize(
    "wish, below, colour, score",
    [
        (("mug", "steel", "light", "red"), 5, "red", 1.0),
        (("mug", "steel", "light", "red"), 4, "red", 3 / 4),  # Too dear.
        (("mug", "steel", "soft", "red"), 5, "blue", 2 / 4),
        (("mug", "soft", None, None), 5, None, 1 / 2),
        (("bowl", "steel", None, None), 5, None, 1 / 2),  # The other kind of the department.
        (("lamp", "steel", None, None), 5, None, 0.0),
    ],
)
def test_what_is_bought_is_graded(wish, below, colour, score):
    has = jnp.zeros((1, len(shop.WORDS)), bool).at[0, index("mug", "steel", "light", "red", "blue")].set(True)
    task = {"wish": index(*wish), "below": jnp.int32(below)}
    chosen = jnp.int32(shop.COLOURS.index(colour) if colour else -1)
    graded = shop.grade(has, jnp.asarray([4]), task, jnp.int32(0), chosen)
    assert float(graded["score"]) == pytest.approx(score)


def test_two_products_of_a_kind_have_a_trait():
    has, price = shop.draw_products(3)
    kinds, traits = has[:, : len(shop.KINDS)], has[:, len(shop.KINDS) : shop.COLOUR]
    np.testing.assert_array_equal(kinds.T.astype(int) @ traits, np.full((len(shop.KINDS), len(shop.TRAITS)), 2))
    assert (has[:, shop.COLOUR :].sum(axis=1) == 2).all() and len({tuple(row) for row in has[:, : shop.COLOUR]}) == 48
    assert price.min() >= 1 and price.max() <= 9


@pytest.mark.exhaustive
def test_a_purchase_in_words(hand):
    environment = make((1, 3))
    has, price = shop.draw_products(0)
    product = 7
    kind, *traits, red = [shop.WORDS[i] for i in np.flatnonzero(has[product])][:4]
    wish = index(kind, traits[0], traits[1], red)
    task = {"wish": wish, "below": jnp.int32(price[product] + 1), "level": jnp.int32(1)}
    actions = [f"search {kind} {traits[1]} {traits[0]}", "choose red", "open 1", f"choose {red}", "buy"]
    texts, timesteps, _ = hand.play(environment, task, actions)
    assert texts[0] == f"want {kind} {traits[0]} {traits[1]} {red} below {price[product] + 1}"
    assert texts[1].startswith(f"{texts[0]} 1 {kind} {traits[0]} {traits[1]} {price[product]} 2 ")
    assert texts[2].endswith("nothing happens .")  # No product is open.
    assert texts[4] == f"{texts[3]} chosen {red}"
    assert [float(t.reward) for t in timesteps] == [0, 0, 0, 0, 0, 1] and bool(timesteps[-1].terminated)
    _, timesteps, _ = hand.play(environment, task, [actions[0], "open 2", "back", "open 1", "buy"])
    assert not bool(timesteps[-1].info["success"])
    assert float(timesteps[-1].info["metrics"]["score"]) == pytest.approx(3 / 4)


@pytest.mark.parametrize("options", [{"num_wishes": (4,)}, {"max_steps": 3}])
def test_wrong_options_are_refused(options):
    with pytest.raises(ValueError, match=f"`{next(iter(options))}` must be"):
        make(**options)
