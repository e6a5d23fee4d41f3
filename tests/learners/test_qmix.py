"""Independent and joint action values on the two-step game, whose values are known, and step by step by hand."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxagents.data.buffers import make_uniform_buffer
from jaxagents.environments.coordination import OVER, RISKY, RISKY_PAYOFF, SAFE, START, make_two_step_game
from jaxagents.environments.teams import agent_ids
from jaxagents.learners.dqn import make_dqn
from jaxagents.learners.qmix import make_agent, make_value_decomposition
from jaxagents.networks.mixers import MonotonicMixer, SumMixer
from jaxagents.networks.torsos import MLP
from jaxagents.policies.actor_critic import act
from jaxagents.policies.teams import separate_parameters
from jaxagents.rollouts.unroll import make_rollout_collector
from jaxagents.training.program import make_program, run_updates
from jaxagents.types import Box, Discrete, PolicyInput, Sample
from jaxagents.values.distributions import quantiles
from jaxagents.values.q_function import QFunction, make_q_function
from tests.fakes import make_transition, require_agreement

KEY = jax.random.key(0)
SPACE = Box((4,))
# One table of values per agent, [agents, states, actions].
TABLE = QFunction(
    init=lambda key: jnp.zeros((4, 2)), apply=lambda params, carry, inputs: (carry, inputs.observation @ params)
)
TABLES = separate_parameters(TABLE, 2)


def every_step():
    """Returns every step of the two-step game, one per environment: places times joint actions."""
    steps = [
        (place, action, payoff, SAFE + action[0] if place == START else OVER)
        for place, table in ((START, np.zeros((2, 2))), (SAFE, np.full((2, 2), 7.0)), (RISKY, RISKY_PAYOFF))
        for action, payoff in np.ndenumerate(table)
    ]
    place, action, reward, next_place = (np.array(column) for column in zip(*steps, strict=True))
    eye = np.eye(4, dtype=np.float32)

    def both(values):
        return jnp.asarray(np.repeat(values[None, :, None], 2, axis=2))

    return make_transition(
        observation=both(eye[place]),
        action=jnp.asarray(action[None], jnp.int32),
        reward=both(reward).astype(jnp.float32),
        terminated=jnp.asarray(place != START)[None],
        next_observation=both(eye[next_place]),
        first=jnp.asarray(place == START)[None],
    )


STEPS = every_step()


def sample(transition):
    return Sample(transition=transition, weight=jnp.ones(transition.reward.shape[1]))


def learned(learner, num_updates=1500):
    """Returns the network after as many updates on all steps at once."""

    def update(state, _):
        return learner.update(state, KEY, sample(STEPS))[0], None

    state, _ = jax.jit(lambda state: jax.lax.scan(update, state, length=num_updates))(learner.init(KEY))
    return state.network


def team_values(mixer, network):
    """Returns the team's value of every place and joint action, `[4, 2, 2]`."""
    given = PolicyInput(observation=jnp.broadcast_to(jnp.eye(4)[:, None], (4, 2, 4)), first=jnp.ones(4, bool))
    _, q = act(TABLES, network["agents"], (), given)
    pairs = jnp.stack(jnp.broadcast_arrays(q[:, 0, :, None], q[:, 1, None, :]), axis=-1)
    state = jnp.broadcast_to(jnp.tile(jnp.eye(4), 2)[:, None, None], (4, 2, 2, 8))
    return mixer.apply(network["mixer"], pairs, state)


OPTIONS = {"discount": 1.0, "huber_delta": 100.0, "target_update_rate": 0.05}


def test_alone_agents_expect_little_of_the_risky_game():
    q = learned(make_dqn(TABLES, optax.adam(0.03), **OPTIONS))
    # The partner plays at random: 7 in the safe game, rows of 0.5 and 4.5 in the other.
    np.testing.assert_allclose(q[0, START], [7.0, 4.5], atol=0.1)
    np.testing.assert_allclose(q[:, RISKY], [[0.5, 4.5]] * 2, atol=0.1)


