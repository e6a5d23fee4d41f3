"""PQN on a corridor whose action values are known, and on targets worked out by hand."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxagents.environments import tmaze
from jaxagents.learners.pqn import make_agent, make_pqn
from jaxagents.networks.recurrent import GRU
from jaxagents.networks.torsos import MLP
from jaxagents.ops.schedules import linear_schedule
from jaxagents.rollouts.unroll import make_rollout_collector
from jaxagents.training.program import make_program, run_updates
from jaxagents.types import Box, Discrete, Stateful
from jaxagents.values.distributions import quantiles
from jaxagents.values.q_function import QFunction, make_q_function
from tests.fakes import make_rollout, require_agreement

KEY = jax.random.key(0)
TABLE = QFunction(
    init=lambda key: jnp.zeros((4, 2)), apply=lambda params, carry, inputs: (carry, inputs.observation @ params)
)
EYE = np.eye(4, dtype=np.float32)


def rollout(state, action, reward, terminated, truncated, next_state, extras=None):
    """Returns steps of one environment, leaves `[T, 1, ...]`; lists `[T]`, or arrays `[T, B]`."""
    fields = (np.asarray(field) for field in (state, action, reward, terminated, truncated, next_state))
    state, action, reward, terminated, truncated, next_state = (f[:, None] if f.ndim == 1 else f for f in fields)
    return make_rollout(
        observation=jnp.asarray(EYE[state]),
        action=jnp.asarray(action, jnp.int32),
        reward=jnp.asarray(reward, jnp.float32),
        terminated=jnp.asarray(terminated, bool),
        truncated=jnp.asarray(truncated, bool),
        next_observation=jnp.asarray(EYE[next_state]),
        first=jnp.ones(state.shape, bool),
        extras=extras or {},
    )


NETWORK = jnp.arange(8.0).reshape(4, 2)


@pytest.mark.parametrize(
    ("flags", "extras", "targets"),
    [
        # Of the last step 4 + 0.5 * 7; before it 2 + 0.5 (0.25 * 5 + 0.75 * 7.5); first 1 + 0.5 (0.25 * 3 + 0.75 G).
        (([0, 0, 0], [0, 0, 0]), {}, [1.375 + 0.375 * 5.4375, 5.4375, 7.5]),
        (([0, 1, 0], [0, 0, 0]), {}, [1.375 + 0.375 * 2.0, 2.0, 7.5]),
        (([0, 0, 0], [0, 1, 0]), {}, [1.375 + 0.375 * 4.5, 4.5, 7.5]),  # The true successor is worth 5.
        (([0, 0, 1], [0, 0, 0]), {"next_action_mask": [[[True, False]]] * 3}, None),
    ],
    ids=["goes on", "terminated", "truncated", "masked"],
)
def test_targets_by_hand(flags, extras, targets):
    """A gradient step of rate 3 on half the square, of which each of three steps is a third, goes all the way."""
    extras = {name: jnp.asarray(value) for name, value in extras.items()}
    batch = rollout([0, 1, 2], [1, 1, 0], [1.0, 2.0, 4.0], *flags, [1, 2, 3], extras)
    if targets is None:  # Worth 2 and 4 instead of 3 and 5.
        last = 4.0
        middle = 2.0 + 0.5 * (0.25 * 4.0 + 0.75 * last)
        targets = [1.0 + 0.5 * (0.25 * 2.0 + 0.75 * middle), middle, last]
    learner = make_pqn(TABLE, optax.sgd(3.0), num_epochs=1, num_minibatches=1, discount=0.5, trace_decay=0.75)
    state, _ = jax.jit(learner.update)(learner.init(KEY, {"network": NETWORK}), KEY, batch)
    expected = NETWORK.at[jnp.array([0, 1, 2]), jnp.array([1, 1, 0])].set(jnp.array(targets))
    np.testing.assert_allclose(state.network, expected, rtol=1e-5)


def test_learns_the_values_of_a_corridor_in_one_program():
    """Right (1) at the end of four states gives 1 and ends; elsewhere an episode is cut after each step."""
    state, action = (grid.reshape(1, -1) for grid in np.meshgrid(np.arange(4), np.arange(2), indexing="ij"))
    terminated = (state == 3) & (action == 1)
    batch = rollout(
        state, action, terminated.astype(float), terminated, ~terminated, np.clip(state + 2 * action - 1, 0, 3)
    )
    learner = make_pqn(TABLE, optax.adam(0.05), discount=0.5, num_minibatches=2)
    update, state = jax.jit(learner.update, donate_argnums=0), learner.init(KEY)
    for index in range(100):
        state, metrics = update(state, jax.random.fold_in(KEY, index), batch)
    assert update._cache_size() == 1
    expected = [[0.0625, 0.125], [0.0625, 0.25], [0.125, 0.5], [0.25, 1.0]]
    np.testing.assert_allclose(state.network, expected, atol=0.03)
    assert set(metrics) == {"loss", "q", "absolute_error", "gradient_norm", "epsilon"}


def test_devices_agree_with_one_device():
    generator = np.random.default_rng(0)
    fields = (generator.integers(0, high, (2, 8)) for high in (4, 2, 5, 2, 2, 4))
    options = {"num_minibatches": 4, "discount": 0.5}
    alone, learner = (make_pqn(TABLE, optax.adam(0.1), axis_name=name, **options) for name in (None, "device"))
    require_agreement(
        alone, learner, alone.init(KEY), rollout(*fields), lambda state, metrics: (state.network, metrics["loss"])
    )


def test_numbers_may_be_schedules_and_the_loss_may_remember():
    counting = Stateful(
        init=lambda num_updates: jnp.float32(num_updates),
        apply=lambda memory, value, target: (jnp.square(value - target), jnp.float32(value.size)),
        update=lambda memory, summary: memory + summary,
    )
    epsilon = linear_schedule(start=1.0, end=0.0, fraction=0.5)
    learner = make_pqn(TABLE, optax.sgd(0.0), num_minibatches=1, epsilon=epsilon, loss=counting, num_updates=4)
    state, update = learner.init(KEY), jax.jit(learner.update)
    batch, epsilons = rollout([0, 1], [1, 1], [1.0, 2.0], [0, 0], [0, 0], [1, 2]), []
    for _ in range(3):
        epsilons.append(float(state.params["epsilon"]))
        state, _ = update(state, KEY, batch)
    assert epsilons == [1.0, 0.5, 0.0] and float(state.settings.memory["loss"]) == 4.0 + 3 * 2 * 2


@pytest.mark.slow
@pytest.mark.parametrize("memory", [None, GRU(hidden_size=4)], ids=["feed-forward", "gru"])
def test_agent_acts_with_what_its_learner_learns_and_resumes_to_the_same_bits(memory):
    world = tmaze.make_environment(2)
    agent = make_agent(
        world,
        value=partial(make_q_function, encoder=MLP((8,), layer_norm=True), memory=memory),
        optimizer=lambda num_updates: optax.adam(1e-3),
        normalize_observations=True,
    )
    collector = make_rollout_collector(world, agent.policy, num_envs=4, num_steps=4)
    program = make_program(collector, agent.make_learner(collector, 4))
    run = jax.jit(partial(run_updates, program))
    whole, _ = run(program.init(KEY), 4)
    halfway, _ = run(program.init(KEY), 2)
    resumed, metrics = run(jax.tree.map(jnp.copy, halfway), 2)
    assert run._cache_size() == 1 and np.isfinite(float(metrics["train/loss"].value))
    same = jax.tree.map(lambda a, b: bool((a == b).all()), whole.learner, resumed.learner)
    assert all(jax.tree.leaves(same))
    assert jax.tree.structure(agent.policy.init(KEY)) == jax.tree.structure(whole.learner.params)


@pytest.mark.exhaustive
def test_refused_settings():
    with pytest.raises(ValueError, match=r"`trace_decay` must be in \[0, 1\], got 2.0"):
        make_pqn(TABLE, optax.sgd(0.1), trace_decay=2.0)
    with pytest.raises(ValueError, match="`num_epochs` must be at least 1, got 0"):
        make_pqn(TABLE, optax.sgd(0.1), num_epochs=0)
    q_function = make_q_function(Box((4,)), Discrete(2), encoder=MLP((4,)), distribution=quantiles(num_quantiles=3))
    learner = make_pqn(q_function, optax.sgd(0.1))
    with pytest.raises(ValueError, match="`value.distribution` must be null for lambda-returns, got QuantileValues"):
        learner.update(learner.init(KEY), KEY, rollout([0] * 4, [0] * 4, [0.0] * 4, [0] * 4, [0] * 4, [1] * 4))
