"""Searches over sampled continuous actions: their priors by scipy, the search by mctx itself, and what is learned."""

from functools import partial

import jax
import jax.numpy as jnp
import mctx
import numpy as np
import optax
import pytest
from scipy import stats

from jaxagents.data.buffers import make_uniform_buffer
from jaxagents.learners import alphazero, muzero
from jaxagents.losses.imitation import search_cross_entropy
from jaxagents.networks.torsos import MLP
from jaxagents.ops.distributions import TanhNormal
from jaxagents.policies.actor_critic import make_actor_critic
from jaxagents.policies.evaluating import with_evaluation
from jaxagents.policies.latent_model import LatentModel, make_latent_model
from jaxagents.search.evaluate import make_model_planner, make_planning_evaluator
from jaxagents.search.self_play import make_search_collector
from jaxagents.search.tree_search import candidates_of, make_latent_search, make_tree_search, sampled_actions
from jaxagents.training.program import make_program, run_updates
from jaxagents.types import ActorCritic, Box, Discrete, PolicyInput
from tests.fakes import make_follow

KEY = jax.random.key(0)
GUMBEL = partial(mctx.gumbel_muzero_policy, gumbel_scale=0.0)
WIDE = TanhNormal(loc=jnp.array([[0.5, -1.0], [0.0, 2.0]]), scale=jnp.array([[1.0, 0.5], [2.0, 0.1]]))


def test_priors_are_uniform_over_samples_of_the_policy_and_corrected_by_any_other_proposal():
    logits, actions = sampled_actions(5).offer(KEY, WIDE)
    assert logits.shape == (2, 5) and actions.shape == (2, 5, 2) and len(np.unique(actions[0, :, 0])) == 5
    np.testing.assert_array_equal(logits, np.zeros((2, 5)))
    logits, actions = sampled_actions(4, proposal_scale=2.0).offer(KEY, WIDE)
    loc, scale = np.asarray(WIDE.loc)[:, None], np.asarray(WIDE.scale)[:, None]
    expected = stats.norm.logpdf(actions, loc, scale) - stats.norm.logpdf(actions, loc, 2.0 * scale)
    np.testing.assert_allclose(logits, expected.sum(-1), rtol=1e-4, atol=1e-4)


def test_a_corrected_prior_has_the_moments_of_the_policy():
    logits, actions = sampled_actions(20000, proposal_scale=1.5).offer(KEY, WIDE)
    prior = jax.nn.softmax(logits)[..., None]
    mean = jnp.sum(prior * actions, axis=1)
    spread = jnp.sqrt(jnp.sum(prior * jnp.square(actions - mean[:, None]), axis=1))
    np.testing.assert_allclose(mean, WIDE.loc, atol=0.06)
    np.testing.assert_allclose(spread, WIDE.scale, rtol=0.03)
    assert float(actions[0, :, 0].std()) > 1.4


def test_branches_are_chosen_by_index():
    offered = jnp.arange(12.0).reshape(2, 3, 2)
    np.testing.assert_array_equal(sampled_actions(3).choose(offered, jnp.array([2, 0])), [[4.0, 5.0], [6.0, 7.0]])


def test_the_loss_is_the_weighted_likelihood_of_the_samples_by_hand():
    samples = jnp.array([[[0.2, -1.0], [1.0, 0.0], [-0.5, -0.7]], [[0.0, 2.0], [1.0, 2.1], [3.0, 1.8]]])
    weights = jnp.array([[0.5, 0.3, 0.2], [0.0, 1.0, 0.0]])
    loc, scale = np.asarray(WIDE.loc)[:, None], np.asarray(WIDE.scale)[:, None]
    log_prob = (stats.norm.logpdf(samples, loc, scale) - np.log(1.0 - np.tanh(samples) ** 2)).sum(-1)
    expected = -(np.asarray(weights) * log_prob).sum(-1)
    np.testing.assert_allclose(search_cross_entropy(WIDE, weights, samples), expected, rtol=1e-4)


def constant(distribution):
    """Returns an actor-critic that says the same everywhere, and values of zero."""

    def apply(params, carry, inputs):
        leading = inputs.first.shape
        wide = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (*leading, *leaf.shape)), distribution)
        return carry, wide, jnp.zeros(leading)

    return ActorCritic(init=lambda key: (), initial_carry=lambda shape: (), apply=apply)


