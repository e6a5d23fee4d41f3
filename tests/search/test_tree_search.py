"""Tree searches against mctx itself and against exact play; the experience of whoever searches before acting."""

import functools
from functools import partial

import jax
import jax.numpy as jnp
import mctx
import numpy as np
import optax
import pytest

from jaxagents.environments.adapters.pgx import make_environment
from jaxagents.environments.opponents import against
from jaxagents.environments.tic_tac_toe import LINES, best_moves, make_perfect_player
from jaxagents.environments.wrappers import alternating, flatten_observation
from jaxagents.learners.alphazero import make_agent, make_alphazero, outcomes
from jaxagents.networks.torsos import MLP
from jaxagents.ops.distributions import Categorical
from jaxagents.policies.actor_critic import make_actor_critic
from jaxagents.policies.evaluating import with_evaluation
from jaxagents.policies.latent_model import LatentModel
from jaxagents.search.evaluate import make_game_planner, make_model_planner, make_planning_evaluator
from jaxagents.search.self_play import make_search_collector
from jaxagents.search.tree_search import make_latent_search, make_tree_search
from jaxagents.types import ActorCritic, Box, Discrete, Rollout, TimeStep, Transition
from tests.fakes import make_transition, make_world

KEY = jax.random.key(0)
GAME = alternating(flatten_observation(make_environment("tic_tac_toe")))
GUMBEL = partial(mctx.gumbel_muzero_policy, gumbel_scale=0.0)


def uninformed(num_actions):
    """Returns an actor-critic that says nothing: equal logits, values of zero."""

    def apply(params, carry, inputs):
        leading = inputs.first.shape
        return (
            carry,
            Categorical(logits=jnp.zeros((*leading, num_actions))).mask(inputs.action_mask),
            jnp.zeros(leading),
        )

    return ActorCritic(init=lambda key: (), initial_carry=lambda shape: (), apply=apply)


def make_line():
    """A walk on 0 .. 4 from 2: action 1 goes right, 0 left; 4 pays 1 and 0 pays 0.4, and both end it."""

    def view(state, **fields):
        return state, TimeStep(observation=jax.nn.one_hot(state, 5), truncated=jnp.zeros((), bool), **fields)

    def step(key, state, action):
        over = (state == 0) | (state == 4)
        following = jnp.where(over, state, state + 2 * action - 1)
        reward = jnp.where(over, 0.0, jnp.where(following == 4, 1.0, jnp.where(following == 0, 0.4, 0.0)))
        return view(following, reward=reward, terminated=(following == 0) | (following == 4))

    return make_world(
        lambda key, task: view(jnp.int32(2), reward=jnp.float32(0.0), terminated=jnp.zeros((), bool)),
        step,
        Box((5,)),
        Discrete(2),
        20,
    )


@pytest.mark.exhaustive
def test_a_search_in_an_exact_model_is_one_in_the_world_itself():
    """The walk as a model: latents are observations, and both ends stay and pay nothing."""
    line, key = make_line(), jax.random.key(3)
    reward = jnp.array([[0, 0], [0.4, 0], [0, 0], [0, 1.0], [0, 0]])
    following = jnp.array([[0, 0], [0, 2], [1, 3], [2, 4], [4, 4]])

    def step(params, latent, action):
        state = jnp.argmax(latent, axis=-1)
        return jax.nn.one_hot(following[state, action], 5), reward[state, action]

    model = LatentModel(
        init=lambda key: (),
        initial_carry=lambda shape: (),
        apply=None,
        represent=lambda params, observation: observation,
        step=step,
        predict=lambda params, latent: (
            Categorical(logits=jnp.zeros((*latent.shape[:-1], 2))),
            jnp.zeros(latent.shape[:-1]),
        ),
    )
    options = {"method": GUMBEL, "num_simulations": 12, "discount": 0.9}
    found = jax.jit(make_latent_search(model, **options))((), key, *line.reset(KEY, ()))
    expected = jax.jit(make_tree_search(line, with_evaluation(uninformed(2)), **options))((), key, *line.reset(KEY, ()))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, expected)
    assert float(found.value) > 0.3
    # As it is evaluated: the walk goes where the greater reward is.
    planner = partial(make_model_planner, **options)
    result = jax.jit(make_planning_evaluator(line, model, planner=planner, num_episodes=2))((), KEY)
    assert result["episode_return"].tolist() == [1.0, 1.0] and result["finished"].all()
    with pytest.raises(ValueError, match="`policy` must have a model to search, got .*; try policy=latent_model"):
        make_model_planner(line, with_evaluation(uninformed(2)), **options)
    with pytest.raises(ValueError, match="`num_simulations` must be at least 1, got 0; try 16"):
        make_latent_search(model, method=GUMBEL, num_simulations=0)


