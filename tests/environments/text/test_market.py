"""A market: what orders earn, by hand, and what tools tell."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text import market

make = functools.cache(market.make_environment)


@pytest.mark.exhaustive
def test_orders_earn_what_the_price_moves(hand):
    environment = make(2, reward="dense", look_cost=0.125)
    task = {
        "sector": jnp.int32(1),
        "moves": jnp.asarray([2, 0], jnp.int32),  # Up, down.
        "told": jnp.asarray([[2, 0, 1], [0, 0, 2]], jnp.int32),
        "level": jnp.int32(0),
    }
    texts, timesteps, _ = hand.play(environment, task, ["look volume", "buy", "look trend", "sell"])
    assert texts == [
        "oil day 1 price 5 0 profit 0",
        "oil day 1 price 5 0 profit 0 volume down",
        "oil day 2 price 5 1 profit 1",
        "oil day 2 price 5 1 profit 1 trend up",
        "oil day 2 price 5 0 profit 2",
    ]
    np.testing.assert_allclose([float(t.reward) for t in timesteps], [0, -0.125, 0.5, -0.125, 0.5])
    assert bool(timesteps[-1].terminated) and bool(timesteps[-1].info["success"])
    texts, timesteps, _ = hand.play(environment, task, ["sell", "hold"])
    assert texts[-1] == "oil day 2 price 5 0 loss 1" and float(timesteps[-1].info["metrics"]["score"]) == -0.5
    assert not bool(timesteps[-1].info["success"])


@pytest.mark.exhaustive
def test_one_tool_of_every_sector_is_right(hand):
    tasks = hand.drawn_tasks(make(5), 512, 0)
    agree = (tasks["told"] == tasks["moves"][:, :, None]).mean(axis=1)
    right = np.stack([agree[tasks["sector"] == sector].mean(axis=0) for sector in range(len(market.SECTORS))])
    assert (np.sort(right, axis=1)[:, 2] == 1.0).all()
    # Others tell one of three: within six standard errors of some 85 tasks of five days.
    assert (np.abs(np.sort(right, axis=1)[:, :2] - 1 / 3) < 0.14).all()
    assert sorted(right.argmax(axis=1).tolist()) == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("options", [{"num_days": 6}, {"noise": -0.1}, {"look_cost": -1.0}])
def test_wrong_options_are_refused(options):
    with pytest.raises(ValueError, match="`num_days` must be"):
        make(**options)