def test_sums_cannot_tell_the_risky_game_and_avoid_it():
    learner = make_value_decomposition(
        TABLES, SumMixer(), optax.adam(0.03), num_agents=2, observation_space=SPACE, **OPTIONS
    )
    values = team_values(SumMixer(), learned(learner))
    np.testing.assert_allclose(values[RISKY], [[-1.5, 2.5], [2.5, 6.5]], atol=0.1)
    np.testing.assert_allclose(values[START].mean(axis=1), [7.0, 6.5], atol=0.1)


@pytest.mark.exhaustive
def test_monotonic_mixtures_tell_it_and_win():
    mixer = MonotonicMixer(embedding_size=8)
    learner = make_value_decomposition(
        TABLES, mixer, optax.adam(0.01), num_agents=2, observation_space=SPACE, **OPTIONS
    )
    values = team_values(mixer, learned(learner, 3000))
    np.testing.assert_allclose(values[RISKY], RISKY_PAYOFF, atol=0.15)
    np.testing.assert_allclose(values[START], [[7.0, 7.0], [8.0, 8.0]], atol=0.15)


AGENTS = jnp.arange(16.0).reshape(2, 4, 2)  # Of agent i at place p: 8 i + 2 p + action.
TWO_STEPS = make_transition(
    observation=jnp.broadcast_to(jnp.eye(4)[jnp.array([0, 1])][:, None, None], (2, 1, 2, 4)),
    action=jnp.array([[[1, 0]], [[0, 0]]]),
    reward=jnp.array([[[1.0, 3.0]], [[10.0, 30.0]]]),
    next_observation=jnp.broadcast_to(jnp.eye(4)[jnp.array([1, 2])][:, None, None], (2, 1, 2, 4)),
    first=jnp.zeros((2, 1), bool),
)
ALIVE = {
    "agent_mask": jnp.array([[[True, True]], [[True, False]]]),
    "next_agent_mask": jnp.array([[[1, 0]], [[1, 0]]]) > 0,
}
ONLY_FIRST = jnp.broadcast_to(jnp.array([True, False]), (2, 1, 2, 2))


@pytest.mark.parametrize(
    ("extras", "error"),
    [
        # Chosen: 1 + 8 = 9. Rewards 2 and 20, half of which counts, and a quarter of the best of place 2: 5 + 13.
        ({}, 2.0 + 0.5 * 20.0 + 0.25 * 18.0 - 9.0),
        # The second agent dies after the first step: the reward is that of the survivor, and so is the value.
        (ALIVE, 2.0 + 0.5 * 10.0 + 0.25 * 5.0 - 9.0),
        ({"next_action_mask": ONLY_FIRST}, 2.0 + 0.5 * 20.0 + 0.25 * 16.0 - 9.0),
    ],
    ids=["all", "one dies", "masked"],
)
@pytest.mark.parametrize("double", [True, False])
def test_errors_of_the_team_by_hand(double, extras, error):
    learner = make_value_decomposition(
        TABLES, SumMixer(), optax.sgd(0.0), num_agents=2, observation_space=SPACE, discount=0.5, double=double
    )
    state = learner.init(KEY, {"network": {"agents": AGENTS, "mixer": {}}})
    _, metrics = learner.update(state, KEY, sample(TWO_STEPS.replace(extras=extras)))
    np.testing.assert_allclose(metrics["priority"], [abs(error)], rtol=1e-6)
    np.testing.assert_allclose(metrics["q"], 9.0, rtol=1e-6)


@pytest.mark.exhaustive
def test_errors_of_independent_agents_by_hand():
    learner = make_dqn(TABLES, optax.sgd(1.0), discount=0.5, huber_delta=100.0)
    state = learner.init(KEY, {"network": AGENTS})
    # Of the first agent: 1 + 0.5 * 10 + 0.25 * 5 - 1, of the second 3 + 0.5 * 30 + 0.25 * 13 - 8.
    errors = np.array([6.25, 13.25])
    new, metrics = learner.update(state, KEY, sample(TWO_STEPS))
    np.testing.assert_allclose(metrics["priority"], [errors.mean()], rtol=1e-6)
    # The gradient is half of each error.
    np.testing.assert_allclose(new.network[[0, 1], 0, [1, 0]], [1.0 + 6.25 / 2, 8.0 + 13.25 / 2], rtol=1e-6)
    dead = {"agent_mask": jnp.array([[[False, True]], [[False, True]]])}
    new, metrics = learner.update(state, KEY, sample(TWO_STEPS.replace(extras=dead)))
    np.testing.assert_allclose(metrics["priority"], [13.25], rtol=1e-6)
    np.testing.assert_allclose(new.network[[0, 1], 0, [1, 0]], [1.0, 8.0 + 13.25], rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["independent", "mixed"])
