"""A market: what orders earn, by hand, and what tools tell."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text import guess_number, market
from jaxagents.environments.text.alphaquanter import with_decision_rewards

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


@pytest.mark.parametrize(
    "spoken, options, expected",
    [
        # Up, then down. A right decision 1, a form 0.1, a third of 0.1 for one tool of three.
        (["look volume", "buy", "look trend", "sell"], {}, [0, 1.1 + 0.1 / 3, 0, 1.1 + 0.1 / 3]),
        (["look news", "look news", "look trend", "buy", "hold"], {}, [0, 0, 0, 1.1 + 0.2 / 3 - 0.05, 0.1]),
        (["sell", "buy"], {"form": 0.0}, [-1, -1]),
        (["look news", "buy", "look news", "hold"], {"tools": 0.5, "useful": 1}, [0, 1.6, 0, 0.6]),
        # By one day and by two, e^-0.2 to e^-0.4: y = 0.55 - 0 on the first day, -1 on the second.
        (["buy", "sell"], {"horizons": (1, 2)}, [1.1, 1.1]),
        (["hold", "sell"], {"horizons": (1, 2), "threshold": 0.6}, [0.6, 1.1]),
        (["buy", "sell"], {"horizons": (1, 2), "threshold": 0.6}, [-0.15, 1.1]),
    ],
)
def test_decisions_earn_what_follows_and_what_was_asked(hand, spoken, options, expected):
    wrap = functools.partial(with_decision_rewards, **options)
    environment = market.make_environment(2, reward="dense", wrappers={"decision_rewards": wrap})
    task = {
        "sector": jnp.int32(1),
        "moves": jnp.asarray([2, 0], jnp.int32),
        "told": jnp.zeros((2, 3), jnp.int32),
        "level": jnp.int32(0),
    }
    _, timesteps, _ = hand.play(environment, task, spoken)
    np.testing.assert_allclose([float(t.reward) for t in timesteps[1:]], np.asarray(expected) / 2, atol=1e-6)
    np.testing.assert_allclose(timesteps[-1].info["metrics"]["decision"], np.sum(expected) / 2, atol=1e-6)


def test_decisions_are_those_at_a_market():
    with pytest.raises(ValueError, match="`world` must be market, got 'guess_number'"):
        with_decision_rewards(guess_number.make_environment().text.rules)
    with pytest.raises(ValueError, match="`horizons` and `useful` must be at least 1, got \\(0,\\) and 3"):
        with_decision_rewards(market.make_environment().text.rules, horizons=(0,))