@pytest.mark.slow
def test_the_search_is_that_of_mctx_on_the_same_tree():
    """The walk written again as a table that mctx is given directly."""
    line, key = make_line(), jax.random.key(3)
    search = make_tree_search(line, with_evaluation(uninformed(2)), method=GUMBEL, num_simulations=12, discount=0.9)
    found = jax.jit(search)((), key, *line.reset(KEY, ()))
    reward = jnp.array([[0, 0], [0.4, 0], [0, 0], [0, 1.0], [0, 0]])
    following = jnp.array([[0, 0], [0, 2], [1, 3], [2, 4], [4, 4]])

    def expand(params, key, action, state):
        after = following[state, action]
        leaf = mctx.RecurrentFnOutput(
            reward=reward[state, action],
            discount=jnp.where((after == 0) | (after == 4), 0.0, 0.9),
            prior_logits=jnp.full((1, 2), jnp.log(0.5)),
            value=jnp.zeros(1),
        )
        return leaf, after

    root = mctx.RootFnOutput(prior_logits=jnp.full((1, 2), jnp.log(0.5)), value=jnp.zeros(1), embedding=jnp.array([2]))
    expected = GUMBEL((), key, root, expand, 12)
    np.testing.assert_allclose(found.weights, expected.action_weights[0], rtol=1e-5)
    np.testing.assert_allclose(found.value, expected.search_tree.summary().value[0], rtol=1e-5)
    assert int(found.action) == int(expected.action[0]) == 1


@pytest.fixture(scope="module")
def boards():
    """Returns states of games after random moves, 24 of each length from 3 to 7, and what a search finds there."""
    search = make_tree_search(GAME, with_evaluation(uninformed(9)), method=GUMBEL, num_simulations=300)

    def play(key):
        reset_key, key = jax.random.split(key)
        state, timestep = GAME.reset(reset_key, GAME.sample_task(reset_key))

        def move(carry, key):
            action = jax.random.categorical(key, jnp.where(carry[1].action_mask, 0.0, -jnp.inf))
            carry = GAME.step(key, carry[0], action)
            return carry, carry

        return jax.lax.scan(move, (state, timestep), jax.random.split(key, 7))[1]

    state, timestep = jax.jit(jax.vmap(play))(jax.random.split(KEY, 24))
    # From the third move on: earlier trees are too large for so few simulations.
    state, timestep = jax.tree.map(lambda leaf: leaf[:, 2:].reshape(-1, *leaf.shape[2:]), (state, timestep))
    found = jax.jit(jax.vmap(search, in_axes=(None, 0, 0, 0)))((), jax.random.split(KEY, 120), state, timestep)
    return timestep, found


@pytest.mark.slow
def test_searches_of_open_games_play_perfectly(boards):
    """Wins are found and losses avoided in either seat, which fails with the sign of either of the two turned."""
    timestep, found = boards
    running = ~np.asarray(timestep.terminated)
    stones = np.asarray(timestep.observation).reshape(-1, 9, 2)
    code = (stones[..., 0] + 2 * stones[..., 1]) @ 3 ** np.arange(9)
    good = best_moves()[code.astype(int), np.asarray(found.action)]
    assert running.sum() > 60 and good[running].mean() > 0.95
    assert np.all(np.asarray(timestep.action_mask)[running, np.asarray(found.action)[running]])