def test_devices_agree_with_one_device(kind):
    mask = {"agent_mask": jnp.asarray(np.random.default_rng(0).random((1, 12, 2)) < 0.6)}
    whole = sample(STEPS.replace(extras=mask))
    mixed = partial(make_value_decomposition, TABLES, MonotonicMixer(4), num_agents=2, observation_space=SPACE)
    make = mixed if kind == "mixed" else partial(make_dqn, TABLES)
    alone, learner = (make(optimizer=optax.adam(0.1), axis_name=name) for name in (None, "device"))
    require_agreement(alone, learner, alone.init(KEY), whole, lambda state, metrics: (state.network, metrics["loss"]))


@pytest.mark.exhaustive
@pytest.mark.parametrize("share_parameters", [True, pytest.param(False, marks=pytest.mark.exhaustive)])
def test_agents_act_with_what_their_learner_learns(share_parameters):
    game = agent_ids(make_two_step_game())
    agent = make_agent(
        game,
        value=partial(make_q_function, encoder=MLP((8,))),
        mixer=MonotonicMixer(embedding_size=4),
        optimizer=lambda num_updates: optax.adam(0.01),
        buffer=make_uniform_buffer(capacity=64, batch_size=8),
        share_parameters=share_parameters,
        normalize_observations=True,
    )
    collector = make_rollout_collector(game, agent.policy, num_envs=4, num_steps=2)
    program = make_program(collector, agent.make_learner(collector, 4))
    run = jax.jit(partial(run_updates, program))
    state = program.init(KEY)
    for num_updates in (1, 3):
        state, metrics = run(state, num_updates)
    assert run._cache_size() == 1
    assert np.isfinite(float(metrics["train/loss"].value)) and float(metrics["rollout/episode_length"].value) == 2.0
    leading = 2 if not share_parameters else 6
    kernel = state.learner.params["params"]["network"]["agents"]["torso"]["encoder"]["params"]["Dense_0"]["kernel"]
    assert kernel.shape[0] == leading


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"noise_scale": 0.5}, "`value` must be without noise in a mixture"),
        ({"distribution": quantiles(num_quantiles=3)}, "`value.distribution` must be null .*, got QuantileValues"),
    ],
)
def test_refuses_values_that_it_cannot_mix(options, message):
    q_function = make_q_function(SPACE, Discrete(2), encoder=MLP((4,)), **options)
    with pytest.raises(ValueError, match=message):
        make_value_decomposition(q_function, SumMixer(), optax.sgd(0.1), num_agents=2, observation_space=SPACE)


def test_refuses_targets_of_single_agents():
    options = {"target": lambda view: view.reward}
    with pytest.raises(ValueError, match="`target` must be left out of a mixture, got"):
        make_value_decomposition(TABLES, SumMixer(), optax.sgd(0.1), num_agents=2, observation_space=SPACE, **options)


def traced(trace, own, first):
    """What is remembered: of the episode, the later the more."""
    return jnp.where(first[..., None, None], 0.0, 0.5 * trace) + own


def trace_values(params, trace, inputs):
    def step(trace, seen):
        trace = traced(trace, *seen)
        return trace, trace

    trace, traces = jax.lax.scan(step, trace, (inputs.observation["own"], inputs.first))
    return trace, traces @ params


def steps_of_teams(rng, length, batch_size):
    """Returns steps in which an episode of the first sequence terminates, and one of the second is cut."""

    def draw(*shape):
        return jnp.asarray(rng.normal(size=(length, batch_size, *shape)), jnp.float32)

    def at(step, sequence):
        return jnp.zeros((length, batch_size), bool).at[step, sequence].set(True)

    alive = {"agent_mask": draw(2) > -1.0, "next_agent_mask": draw(2) > -1.0}
    return make_transition(
        observation={"own": draw(2, 4), "team": jnp.repeat(draw(1, 3), 2, axis=2)},
        action=jnp.asarray(rng.integers(0, 2, (length, batch_size, 2))),
        reward=draw(2),
        terminated=at(3, 0),
        truncated=at(4, 1),
        next_observation={"own": draw(2, 4), "team": jnp.repeat(draw(1, 3), 2, axis=2)},
        first=at(4, 0) | at(5, 1),
        extras={**alive, "next_action_mask": jnp.ones((length, batch_size, 2, 2), bool).at[..., 0].set(draw(2) > 0.0)},
    )