@pytest.mark.slow
def test_the_search_is_that_of_mctx_over_the_same_samples_in_the_world_and_in_an_exact_model():
    world, key = make_follow(), jax.random.key(4)
    policy = TanhNormal(loc=jnp.zeros(1), scale=jnp.ones(1))
    options = {"method": GUMBEL, "num_simulations": 12, "candidates": sampled_actions(6, proposal_scale=1.5)}
    state, timestep = world.reset(KEY, ())
    found = jax.jit(make_tree_search(world, with_evaluation(constant(policy)), **options))((), key, state, timestep)

    reward = -jnp.square(jnp.tanh(found.candidates[:, 0]) - state[0])
    prior = stats.norm.logpdf(found.candidates[:, 0]) - stats.norm.logpdf(found.candidates[:, 0], scale=1.5)

    def expand(params, key, action, node):
        # What follows a terminal step counts nothing, whatever is offered there.
        leaf = mctx.RecurrentFnOutput(
            reward=jnp.where(node == 0, reward[action], 0.0),
            discount=jnp.zeros(1),
            prior_logits=jnp.zeros((1, 6)),
            value=jnp.zeros(1),
        )
        return leaf, node + 1

    root = mctx.RootFnOutput(
        prior_logits=jnp.asarray(prior)[None], value=jnp.zeros(1), embedding=jnp.zeros(1, jnp.int32)
    )
    expected = GUMBEL((), key, root, expand, 12)
    np.testing.assert_allclose(found.weights, expected.action_weights[0], rtol=1e-4)
    np.testing.assert_allclose(found.action, found.candidates[int(expected.action[0])], rtol=1e-6)
    np.testing.assert_allclose(found.log_weight, np.log(found.weights[int(expected.action[0])]), rtol=1e-5)
    assert np.ptp(np.asarray(found.weights)) > 0.1

    model = LatentModel(  # Latents are the target, or 9 after the end.
        init=lambda key: (),
        initial_carry=lambda shape: (),
        apply=None,
        represent=lambda params, observation: observation[..., :1],
        step=lambda params, latent, action: (
            jnp.full_like(latent, 9.0),
            jnp.where(latent[..., 0] == 9.0, 0.0, -jnp.square(jnp.tanh(action) - latent)[..., 0]),
        ),
        predict=lambda params, latent: (
            TanhNormal(loc=jnp.zeros_like(latent), scale=jnp.ones_like(latent)),
            jnp.zeros(latent.shape[:-1]),
        ),
    )
    in_model = jax.jit(make_latent_search(model, **options))((), key, state, timestep)
    np.testing.assert_allclose(in_model.candidates, found.candidates, rtol=1e-6)
    np.testing.assert_allclose(in_model.weights, found.weights, rtol=1e-4)

    # In the world, actions are squashed: many samples come near the target, -0.27 on average without any search.
    many = {"method": GUMBEL, "num_simulations": 64, "num_samples": 32}
    evaluate = make_planning_evaluator(world, model, planner=partial(make_model_planner, **many), num_episodes=8)
    assert np.mean(jax.jit(evaluate)((), KEY)["episode_return"]) > -0.02


def train(world, agent, num_updates, **options):
    options |= {"method": mctx.gumbel_muzero_policy, "num_simulations": 8}
    collector = make_search_collector(world, agent.policy, **options)
    program = make_program(collector, agent.make_learner(collector, num_updates))
    state, metrics = jax.jit(partial(run_updates, program, num_updates=num_updates))(program.init(KEY))
    return state.learner.params, metrics


def distance(policy, params):
    """Computes the mean squared distance of what a policy does at 64 places from what is best there."""
    seen = jax.random.uniform(KEY, (1, 64, 2), minval=-0.9, maxval=0.9)
    inputs = PolicyInput(observation=seen, first=jnp.zeros((1, 64), bool))
    _, distribution = policy.apply(params, policy.initial_carry((64,)), inputs)
    return float(jnp.mean(jnp.square(jnp.tanh(distribution.mode()[..., 0]) - seen[..., 0])))


@pytest.mark.exhaustive
def test_a_model_and_a_policy_of_continuous_actions_are_learned_from_searches_of_samples():
    world = make_follow()
    agent = muzero.make_agent(
        world,
        policy=partial(make_latent_model, encoder=MLP((32,), "relu"), dynamics=MLP((32,), "relu")),
        optimizer=lambda num_steps: optax.adam(3e-3),
        buffer=make_uniform_buffer(capacity=2048, batch_size=64, sequence_length=2, min_size=128),
        updates_per_rollout=16,
        num_unroll=1,
    )
    before = distance(agent.policy, agent.policy.init(KEY))
    params, _ = train(world, agent, 60, num_envs=16, num_steps=4, num_samples=8)
    # Whoever does not look loses 0.27, the variance of the target.
    assert before > 0.2 and distance(agent.policy, params) < 0.05


@pytest.mark.exhaustive
def test_searches_of_samples_in_the_world_itself_are_imitated():
    world = make_follow()
    agent = alphazero.make_agent(
        world,
        policy=partial(make_actor_critic, encoder=MLP((32,), "relu")),
        optimizer=lambda num_steps: optax.adam(1e-2),
        num_minibatches=2,
        value_bound=4.0,
    )
    params, metrics = train(world, agent, 80, num_envs=32, num_steps=4, num_samples=8)
    assert distance(agent.policy, params) < 0.05
    assert -0.25 < float(metrics["rollout/search_value"].value) < 0.0


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="`num_samples` must be null for discrete actions, got 4"):
        candidates_of(Discrete(2), 4)
    with pytest.raises(ValueError, match=r"or a bounded Box with `num_samples`.*try `collector.num_samples=16`"):
        candidates_of(Box((1,), -1.0, 1.0), None)
    with pytest.raises(ValueError, match="`num_samples` must be at least 2 to choose among, got 1"):
        candidates_of(Box((1,), -1.0, 1.0), 1)
    with pytest.raises(ValueError, match="`proposal_scale` must be positive, got 0.0"):
        sampled_actions(4, proposal_scale=0.0)
    with pytest.raises(ValueError, match="must be Discrete or a bounded Box of rank 1 for a tree search"):
        make_latent_model(Box((2,)), Box((1,)), encoder=MLP((4,)), dynamics=MLP((4,)))