def test_outcomes_change_sides_with_the_player():
    """Three moves of a game that the last one wins: +1 for who moved first and last, -1 for the other."""
    zeros = jnp.zeros((3, 1))
    transition = make_transition(
        observation=zeros[..., None],
        action=zeros.astype(jnp.int32),
        reward=jnp.array([[0.0], [0.0], [1.0]]),
        terminated=jnp.array([[False], [False], [True]]),
        extras={"perspective": jnp.full((3, 1), -1.0)},
    )
    target = outcomes(uninformed(2), (), transition, jnp.float32(1.0), jnp.float32(1.0))
    np.testing.assert_allclose(target[:, 0], [1.0, -1.0, 1.0])
    cut = transition.replace(terminated=zeros > 0, reward=zeros)
    certain = uninformed(2)._replace(
        apply=lambda params, carry, inputs: (carry, None, jnp.full(inputs.first.shape, 0.5))
    )
    target = outcomes(certain, (), cut, jnp.float32(1.0), jnp.float32(1.0))
    np.testing.assert_allclose(target[:, 0], [-0.5, 0.5, -0.5])


def test_a_step_is_the_cross_entropy_and_the_squared_error_by_hand():
    def apply(params, carry, inputs):
        logits = jnp.broadcast_to(params["logits"], (*inputs.first.shape, 2))
        return carry, Categorical(logits=logits), jnp.broadcast_to(params["value"], inputs.first.shape)

    start = {"logits": jnp.array([0.0, 0.0]), "value": jnp.float32(0.25)}
    network = ActorCritic(init=lambda key: start, initial_carry=lambda shape: (), apply=apply)
    one = jnp.ones((1, 2))
    transition = Transition(
        observation=one[..., None],
        action=one.astype(jnp.int32),
        behavior_log_prob=one,
        reward=one,
        terminated=one > 0,
        truncated=one < 0,
        next_observation=one[..., None],
        first=one > 0,
        extras={"search_policy": jnp.array([[[0.9, 0.1], [0.7, 0.3]]])},
    )
    learner = make_alphazero(network, optax.sgd(0.1), num_epochs=1, num_minibatches=1, value_coefficient=2.0)
    state, metrics = learner.update(learner.init(KEY), KEY, Rollout(transition=transition, carry=()))
    np.testing.assert_allclose(state.params["logits"], [0.1 * 0.3, -0.1 * 0.3], rtol=1e-5)
    np.testing.assert_allclose(state.params["value"], 0.25 + 0.1 * 2.0 * 0.75, rtol=1e-6)
    np.testing.assert_allclose(metrics["loss"], np.log(2.0) + 2.0 * 0.5 * 0.75**2, rtol=1e-6)


@pytest.mark.exhaustive
def test_collectors_hand_over_what_searches_found():
    """In the walk, every search of the start goes right, and every second step ends an episode with a return of 1."""
    line = make_line()
    policy = with_evaluation(uninformed(2))
    collector = make_search_collector(line, policy, method=GUMBEL, num_simulations=12, num_envs=3, num_steps=4)
    state, rollout, metrics = jax.jit(collector.collect)(collector.init(KEY, ()), (), KEY)
    transition = rollout.transition
    np.testing.assert_array_equal(transition.action, np.ones((4, 3)))
    np.testing.assert_array_equal(transition.reward, np.tile([[0.0], [1.0]], (2, 3)))
    np.testing.assert_array_equal(transition.terminated, np.tile([[False], [True]], (2, 3)))
    np.testing.assert_allclose(transition.extras["search_policy"].sum(-1), 1.0, rtol=1e-5)
    assert float(metrics["episode_return"].value) == 1.0 and int(metrics["episodes"].total) == 6
    assert collector.steps_per_collect == 12 and int(state.index[2]) == 2