@pytest.mark.parametrize("burn_in", [0, 2])
@pytest.mark.parametrize("double", [True, pytest.param(False, marks=pytest.mark.exhaustive)])
def test_values_with_a_memory_are_those_of_what_it_remembers(double, burn_in):
    rng = np.random.default_rng(0)
    steps, start = steps_of_teams(rng, 6, 3), jnp.asarray(rng.normal(size=(3, 2, 4)), jnp.float32)
    space = {"own": SPACE, "team": Box((3,))}
    with_memory = QFunction(init=lambda key: jnp.zeros((4, 2)), apply=trace_values)
    with_memory = with_memory._replace(initial_carry=lambda shape: jnp.zeros((*shape, 4)))
    without = QFunction(
        init=with_memory.init, apply=lambda params, carry, seen: (carry, seen.observation["own"] @ params)
    )
    make = partial(
        make_value_decomposition,
        mixer=MonotonicMixer(embedding_size=3),
        optimizer=optax.sgd(0.1),
        num_agents=2,
        observation_space=space,
        discount=0.9,
        double=double,
        num_steps=1,
        priority_max_share=0.75,
    )
    network, target_network = ({"agents": jax.random.normal(key, (4, 2))} for key in jax.random.split(KEY))
    network, target_network = ({**make(without).init(KEY).network, **one} for one in (network, target_network))
    results = []
    trace, traces = start, []
    for own, first in zip(steps.observation["own"], steps.first, strict=True):
        traces.append(trace := traced(trace, own, first))
    seen = {**steps.observation, "own": jnp.stack(traces)}
    following = {**steps.next_observation, "own": 0.5 * seen["own"] + steps.next_observation["own"]}
    apart = steps.replace(observation=seen, next_observation=following)
    apart = jax.tree.map(lambda leaf: leaf[burn_in:].reshape(1, -1, *leaf.shape[2:]), apart)
    together = Sample(transition=steps, weight=jnp.ones(3), carry=start)
    for learner, batch in ((make(with_memory, burn_in=burn_in), together), (make(without), sample(apart))):
        state = learner.init(KEY, {"network": network}).replace(target_network=target_network)
        results.append(learner.update(state, KEY, batch))
    (state, metrics), (expected, errors) = results
    np.testing.assert_allclose(metrics["loss"], errors["loss"], rtol=1e-5)
    jax.tree.map(lambda one, two: np.testing.assert_allclose(one, two, atol=1e-6), state.network, expected.network)
    error = errors["priority"].reshape(-1, 3)
    np.testing.assert_allclose(metrics["priority"], 0.75 * error.max(axis=0) + 0.25 * error.mean(axis=0), rtol=1e-5)


def test_refuses_batches_without_the_team():
    make = partial(make_value_decomposition, TABLES, SumMixer(), optax.sgd(0.1), observation_space=SPACE)
    with pytest.raises(ValueError, match="`num_agents` must be at least 1, got 0; try `learner=dqn`"):
        make(num_agents=0)
    learner = make(num_agents=2)
    for shape in ((1, 12), (1, 12, 3)):
        with pytest.raises(ValueError, match=r"`reward` must be \[n, B, 2\] for the mixer, got"):
            learner.update(learner.init(KEY), KEY, sample(STEPS.replace(reward=jnp.zeros(shape))))
    dqn = make_dqn(TABLES, optax.sgd(0.1))
    with pytest.raises(ValueError, match=r"`agent_mask` must be .* got \(1, 12, 3\) and \(1, 12, 2\)"):
        dqn.update(dqn.init(KEY), KEY, sample(STEPS.replace(extras={"agent_mask": jnp.ones((1, 12, 3), bool)})))
