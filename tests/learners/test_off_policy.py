"""REDQ, DroQ, CrossQ and MPO as compositions of the off-policy actor-critic: what each adds, worked out apart."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxagents.learners.sac import make_sac
from jaxagents.losses.mpo import mpo
from jaxagents.losses.q import mean_actor_loss, twin_q_target
from jaxagents.networks.critics import RegularizedMLP
from jaxagents.networks.torsos import MLP
from jaxagents.policies.tanh_normal import make_tanh_normal_policy
from jaxagents.types import Box
from jaxagents.values.q_function import TwinQ, make_twin_q, with_statistics
from tests.fakes import make_sample, require_agreement

KEY = jax.random.key(0)
SEEN, MOVES = Box((2,)), Box((1,), -1.0, 1.0)
PRICES = {"temperature": 1.0, "loc": 1.0, "scale": 10.0}
# Options of the critics and of the learner.
FAMILY = {
    "sac": ({}, {}),
    "redq": ({"num_critics": 4}, {"num_target_critics": 2, "actor_loss": mean_actor_loss, "policy_period": 2}),
    "droq": ({"encoder": RegularizedMLP((8,), layer_norm=True, dropout_rate=0.25)}, {"actor_loss": mean_actor_loss}),
    "crossq": ({"encoder": RegularizedMLP((8,), batch_norm=True)}, {"policy_period": 3}),
    "mpo": (
        {},
        {"improve": mpo, "initial_temperature": PRICES, "num_actions": 3, "target_policy": True}
        | {"target": twin_q_target, "target_update_rate": 0.1},
    ),
}
SLOW = [pytest.param(name, marks=pytest.mark.exhaustive) for name in FAMILY]


def make_critics(name):
    return partial(make_twin_q, **({"encoder": MLP((8,), "relu")} | FAMILY[name][0]))


make_actor = partial(make_tanh_normal_policy, encoder=MLP((8,), "relu"))


def batch_of(num_rows):
    generator = np.random.default_rng(0)

    def normal(*shape):
        return jnp.asarray(generator.normal(size=(1, num_rows, *shape)), jnp.float32)

    ended = jnp.asarray(generator.random((1, num_rows)) < 0.3)
    return make_sample(
        observation=normal(2),
        action=normal(1),
        reward=normal(),
        terminated=ended,
        next_observation=normal(2),
        first=ended,
    )


@pytest.mark.parametrize("name", SLOW)
def test_devices_agree_with_one_device(name):
    policy, critics = make_actor(SEEN, MOVES), make_critics(name)(SEEN, MOVES)
    options = FAMILY[name][1] | {"policy_period": 1}
    alone, learner = (
        make_sac(policy, critics, *[optax.sgd(0.1)] * 3, MOVES, axis_name=axis, **options) for axis in (None, "device")
    )
    require_agreement(
        alone,
        learner,
        alone.init(KEY),
        batch_of(8),
        lambda state, metrics: (state.params, state.critic, state.log_temperature),
        rtol=1e-3,
    )


def test_targets_of_redq_are_the_lesser_of_two_of_all_critics():
    """Target critics say 1, 2, 4 and 8 of everything, the critics 0: errors are the lesser of the pairs."""
    constant = TwinQ(
        init=lambda key: {"offset": jnp.array([1.0, 2.0, 4.0, 8.0])},
        apply=lambda params, observation, action: params["offset"][:, None] + 0.0 * action[None, ..., 0],
    )
    options = {"target": twin_q_target, "discount": 1.0, "num_target_critics": 2}
    learner = make_sac(make_actor(SEEN, MOVES), constant, *[optax.sgd(0.1)] * 3, MOVES, **options)
    state, batch = learner.init(KEY), batch_of(1)
    still = batch.transition.replace(reward=jnp.zeros((1, 1)), terminated=jnp.zeros((1, 1), bool))
    state = state.replace(critic={"offset": jnp.zeros(4)})
    update = jax.jit(learner.update)
    keys = jax.random.split(KEY, 60)
    errors = [float(update(state, key, batch.replace(transition=still))[1]["priority"][0]) for key in keys]
    # Of six pairs, three have the lesser 1, two have 2 and one has 4.
    counts = [np.isclose(errors, value).sum() for value in (1.0, 2.0, 4.0)]
    assert sum(counts) == 60 and counts[0] > counts[1] > counts[2] > 0


@pytest.mark.exhaustive
def test_critics_of_crossq_see_a_batch_and_its_successors_together():
    """Against numpy: input and features are normalised by the mean and variance of all sixteen rows."""
    critics = make_twin_q(SEEN, MOVES, encoder=RegularizedMLP((4,), batch_norm=True), num_critics=1)
    params = critics.init(KEY)
    generator = np.random.default_rng(1)
    observation, action = generator.normal(size=(16, 2)), generator.normal(size=(16, 1))
    q, statistics = critics.fit(params, jnp.asarray(observation, jnp.float32), jnp.asarray(action, jnp.float32), None)
    encoder = jax.tree.map(lambda leaf: np.asarray(leaf[0]), params["encoder"]["params"])
    head = jax.tree.map(lambda leaf: np.asarray(leaf[0]), params["head"]["params"])["Dense_0"]

    def normalised(x):
        return (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5)

    inputs = np.concatenate([observation, np.tanh(action)], axis=1)
    hidden = normalised(inputs) @ encoder["Dense_0"]["kernel"] + encoder["Dense_0"]["bias"]
    expected = normalised(np.maximum(hidden, 0.0)) @ head["kernel"] + head["bias"]
    np.testing.assert_allclose(q[0], expected[:, 0], rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(statistics["BatchNorm_0"]["mean"][0], 0.01 * inputs.mean(0), rtol=1e-4, atol=1e-6)
    # Elsewhere the running statistics count.
    apart = critics.apply(with_statistics(params, statistics), jnp.asarray(observation, jnp.float32), action)
    assert not np.allclose(apart[0], expected[:, 0], atol=1e-2)


def test_dropout_is_of_samples_and_critics_and_in_learning_alone():
    critics = make_twin_q(SEEN, MOVES, encoder=RegularizedMLP((64,), dropout_rate=0.5))
    params, keys = critics.init(KEY), jax.random.split(KEY, 500)
    rows = jnp.full((500, 2), 0.5), jnp.zeros((500, 1))
    whole, dropped = critics.apply(params, *rows), critics.drop_out(params, *rows, keys)
    assert np.ptp(whole, axis=1).max() < 1e-5 and len(np.unique(dropped[0])) > 450
    np.testing.assert_allclose(dropped.mean(1), whole[:, 0], atol=0.15)  # Units that stay count double.
    assert make_twin_q(SEEN, MOVES, encoder=MLP((4,))).drop_out is None


@pytest.mark.parametrize(
    ("critics", "options", "message"),
    [
        ({}, {"num_target_critics": 3}, "`num_target_critics` must be at most the 2 critics that have targets, got 3"),
        ({}, {"improve": mpo}, "`improve` must have targets of policy and critics; try target_policy=true"),
        (
            {"encoder": RegularizedMLP((4,), batch_norm=True)},
            {"num_target_critics": 1},
            "`num_target_critics` must be at most .* without batch normalisation",
        ),
        ({}, {"initial_temperature": {"loc": 0.0}}, "`loc` must be positive, got 0.0"),
    ],
)
def test_what_does_not_fit_is_refused(critics, options, message):
    made = make_twin_q(SEEN, MOVES, **({"encoder": MLP((4,))} | critics))
    with pytest.raises(ValueError, match=message):
        make_sac(make_actor(SEEN, MOVES), made, *[optax.sgd(0.1)] * 3, MOVES, **options)
