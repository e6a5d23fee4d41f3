"""DreamerV3: imagination in a model known by hand, where the gradients of each loss go, and what is refused."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxagents.learners.dreamer import dreamer_losses, imagine, make_agent, make_dreamer, replay_value_loss
from jaxagents.losses.world_models import two_hot_loss
from jaxagents.networks.torsos import MLP
from jaxagents.ops.distributions import Categorical
from jaxagents.ops.symlog import two_hot
from jaxagents.policies.tanh_normal import make_tanh_normal_policy
from jaxagents.policies.world_model import LatentState, make_world_model_policy
from jaxagents.types import Box, Discrete, Sample
from tests.fakes import make_sample, make_world

KEY = jax.random.key(0)
ENCODER = MLP((6,), activation="silu", layer_norm=True)
make_policy = partial(
    make_world_model_policy,
    encoder=ENCODER,
    actor_encoder=ENCODER,
    critic_encoder=ENCODER,
    hidden_size=5,
    num_variables=2,
    num_categories=4,
    width=6,
    num_bins=21,
)
POLICY = make_policy(Box((3,)), Discrete(2))
LENGTH, ROWS = 4, 6


def sample():
    generator = np.random.default_rng(0)
    shape = LENGTH, ROWS
    return make_sample(
        carry=POLICY.initial_carry((ROWS,)),
        observation=jnp.asarray(generator.normal(size=(*shape, 3)), jnp.float32),
        action=jnp.asarray(generator.integers(2, size=shape), jnp.int32),
        reward=jnp.asarray(generator.normal(size=shape), jnp.float32),
        terminated=jnp.asarray(generator.random(shape) < 0.2),
        next_observation=jnp.zeros((*shape, 3)),
        first=jnp.asarray(generator.random(shape) < 0.2),
        previous_action=jnp.asarray(generator.integers(2, size=shape), jnp.int32),
        previous_reward=jnp.zeros(shape),
    )


def test_imagined_steps_are_those_of_a_model_by_hand():
    """Action 1 adds one to h, which is the reward of the step and at 3 its end; z repeats h."""

    def outcomes(params, hidden):
        return jnp.log(two_hot(hidden[..., 0], 255) + 1e-12), jnp.where(hidden[..., 0] >= 3.0, 50.0, -50.0)

    model = POLICY._replace(
        act=lambda params, state: Categorical(logits=jnp.broadcast_to(jnp.array([-99.0, 99.0]), (2, 2))),
        advance=lambda params, state, action: state.hidden + action[:, None],
        outcomes=outcomes,
        foresee=lambda params, hidden, noise: LatentState(hidden=hidden, latent=hidden),
    )
    start = LatentState(hidden=jnp.array([[0.0], [1.0]]), latent=jnp.zeros((2, 1)))
    states, action, reward, going_on = imagine(model, (), KEY, start, horizon=3)
    np.testing.assert_array_equal(states.hidden[..., 0], [[0, 1], [1, 2], [2, 3], [3, 4]])
    np.testing.assert_array_equal(states.latent[..., 0], [[0, 0], [1, 2], [2, 3], [3, 4]])
    np.testing.assert_array_equal(action, np.ones((3, 2)))
    np.testing.assert_allclose(reward, [[1, 2], [2, 3], [3, 4]], rtol=1e-3)
    np.testing.assert_allclose(going_on, [[1, 1], [1, 0], [0, 0]], atol=1e-6)


def test_values_of_replayed_steps_by_hand():
    """Discount and decay of a half; the second sequence is truncated in its second step and begins anew."""
    flags = jnp.zeros((4, 3), bool)
    batch = sample()
    transition = jax.tree.map(lambda leaf: leaf[:, :3], batch.transition).replace(
        reward=jnp.array([[1.0, 1.0, 1.0], [2.0, 2.0, 2.0], [3.0, 3.0, 3.0], [9.0, 9.0, 9.0]]),
        terminated=flags.at[1, 2].set(True),
        truncated=flags.at[1, 1].set(True),
    )
    bootstrap = jnp.array([[0.0] * 3, [10.0] * 3, [20.0] * 3, [40.0] * 3])
    batch = Sample(transition=transition, weight=jnp.array([1.0, 2.0, 3.0]), carry=())
    # r + 0.5 (0.5 b' + 0.5 R'), from 40 backwards; the truncated step is worth its own 10, the terminal one its reward.
    third = 3.0 + 0.5 * 40.0
    second = 2.0 + 0.25 * 20.0 + 0.25 * third
    targets = [
        [1.0 + 0.25 * 10.0 + 0.25 * second, second, third],
        [1.0 + 0.5 * 10.0, None, third],
        [4.0, 2.0, third],
    ]  # 1 + 2.5 + 0.5
    logits, slow = jnp.zeros((4, 3, 255)).at[..., 130].set(2.0), jnp.full((4, 3), 5.0)
    total = sum(
        weight * float(two_hot_loss(logits[0, 0], jnp.float32(target)) + two_hot_loss(logits[0, 0], jnp.float32(5.0)))
        for weight, row in zip([1.0, 2.0, 3.0], targets, strict=True)
        for target in row
        if target is not None
    )
    loss = replay_value_loss(logits, slow, batch, bootstrap, discount=0.5, trace_decay=0.5)
    np.testing.assert_allclose(loss, total / 9.0, rtol=1e-5)


@pytest.mark.exhaustive
def test_each_loss_teaches_its_own_part():
    learner = make_dreamer(POLICY, optax.sgd(0.1), horizon=3)
    state, batch = learner.init(KEY), sample()
    # Heads that begin with zeros would hide what flows through them.
    noisy = jax.tree.map(lambda leaf: leaf + 0.1 * jax.random.normal(KEY, leaf.shape), state.params)

    def losses(params):
        return dreamer_losses(POLICY, 3, None, state.settings.numbers, state, KEY, batch, params)[1][0]

    gradients = jax.jit(jax.jacrev(losses))(noisy)
    parts = {
        **dict.fromkeys(("reconstruction_loss", "reward_loss", "end_loss", "kl_loss"), {"model"}),
        "policy_loss": {"actor"},
        "value_loss": {"critic"},
        "replay_value_loss": {"critic", "model"},  # As in the released code.
    }
    for loss, own in parts.items():
        for part, gradient in gradients[loss].items():
            moved = any(bool(np.any(leaf != 0.0)) for leaf in jax.tree.leaves(gradient))
            assert moved == (part in own), (loss, part)
    result = losses(noisy)
    np.testing.assert_allclose(result["loss"], sum(result[name] for name in parts), rtol=1e-5)


@pytest.mark.exhaustive
def test_averages_follow_and_a_state_goes_on():
    learner = make_dreamer(POLICY, optax.sgd(0.1), horizon=2, target_update_rate=0.25, range_update_rate=0.5)
    state, batch = learner.init(KEY), sample()
    state = state.replace(return_range=jnp.float32(8.0))
    following, metrics = jax.jit(learner.update)(state, KEY, batch)
    # What a critic of zeros imagines is far from a range of 8.
    assert 4.0 <= float(following.return_range) < 5.0 and metrics["return_range"] == following.return_range
    expected = jax.tree.map(lambda old, new: 0.75 * old + 0.25 * new, state.target_critic, following.params["critic"])
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6), following.target_critic, expected)
    resumed = learner.init(jax.random.key(1), following)
    jax.tree.map(np.testing.assert_array_equal, resumed, following)


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="`horizon` must be at least 1, got 0"):
        make_dreamer(POLICY, optax.sgd(0.1), horizon=0)
    with pytest.raises(ValueError, match="`discount` must be in \\[0, 1\\], got 1.5"):
        make_dreamer(POLICY, optax.sgd(0.1), discount=1.5)
    environment = make_world(None, None, Box((3,)), Box((1,), -1.0, 1.0), 1)
    options = {"optimizer": lambda num_steps: optax.sgd(0.1), "buffer": None}
    with pytest.raises(
        ValueError, match="`policy` must have a world model for Dreamer, got a Policy; try policy=world"
    ):
        make_agent(environment, policy=partial(make_tanh_normal_policy, encoder=ENCODER), **options)
