"""Algorithms are what their papers say, as composed: what they value by, replay and read."""

import jax
import jax.numpy as jnp
import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from jaxagents.losses.imitation import squared_distance
from jaxagents.losses.offline import ActorView
from jaxagents.ops.distributions import TanhNormal
from jaxagents.training.composition import compose
from tests import CONFIGS

BUFFERS = "jaxagents.data.buffers.make_{}_buffer"


def composed(*choices):
    return compose(CONFIGS, *choices)


@pytest.mark.parametrize(
    ("algorithm", "distribution"),
    [
        ("plain_dqn", {}),
        ("c51", {"low": -10.0, "high": 10.0, "num_atoms": 51}),
        ("qr_dqn", {"num_quantiles": 200}),
        ("iqn", {"num_fractions": 64, "num_acting_fractions": 32, "num_cosines": 64}),
        ("munchausen_dqn", {}),
        ("noisy_dqn", {}),
    ],
)
def test_members_of_the_dqn_family_add_one_thing(algorithm, distribution):
    config = composed("environment=cartpole", f"algorithm={algorithm}")
    buffer = config.learner.buffer
    assert buffer._target_ == BUFFERS.format("uniform") and buffer.sequence_length == 1
    assert config.learner.double is False and config.learner.num_steps is None and not config.value.dueling
    found = OmegaConf.to_container(config.value.distribution) if distribution else {}
    assert {key: value for key, value in found.items() if key != "_target_"} == distribution
    assert (config.value.noise_scale is not None) == (algorithm == "noisy_dqn")
    assert (config.learner.target is not None) == (algorithm == "munchausen_dqn")


@pytest.mark.parametrize("algorithm", ["dqn", "rainbow"])
def test_variants_that_have_more_say_so(algorithm):
    config = composed("environment=cartpole", f"algorithm={algorithm}")
    assert config.learner.buffer._target_ == BUFFERS.format("prioritized") and config.learner.double
    assert config.learner.buffer.sequence_length == 3 and config.value.dueling == (algorithm == "rainbow")


def test_r2d2_reads_what_it_did_and_what_it_was_paid():
    value = composed("environment=tmaze", "policy=gru", "algorithm=r2d2").value
    assert value.history and value.dueling and value.memory is not None


def test_rlpd_has_ten_critics_and_twenty_updates_a_step():
    config = composed("environment=pendulum", "algorithm=rlpd")
    updates, steps = config.learner.updates_per_rollout, config.collector.num_envs * config.collector.num_steps
    assert config.value.num_critics == 10 and config.learner.num_target_critics == 2 and updates == 20 * steps
    assert config.learner.policy_period == 20


@pytest.mark.parametrize(
    ("choices", "alpha"),
    [(("environment=pendulum", "algorithm=td3_bc"), 2.5), (("experiment=co_rft_tabletop",), 0.25)],
    ids=["td3_bc", "co_rft"],
)
def test_values_are_weighed_against_the_mean_over_the_numbers_of_an_action(choices, alpha):
    """Of three numbers, 0.25, 1 and 0.5 off: (0.0625 + 1 + 0.25) / 3 = 0.4375; the value is half of the mean one."""
    distribution = TanhNormal(loc=jnp.arctanh(jnp.array([[0.5, -0.5, 0.0]])), scale=jnp.ones((1, 3)))
    distance = squared_distance(distribution, jnp.arctanh(jnp.array([[0.25, 0.5, 0.5]])))
    fields = {name: jnp.zeros(1) for name in ("log_prob", "own_log_prob", "q", "value")}
    view = ActorView(**fields, distance=distance, own_q=jnp.array([[2.0], [9.0]]), q_magnitude=jnp.float32(4.0))
    loss = instantiate(composed(*choices).learner.policy_loss, _partial_=True)
    assert float(loss(view)[0]) == pytest.approx(-0.5 * alpha + 0.4375, rel=1e-5)


@pytest.mark.parametrize("algorithm", ["rnd", "noveld", "icm", "e3b", "e3b_noveld"])
def test_features_of_bonuses_have_no_bounds(algorithm):
    """A tanh at the end would bound what is new by what the network can say, and leave it without a gradient."""
    bonus = composed("environment=cartpole", f"algorithm={algorithm}").learner.bonus
    for part in bonus.get("factors", {"bonus": bonus}).values():
        encoder = instantiate(part.encoder)
        params = {
            name: {leaf: 2.0 * jnp.ones_like(value) for leaf, value in layer.items()}
            for name, layer in encoder.init(jax.random.key(0), jnp.ones((1, 4)))["params"].items()
        }
        assert float(encoder.apply({"params": params}, jnp.ones((1, 4))).min()) > 10.0


@pytest.mark.parametrize(
    "algorithm", ["c51", "dqn", "iqn", "plain_dqn", "r2d2", "rainbow", "sac", "td3", "redq", "vdn"]
)
def test_replay_brings_rollouts_that_suit_it(algorithm):
    """In worlds that nobody tuned, too: between the 512 steps of PPO's rollouts there are too few updates."""
    environment = "pendulum" if algorithm in ("sac", "td3", "redq") else "cartpole"
    collector = composed(f"environment={environment}", f"algorithm={algorithm}").collector
    assert collector.num_envs * collector.num_steps <= 32