def test_bad_settings_are_refused():
    make = partial(make_tree_search, make_line(), with_evaluation(uninformed(2)), method=GUMBEL)
    with pytest.raises(ValueError, match="`num_simulations` must be at least 1, got 0; try 16"):
        make(num_simulations=0)
    with pytest.raises(ValueError, match="`max_depth` must be at least 1 or null, got 0"):
        make(num_simulations=1, max_depth=0)
    with pytest.raises(ValueError, match="`environment` must have one stream of rewards, got 2 players"):
        make_tree_search(make_environment("tic_tac_toe"), None, method=GUMBEL, num_simulations=1)
    with pytest.raises(ValueError, match="`policy` must be feed-forward for a search, got one with a carry"):
        make_agent(
            GAME,
            policy=lambda *spaces: uninformed(9)._replace(initial_carry=lambda shape: jnp.zeros(shape)),
            optimizer=lambda num_updates: optax.sgd(0.1),
        )
    agent = make_agent(GAME, policy=partial(make_actor_critic, encoder=MLP((4,))), optimizer=lambda n: optax.sgd(0.1))
    assert agent.policy.evaluate is not None


def make_exact(sharpness):
    """Returns an actor-critic that knows tic-tac-toe: values by minimax, logits of -sharpness where a move errs."""
    values = np.zeros(3**9, np.float32)

    @functools.cache
    def value(board):
        if any(all(board[cell] == 2 for cell in line) for line in LINES):
            best = -1
        else:
            free = [cell for cell in range(9) if not board[cell]]
            turned = [tuple((0, 2, 1)[stone] for stone in (*board[:i], 1, *board[i + 1 :])) for i in free]
            best = max((-value(following) for following in turned), default=0)
        values[np.dot(board, 3 ** np.arange(9))] = best
        return best

    value((0,) * 9)
    values, good = jnp.asarray(values), jnp.asarray(best_moves())

    def apply(params, carry, inputs):
        stones = jnp.reshape(inputs.observation, (*inputs.first.shape, 9, 2)).astype(jnp.int32)
        code = (stones[..., 0] + 2 * stones[..., 1]) @ jnp.asarray(3 ** np.arange(9), jnp.int32)
        return carry, Categorical(logits=jnp.where(good[code], 0.0, -sharpness)).mask(inputs.action_mask), values[code]

    return ActorCritic(init=lambda key: (), initial_carry=lambda shape: (), apply=apply)


@pytest.mark.exhaustive
def test_a_search_with_exact_values_draws_with_a_perfect_player_in_either_seat():
    """Every sign between the network and the move is right: with one of them turned, it loses."""
    game = flatten_observation(make_environment("tic_tac_toe"))
    planner = partial(make_game_planner, game=GAME, method=GUMBEL, num_simulations=16)
    environment = against(game, make_perfect_player())
    evaluate = make_planning_evaluator(environment, with_evaluation(make_exact(4.0)), planner=planner, num_episodes=64)
    np.testing.assert_array_equal(jax.jit(evaluate)((), KEY)["episode_return"], np.zeros(64))


@pytest.mark.exhaustive
def test_a_searching_player_hardly_loses_to_a_random_one_in_either_seat():
    """It knows the rules alone, and its trees are small; with the sign of one seat turned it gives games away."""
    game = flatten_observation(make_environment("tic_tac_toe"))
    planner = partial(make_game_planner, game=GAME, method=GUMBEL, num_simulations=200)
    evaluate = make_planning_evaluator(against(game), with_evaluation(uninformed(9)), planner=planner, num_episodes=32)
    results = jax.jit(evaluate)((), KEY)
    assert np.all(np.asarray(results["finished"]) == 1.0)
    assert np.mean(np.asarray(results["episode_return"]) < 0.0) < 0.15 and results["success"].mean() > 0.7
