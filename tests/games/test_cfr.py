"""The CFR family: an iteration by hand, OpenSpiel's solvers as oracles, and known exploitabilities."""

import jax
import jax.numpy as jnp
import numpy as np
import pyspiel
import pytest
from open_spiel.python.algorithms import cfr as spiel_cfr
from open_spiel.python.algorithms import discounted_cfr
from open_spiel.python.algorithms import exploitability as spiel_exploitability

from jaxagents.games import cfr_methods
from jaxagents.games.cfr import make_cfr, solve
from jaxagents.games.definitions.goofspiel import goofspiel
from jaxagents.games.definitions.kuhn import kuhn
from jaxagents.games.definitions.leduc import leduc
from jaxagents.games.definitions.normal_form import from_payoffs
from jaxagents.games.extensive_form import compile_game
from jaxagents.games.strategies import uniform_profile

METHODS = {
    "cfr": cfr_methods.cfr(),
    "cfr_plus": cfr_methods.cfr_plus(),
    "dcfr": cfr_methods.dcfr(),
    "pcfr_plus": cfr_methods.pcfr_plus(),
    "pdcfr_plus": cfr_methods.pdcfr_plus(),
    "vad_cfr": cfr_methods.vad_cfr(),
}


@pytest.fixture(scope="module")
def poker():
    return compile_game(kuhn(2))


def test_an_iteration_by_hand():
    payoffs = np.array([[2.0, 0.0], [0.0, 1.0]])
    game = compile_game(from_payoffs([payoffs, -payoffs]))
    solver = make_cfr(game, cfr_methods.cfr_plus())
    state = solver.update(solver.init())
    # Values 1 and 1/2 of a mean of 3/4; then the second player against the first action: -2 and 0 of -1.
    np.testing.assert_allclose(state.seats[0].regret, [[0.25, 0.0]])
    np.testing.assert_allclose(state.seats[0].policy, [[1.0, 0.0]])
    np.testing.assert_allclose(state.seats[1].regret, [[0.0, 1.0]])
    np.testing.assert_allclose(state.seats[0].volatility, [[0.25]])
    np.testing.assert_allclose(solver.profile(state)[0], [[0.5, 0.5]])
    # The second iteration weighs twice.
    state = solver.update(state)
    np.testing.assert_allclose(state.seats[0].regret, [[0.25, 1.0]])
    np.testing.assert_allclose(solver.profile(state)[0], [[(0.5 + 2 * 1.0) / 3, 0.5 / 3]], rtol=1e-6)
    np.testing.assert_allclose(state.seats[0].volatility, [[0.1 * 1.0 + 0.9 * 0.25]])


@pytest.mark.parametrize(("name", "num_iterations"), [("kuhn_poker", 40), ("kuhn_poker(players=3)", 8)])
def test_openspiel_gets_as_far(name, num_iterations):
    game = pyspiel.load_game(name)
    mine = compile_game(kuhn(game.num_players()))
    solvers = {
        "cfr": spiel_cfr.CFRSolver(game),
        "cfr_plus": spiel_cfr.CFRPlusSolver(game),
        "dcfr": discounted_cfr.DCFRSolver(game),
    }
    for method, solver in solvers.items():
        for _ in range(num_iterations):
            solver.evaluate_and_update_policy()
        theirs = spiel_exploitability.nash_conv(game, solver.average_policy()) / game.num_players()
        with jax.enable_x64():
            _, curve = solve(mine, METHODS[method], num_iterations=num_iterations)
        np.testing.assert_allclose(curve, [theirs], rtol=1e-9)


def test_openspiel_gets_as_far_in_leduc_poker():
    game = pyspiel.load_game("leduc_poker")
    solver = pyspiel.CFRPlusSolver(game)
    for _ in range(10):
        solver.evaluate_and_update_policy()
    with jax.enable_x64():
        _, curve = solve(compile_game(leduc()), METHODS["cfr_plus"], num_iterations=10)
    np.testing.assert_allclose(curve, [pyspiel.exploitability(game, solver.average_policy())], rtol=1e-9)


def test_thousand_iterations_of_kuhn_poker(poker):
    with jax.enable_x64():
        gaps = {name: np.asarray(solve(poker, method, evaluate_every=500)[1]) for name, method in METHODS.items()}
    # Nothing counts before the warm start ends: the policies of NashConv 11/12 that play all actions alike.
    assert gaps["vad_cfr"][0] == pytest.approx(11 / 24) and gaps["vad_cfr"][1] < 1e-12
    assert 1.5e-8 < gaps["pcfr_plus"][1] < 2.5e-8
    assert 1.4e-4 < gaps["dcfr"][1] < 1.7e-4
    assert gaps["pdcfr_plus"][1] < gaps["pcfr_plus"][1] < gaps["cfr_plus"][1] < gaps["dcfr"][1] < gaps["cfr"][1]


def test_single_precision_and_other_games():
    game = compile_game(goofspiel(3, num_players=3))
    profile, curve = solve(game, METHODS["cfr_plus"], num_iterations=60, evaluate_every=20)
    assert profile[0].dtype == jnp.float32 and curve.shape == (3,)
    assert float(curve[-1]) < 0.05 < 0.3 < float(solve(game, METHODS["vad_cfr"], num_iterations=1)[1][0])
    # One player, who finds the better of two actions; and one who has no choice.
    single = compile_game(from_payoffs([[0.0, 1.0]]))
    assert float(solve(single, METHODS["cfr"], num_iterations=50)[1][0]) < 0.02
    forced = compile_game(from_payoffs([[[1.0]], [[-1.0]]]))
    assert float(solve(forced, METHODS["vad_cfr"], num_iterations=3)[1][0]) == 0.0


def test_other_numbers_are_the_same_program_and_can_be_mapped(poker):
    before = solve._cache_size()
    curves = [
        solve(poker, cfr_methods.dcfr(alpha, gamma=gamma), num_iterations=7)[1] for alpha, gamma in ((1, 2), (2, 3))
    ]
    assert solve._cache_size() == before + 1
    numbers = jnp.array([1.0, 2.0]), jnp.array([2.0, 3.0])
    mapped = jax.vmap(lambda a, g: solve(poker, cfr_methods.dcfr(a, gamma=g), num_iterations=7)[1])(*numbers)
    np.testing.assert_allclose(mapped, curves, rtol=1e-4)


def _seven_of_dcfr(game, alpha, gamma):
    return solve(game, cfr_methods.dcfr(alpha, gamma=gamma), num_iterations=7)[1]


def test_policies_start_uniform_and_stay_policies(poker):
    solver = make_cfr(poker, METHODS["pcfr_plus"])
    state = solver.init()
    for mine, uniform in zip(solver.profile(state), uniform_profile(poker)):
        np.testing.assert_array_equal(mine, uniform)
    for own in jax.jit(solver.update)(state).seats:
        np.testing.assert_allclose(jnp.sum(own.policy, axis=1), 1.0, rtol=1e-6)
        assert float(jnp.min(own.policy)) >= 0.0


@pytest.mark.parametrize("settings", [{"num_iterations": 0}, {"num_iterations": 10, "evaluate_every": 3}])
def test_iterations_that_do_not_fit_are_refused(poker, settings):
    with pytest.raises(ValueError, match="`num_iterations` must be a positive multiple of `evaluate_every`"):
        solve(poker, METHODS["cfr"], **settings)
