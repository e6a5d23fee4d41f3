"""The slots of CFR's family, by hand."""

import jax.numpy as jnp
import numpy as np

from jaxagents.games import cfr_methods
from jaxagents.games.cfr import Moment

REGRET, INSTANT = jnp.array([[1.0, -0.5]]), jnp.array([[-2.0, 0.25]])


def moment(iteration, magnitude=1.0, volatility=1.0):
    return Moment(jnp.float32(iteration), jnp.array([[magnitude]]), jnp.array([[volatility]]))


def test_regrets_add_up():
    np.testing.assert_allclose(cfr_methods.summed(REGRET, INSTANT, moment(3)), [[-1.0, -0.25]])
    np.testing.assert_allclose(cfr_methods.summed_positive(REGRET, INSTANT, moment(3)), [[0.0, 0.0]])
    # Two iterations before the third: 4 / 5 of what is positive, 1 / 2 of what is negative.
    factors = {"alpha": 2.0, "beta": 0.0}
    plain = cfr_methods.discounted(REGRET, INSTANT, moment(3), **factors, floor=-jnp.inf)
    np.testing.assert_allclose(plain, [[0.8 - 2.0, -0.25 + 0.25]], rtol=1e-6)
    floored = cfr_methods.discounted(REGRET, INSTANT, moment(3), **factors, floor=-1.0)
    np.testing.assert_allclose(floored, [[-1.0, 0.0]], rtol=1e-6)


def test_predictions():
    np.testing.assert_allclose(cfr_methods.no_prediction(REGRET, INSTANT, moment(3)), REGRET)
    np.testing.assert_allclose(cfr_methods.last_regret(REGRET, INSTANT, moment(3)), [[-1.0, -0.25]])
    predicted = cfr_methods.discounted_last_regret(REGRET, INSTANT, moment(3), alpha=2.0, beta=0.0)
    np.testing.assert_allclose(predicted, [[0.9 - 2.0, -0.25 + 0.25]], rtol=1e-6)


def test_weights():
    assert float(cfr_methods.power(moment(3), gamma=2.0)) == 9.0
    # The share of the scale is 1 / 2: gamma 2.75.
    weight = cfr_methods.volatile_power(moment(4), warm_start=3, scale=2.0)
    np.testing.assert_allclose(weight, [[4.0**2.75 * 1.5**0.5 / 2.0]], rtol=1e-5)
    # A magnitude of 4 is twice the scale: gamma stops at 3.5.
    weight = cfr_methods.volatile_power(moment(4, magnitude=4.0), warm_start=3, scale=2.0)
    np.testing.assert_allclose(weight, [[4.0**3.5 * 3.0**0.5 / 9.0]], rtol=1e-5)
    assert float(cfr_methods.volatile_power(moment(3), warm_start=3, scale=2.0)[0, 0]) == 0.0


def test_two_iterations_of_volatile_regrets():
    method = cfr_methods.vad_cfr()
    # The first: v = 1/4, and all discounts are 1/2; the gain is boosted.
    first, now = jnp.array([[0.5, -0.5]]), moment(1, magnitude=0.5, volatility=0.5)
    regret = method.accumulate(jnp.zeros((1, 2)), first, now)
    np.testing.assert_allclose(regret, [[0.55, -0.5]], rtol=1e-6)
    prediction = method.predict(regret, first, now)
    np.testing.assert_allclose(prediction, [[0.5 * 0.55 + 0.875 * 0.55, -0.5 * 0.5 - 0.875 * 0.5]], rtol=1e-6)
    # The second: v = 0.325, alpha = 1.3375, beta = -0.2625.
    second, now = jnp.array([[-1.0, 2.0]]), moment(2, magnitude=2.0, volatility=0.65)
    positive, negative = 2**1.3375 / (2**1.3375 + 1), 2**-0.2625 / (2**-0.2625 + 1)
    regret = method.accumulate(regret, second, now)
    np.testing.assert_allclose(regret, [[positive * 0.55 - 1.0, negative * -0.5 + 2.2]], rtol=1e-6)
    weight = (1 - 0.5 * 0.325) / 1.01
    expected = [[negative * float(regret[0, 0]) - weight, positive * float(regret[0, 1]) + weight * 2.2]]
    np.testing.assert_allclose(method.predict(regret, second, now), expected, rtol=1e-6)
    # Regrets stop at the floor; discounts stop getting stronger at the scale.
    assert float(method.accumulate(jnp.full((1, 2), -90.0), second, now)[0, 0]) == -20.0
    high, higher = (method.accumulate(jnp.ones((1, 2)), second, moment(2, volatility=v)) for v in (2.0, 5.0))
    np.testing.assert_array_equal(high, higher)
    np.testing.assert_allclose(high[0, 1], 2.0 / 3.0 + 2.2, rtol=1e-6)
