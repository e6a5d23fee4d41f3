"""MuZero on a model of four numbers, worked out by hand."""

from functools import partial

import jax
import jax.numpy as jnp
import mctx
import numpy as np
import optax
import pytest

from jaxagents.data.buffers import make_uniform_buffer
from jaxagents.environments import tmaze
from jaxagents.environments.timesteps import first_timestep
from jaxagents.learners.muzero import in_units_of_rewards, make_agent, make_muzero
from jaxagents.networks.torsos import MLP
from jaxagents.ops.distributions import Categorical
from jaxagents.policies.actor_critic import make_actor_critic
from jaxagents.policies.latent_model import LatentModel, make_latent_model
from jaxagents.search.self_play import make_search_collector
from jaxagents.training.program import make_program, run_updates
from jaxagents.types import Box, Discrete, TimeStep
from tests.fakes import make_sample, make_world

KEY = jax.random.key(0)
NUMBERS = {"encoder": 0.5, "move": 0.3, "reward": 0.7, "value": 2.0}


def _step(params, latent, action):
    return latent + params["move"] * action[..., None], params["reward"] * latent[..., 0]


# Latents are one number, which is also the logit of the first of two actions.
LINEAR = LatentModel(
    init=lambda key: jax.tree.map(jnp.float32, NUMBERS),
    initial_carry=lambda shape: (),
    apply=None,
    represent=lambda params, observation: params["encoder"] * observation,
    step=_step,
    predict=lambda params, latent: (
        Categorical(logits=jnp.concatenate([latent, jnp.zeros_like(latent)], axis=-1)),
        params["value"] * latent[..., 0],
    ),
)


def h(x):
    return np.sign(x) * (np.sqrt(np.abs(x) + 1.0) - 1.0) + 1e-3 * x


def inverse(y):
    """Solves h(x) = y by bisection."""
    low, high = np.full_like(y, -1e4), np.full_like(y, 1e4)
    for _ in range(80):
        middle = 0.5 * (low + high)
        low, high = np.where(h(middle) < y, middle, low), np.where(h(middle) < y, high, middle)
    return low


def sample(terminated=(False, False), truncated=(False, False), extras=None):
    """Returns two steps of one sequence: observations 1 and 2, then 4, and rewards 1 and 3."""

    def column(values, dtype=jnp.float32):
        return jnp.asarray(values, dtype)[:, None]

    return make_sample(
        weight=jnp.full(1, 2.0),
        observation=column([1.0, 2.0])[..., None],
        action=column([1, 0], jnp.int32),
        reward=column([1.0, 3.0]),
        terminated=column(terminated, bool),
        truncated=column(truncated, bool),
        next_observation=column([2.0, 4.0])[..., None],
        first=column([True, False], bool),
        extras={"search_policy": jnp.array([[[0.8, 0.2]], [[0.1, 0.9]]])} if extras is None else extras,
    )


def update(**options):
    learner = make_muzero(LINEAR, optax.sgd(0.0), num_unroll=1, discount=0.5, trace_decay=0.6, value_coefficient=0.25)
    return jax.jit(learner.update)(learner.init(KEY), KEY, sample(**options))[1]


def cross_entropy(weights, logit):
    log_probs = np.array([logit, 0.0]) - np.log1p(np.exp(logit))
    return -np.sum(np.array(weights) * log_probs)


def test_every_term_by_hand():
    """Latents are 0.5, and 0.8 after action 1; values are twice the latent, rewards 0.7 of it, both as h."""
    following = inverse(2.0 * 0.5 * np.array([2.0, 4.0]))
    last = 3.0 + 0.5 * following[1]
    returns = np.array([1.0 + 0.5 * (0.4 * following[0] + 0.6 * last), last])
    policy = cross_entropy([0.8, 0.2], 0.5) + cross_entropy([0.1, 0.9], 0.8)
    values = 0.5 * (1.0 - h(returns[0])) ** 2 + 0.5 * (1.6 - h(returns[1])) ** 2
    reward = 0.5 * (0.35 - h(1.0)) ** 2
    metrics = update()
    expected = {"policy_loss": policy, "value_loss": values, "reward_loss": reward}
    expected["loss"] = policy + 0.25 * values + reward
    for name, value in expected.items():
        np.testing.assert_allclose(metrics[name], 2.0 * value, rtol=1e-4, err_msg=name)
    np.testing.assert_allclose(metrics["priority"], [abs(1.0 - h(returns[0]))], rtol=1e-4)


@pytest.mark.slow
def test_only_what_later_steps_ask_of_a_latent_is_halved():
    """The heads of every unrolled step move the dynamics by their whole gradient, those of the step after by half.

    Latents are 0.5, and 0.5 + m, 0.5 + 2 m after actions 1; the loss of the k-th one is made of its value alone."""
    batch = make_sample(
        (3, 1),
        observation=jnp.ones((3, 1, 1)),
        action=jnp.ones((3, 1), jnp.int32),
        next_observation=jnp.zeros((3, 1, 1)),  # Values of successors are 0, and returns with them.
        extras={"search_policy": jnp.zeros((3, 1, 2))},
    )
    for num_unroll, passed in ((1, [1.0]), (2, [1.0, 1.5])):
        learner = make_muzero(LINEAR, optax.sgd(1.0), num_unroll=num_unroll, value_coefficient=1.0)
        before = LINEAR.init(KEY) | {"reward": jnp.float32(0.0)}
        after, _ = learner.update(learner.init(KEY, before), KEY, batch)
        # d (2 z_k)^2 / 2 / d z_k = 4 z_k; of the second latent, m has a share of its own and half of that of the first.
        gradients = [4.0 * (0.5 + 0.3 * (k + 1)) * share for k, share in enumerate(passed)]
        np.testing.assert_allclose(before["move"] - after.params["move"], np.mean(gradients), rtol=1e-5)


