"""Alpha-rank against OpenSpiel, and against chains that can be solved by hand."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from open_spiel.python.egt import alpharank

from jaxagents.games.alpha_rank import alpha_rank
from jaxagents.games.normal_form import pad_payoffs


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


def test_one_better_action_by_hand():
    # One player can change: to the better action with 0.9, back with 0.1.
    payoffs, counts = pad_payoffs(np.array([[[0.0], [1.0]], [[0.0], [0.0]]]))
    joint = alpha_rank(jnp.asarray(payoffs), jnp.asarray(counts), noise=0.1)
    np.testing.assert_allclose(joint, [[0.1, 0.0], [0.9, 0.0]], atol=1e-6)
    # With intensity 1 and m = 3 the odds are e^(2 * 1).
    joint = alpha_rank(jnp.asarray(payoffs), jnp.asarray(counts), intensity=1.0, population_size=3)
    np.testing.assert_allclose(joint[1, 0] / joint[0, 0], np.exp(2.0), rtol=1e-5)


@pytest.mark.parametrize(("shape", "intensity"), [((2, 3, 2), 0.5), ((3, 2, 2, 3), None)])
def test_distributions_agree_with_openspiel(shape, intensity):
    tables = np.random.default_rng(0).normal(size=shape)
    options = {"use_inf_alpha": True, "inf_alpha_eps": 0.02} if intensity is None else {"alpha": intensity, "m": 10}
    _, _, expected, _, _ = alpharank.compute(list(tables), **options)
    payoffs, counts = pad_payoffs(tables)
    own = {"noise": 0.02} if intensity is None else {"intensity": intensity, "population_size": 10}
    actual = jax.jit(partial(alpha_rank, **own))(jnp.asarray(payoffs), jnp.asarray(counts))
    actual = actual[tuple(slice(number) for number in shape[1:])]
    np.testing.assert_allclose(actual.reshape(-1), expected, atol=1e-5)


def test_copies_are_counted():
    tables = np.random.default_rng(1).normal(size=(2, 2, 2))
    expected = alpha_rank(*map(jnp.asarray, pad_payoffs(np.repeat(tables, [3, 1], axis=1))))
    actual = alpha_rank(jnp.asarray(tables), jnp.array([[3.0, 1.0], [1.0, 1.0]]))
    np.testing.assert_allclose(actual[0], jnp.sum(expected[:3, :2], axis=0), atol=1e-6)


def test_strong_selection_does_not_overflow():
    payoffs = jnp.array([[[0.0, 0.0], [1e4, 1e4]], [[0.0, 1.0], [0.0, 1.0]]])
    joint = alpha_rank(payoffs, intensity=100.0)
    np.testing.assert_allclose(joint, [[0.0, 0.0], [0.0, 1.0]], atol=1e-6)
