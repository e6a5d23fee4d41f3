"""The donor game's evolution: decisions by hand, imitation, and what a generation measures."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.studies import donor_game
from jaxagents.studies.donor_game import BaseModel, Strategy

SMALL = {"num_societies": 2, "num_agents": 4, "num_rounds": 4, "num_generations": 3}


def strategy(**numbers):
    defaults = {"initial": 0.5, "threshold": 0.4, "slope": 0.5, "forgiveness": 0.2, "justified": 0.0, "punishment": 0.6}
    return Strategy(**{name: jnp.float32(value) for name, value in (defaults | numbers).items()})


@pytest.mark.parametrize(
    ("trace", "num_known", "numbers", "expected"),
    [
        ((0.0, 0.0, 0.0), 0, {}, 0.5),  # A stranger.
        ((0.6, 0.0, 0.0), 1, {}, 0.5 + 0.5 * 0.2),  # More than the threshold is answered with more.
        ((1.0, 0.0, 0.0), 1, {"initial": 0.9, "slope": 1.0}, 1.0),  # But all is all.
        ((0.1, 0.0, 0.0), 1, {}, 0.2 * 0.5),  # The stingy.
        ((0.1, 0.0, 0.0), 2, {}, 0.2 * 0.5),  # Stingy to the stingy, without and
        ((0.1, 0.0, 0.0), 2, {"justified": 1.0}, 0.5),  # with second thoughts,
        ((0.1, 0.3, 0.3), 3, {"justified": 1.0}, 0.2 * 0.5),  # and third ones: the second had reasons.
        ((0.1, 0.3, 0.4), 3, {"justified": 1.0}, 0.5),
        ((0.1, 0.0, 0.0), 1, {"justified": 1.0}, 0.2 * 0.5),  # Nobody knows whom it gave little.
    ],
)
def test_decisions_by_hand(trace, num_known, numbers, expected):
    known = jnp.arange(3) < num_known
    action = donor_game.decide(strategy(**numbers), jnp.array(trace), known)
    np.testing.assert_allclose(action, expected, rtol=1e-6)


def test_punishment_counts_against_forgiveness():
    known, trace = jnp.array([True, False, False]), jnp.array([0.1, 0.0, 0.0])
    np.testing.assert_allclose(donor_game.decide(strategy(), trace, known, True), -0.4, rtol=1e-6)
    milder = donor_game.decide(strategy(punishment=0.1), trace, known, True)
    np.testing.assert_allclose(milder, (0.2 - 0.1) * 0.5, rtol=1e-6)
    # Good recipients are not punished.
    np.testing.assert_allclose(donor_game.decide(strategy(), jnp.array([0.4, 0, 0]), known, True), 0.5, rtol=1e-6)


def test_newcomers_copy_or_start_afresh():
    survivors = jax.tree.map(lambda number: jnp.stack([number, number]), strategy())
    exact = BaseModel(generosity=1.0, strictness=0.0, fidelity=1.0, mutation=0.0)
    imitate = jax.jit(donor_game.imitate, static_argnums=2)
    copies = imitate(jax.random.key(0), survivors, 400, exact)
    for name, numbers in vars(copies).items():
        np.testing.assert_allclose(numbers, np.full(400, getattr(strategy(), name)))
    deaf = imitate(jax.random.key(0), survivors, 400, BaseModel(0.3, 0.0, 0.0, 0.0))
    assert abs(float(deaf.initial.mean()) - 0.3) < 0.03 and abs(float(deaf.slope.mean()) - 0.5) < 0.05
    assert bool((deaf.threshold <= deaf.initial).all()) and float(deaf.forgiveness.max()) > 0.9
    strict = imitate(jax.random.key(0), survivors, 400, BaseModel(0.3, 0.8, 0.0, 0.0))
    assert bool((strict.threshold >= 0.8 * strict.initial).all()) and float(strict.forgiveness.max()) <= 0.2
    half = imitate(jax.random.key(1), survivors, 400, BaseModel(0.3, 0.0, 0.5, 0.0))
    assert abs(float((half.slope == 0.5).mean()) - 0.5) < 0.08


def test_wealth_of_those_who_give_everything():
    # One round each way: donors give all of 10 or hardly less, recipients end with 30, the mean is 15 in either game.
    everything = {"generosity": 1.0, "fidelity": 1.0, "mutation": 0.0}
    result = donor_game.run(0, **everything, **SMALL | {"num_rounds": 1})
    assert 13.0 < result["wealth"][0] <= 15.0
    assert result["takeoff"] == 0.0 and len(result["wealth"]) == 3
    np.testing.assert_allclose(result["growth"], result["doublings"][-1] - result["doublings"][0], atol=1e-9)
    # Nobody has a reputation in the first round, and all strangers are alike.
    assert np.isnan(result["reciprocity"]).all()


@pytest.mark.exhaustive
def test_seeds_and_switches_count():
    result = donor_game.run(0, **SMALL)
    np.testing.assert_equal(donor_game.run(0, **SMALL), result)
    assert donor_game.run(1, **SMALL)["wealth"] != result["wealth"]
    for switch in ("selection", "transmission"):
        other = donor_game.run(0, **{switch: False}, **SMALL)
        assert other["wealth"][0] == result["wealth"][0] and other["wealth"] != result["wealth"]
    blind = donor_game.run(0, trace=False, **SMALL)
    assert blind["wealth"] != result["wealth"]
    assert max(donor_game.run(0, punishment=True, **SMALL)["punished"]) > 0.0 == max(result["punished"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"generosity": 1.5}, "`generosity` must be from 0 to 1, got 1.5."),
        ({"mutation": -0.1}, "`mutation` must be at least 0, got -0.1; try 0.05."),
        ({"num_generations": 1}, "`num_generations` must be at least 2, got 1; try 10."),
        ({"num_agents": 7}, "`num_agents` must be even and at least 4, got 7; try 12."),
    ],
)
def test_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        donor_game.run(0, **settings)