def test_nothing_comes_after_the_end_and_nothing_is_known_after_a_cut():
    first, reward = cross_entropy([0.8, 0.2], 0.5), 0.5 * (0.35 - h(1.0)) ** 2
    over = update(terminated=(True, False))
    np.testing.assert_allclose(over["policy_loss"], 2.0 * first, rtol=1e-4)
    np.testing.assert_allclose(over["value_loss"], (1.0 - h(1.0)) ** 2 + 1.6**2, rtol=1e-4)
    cut = update(truncated=(True, False))
    value = 1.0 + 0.5 * inverse(np.array([2.0]))[0]
    np.testing.assert_allclose(cut["policy_loss"], 2.0 * first, rtol=1e-4)
    np.testing.assert_allclose(cut["value_loss"], (1.0 - h(value)) ** 2, rtol=1e-4)
    for metrics in (over, cut):
        np.testing.assert_allclose(metrics["reward_loss"], 2.0 * reward, rtol=1e-4)


def test_searches_see_rewards_and_values_themselves():
    params, model = LINEAR.init(KEY), in_units_of_rewards(LINEAR)
    latent = jnp.array([[0.9], [-0.4]])
    reward, value = model.step(params, latent, jnp.array([1, 0]))[1], model.predict(params, latent)[1]
    np.testing.assert_allclose(reward, inverse(np.array([0.63, -0.28])), rtol=1e-3)
    np.testing.assert_allclose(value, inverse(np.array([1.8, -0.8])), rtol=1e-3)


def make_chain():
    """Five places, of which both ends are terminal: the left one pays 0.2, the right one 1."""

    def show(place):
        return jax.nn.one_hot(place, 5)

    def reset(key, task):
        place = jax.random.randint(key, (), 1, 4)
        return place, first_timestep(show(place))

    def step(key, place, action):
        place = place + 2 * action - 1
        reward = jnp.where(place == 4, 1.0, jnp.where(place == 0, 0.2, 0.0))
        over = (place == 0) | (place == 4)
        return place, TimeStep(observation=show(place), reward=reward, terminated=over, truncated=jnp.zeros((), bool))

    return make_world(reset, step, Box((5,)), Discrete(2), 50)


@pytest.mark.exhaustive
def test_it_learns_what_a_search_finds_and_to_foresee_it():
    world = make_chain()
    agent = make_agent(
        world,
        policy=partial(make_latent_model, encoder=MLP((16,), "relu"), dynamics=MLP((16,), "relu")),
        optimizer=lambda num_steps: optax.adam(1e-2),
        buffer=make_uniform_buffer(capacity=2048, batch_size=32, sequence_length=6, min_size=128),
        updates_per_rollout=8,
        num_unroll=3,
        discount=0.9,
        target_update_rate=0.05,
    )
    search = {"method": mctx.gumbel_muzero_policy, "num_simulations": 8, "discount": 0.9}
    collector = make_search_collector(world, agent.policy, **search, num_envs=16, num_steps=8)
    program = make_program(collector, agent.make_learner(collector, 80))
    state, _ = jax.jit(partial(run_updates, program))(program.init(KEY), 80)
    params, places = state.learner.params, jnp.eye(5)[1:4]
    latent = agent.policy.represent(params, places)
    distribution, value = agent.policy.predict(params, latent)
    assert np.all(distribution.logits[:, 1] > distribution.logits[:, 0])
    # Three, two and one steps from the end; what is left of the actions that it no longer takes is forgotten.
    np.testing.assert_allclose(value, [0.81, 0.9, 1.0], atol=0.1)
    _, reward = agent.policy.step(params, latent, jnp.ones(3, jnp.int32))
    np.testing.assert_allclose(reward, [0.0, 0.0, 1.0], atol=0.1)


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="`collector` must search for MuZero, got batches without searches"):
        update(extras={})
    with pytest.raises(ValueError, match="`environment` must have one agent for MuZero, got both players"):
        update(extras={"search_policy": jnp.ones((2, 1, 2)), "perspective": jnp.ones((2, 1))})
    learner = make_muzero(LINEAR, optax.sgd(0.0), num_unroll=2)
    with pytest.raises(ValueError, match="`num_unroll` must be below the 2 steps of a sequence, got 2"):
        learner.update(learner.init(KEY), KEY, sample())
    with pytest.raises(ValueError, match="`policy` must be a latent model for MuZero, got a ActorCritic"):
        world, actor = tmaze.make_environment(1), partial(make_actor_critic, encoder=MLP((4,)))
        make_agent(world, policy=actor, optimizer=lambda steps: optax.sgd(0.0), buffer=None)
    with pytest.raises(ValueError, match="`dynamics` must give features of the size of the encoder's, got 3 and 4"):
        make_latent_model(Box((2,)), Discrete(2), encoder=MLP((4,)), dynamics=MLP((3,))).init(KEY)
