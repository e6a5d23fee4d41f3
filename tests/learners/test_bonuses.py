"""Bonuses: by hand, as the learner inside gets them, on two devices, and where nothing else finds the reward."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxagents.learners import ppo
from jaxagents.learners.bonuses import (
    Bonus,
    make_agent,
    make_normalized_bonus,
    make_product_bonus,
    with_bonus,
)
from jaxagents.learners.diayn import make_skill_bonus
from jaxagents.learners.icm import make_curiosity_bonus
from jaxagents.learners.rnd import make_count_bonus, make_distillation_bonus
from jaxagents.networks.torsos import MLP
from jaxagents.ops.novelty import hash_codes
from jaxagents.policies.actor_critic import make_actor_critic
from jaxagents.rollouts.unroll import make_rollout_collector
from jaxagents.training.program import make_program, run_updates
from jaxagents.types import REPLICATED, Box, Discrete, Rollout, TimeStep
from tests.fakes import LISTENER, make_transition, make_world

KEY = jax.random.key(0)
SPACES = Box((3,)), Discrete(2)
MAKERS = {
    "counts": partial(make_count_bonus, num_bits=4),
    "rnd": partial(make_distillation_bonus, encoder=MLP((8,))),
    "noveld": partial(make_distillation_bonus, encoder=MLP((8,)), rise=0.5, num_bits=4),
    "episodic_counts": partial(make_count_bonus, num_bits=4, episodic=True),
    "icm": partial(make_curiosity_bonus, encoder=MLP((8,)), hidden_size=8),
    "e3b": partial(make_curiosity_bonus, encoder=MLP((8,)), hidden_size=8, ridge=0.1),
    "diayn": partial(make_skill_bonus, encoder=MLP((8,)), num_skills=2),
}


def transition(num_steps=4, num_envs=4, seed=0):
    generator = np.random.default_rng(seed)
    seen = generator.normal(size=(num_steps + 1, num_envs, 3)).astype(np.float32)
    nothing = jnp.zeros((num_steps, num_envs))
    return make_transition(
        observation=jnp.asarray(seen[:-1]),
        action=jnp.asarray(generator.integers(2, size=nothing.shape)),
        reward=nothing + 2.0,
        next_observation=jnp.asarray(seen[1:]),
        first=nothing.at[0, 1].set(1.0) > 0,
    )


COUNTS = {name: MAKERS[name] for name in ("counts", "episodic_counts")}
MAKERS["product"] = partial(make_product_bonus, factors=COUNTS)
MAKERS["normalized"] = partial(make_normalized_bonus, inner=MAKERS["episodic_counts"])


def start(name, **options):
    bonus = MAKERS[name](*SPACES, **options)
    return bonus, bonus.init(KEY, jax.eval_shape(transition))


@pytest.mark.parametrize(("only", "kept"), [(False, 1.0), (True, 0.0)])
def test_the_learner_inside_gets_both_rewards_or_the_bonus_alone(only, kept):
    step = transition(2, 3)
    bonus = Bonus(init=lambda key, shapes: jnp.float32(1.0), apply=lambda s, t: (t.reward + s, s + 1.0, {"seen": s}))
    learner = with_bonus(LISTENER, bonus, lambda: Rollout(transition=step, carry=()), coefficient=0.5, only=only)
    state, metrics = learner.update(learner.init(KEY), KEY, Rollout(transition=step, carry=()))
    np.testing.assert_allclose(state.params, np.full((2, 3), 0.5 * 3.0 + kept * 2.0))
    assert float(metrics["bonus"]) == 3.0 and float(metrics["seen"]) == 1.0 and float(state.bonus) == 2.0
    with pytest.raises(ValueError, match="`coefficient` must not be negative, got -1.0"):
        with_bonus(LISTENER, bonus, None, coefficient=-1.0)


def test_counts_are_those_of_a_dictionary():
    bonus, state = start("counts")
    seen, expected = {}, None
    for seed in (0, 1):
        batch = transition(seed=seed)
        paid, state, _ = bonus.apply(state, batch)
        codes = np.asarray(hash_codes(batch.next_observation, state.projection))
        begun = np.asarray(hash_codes(batch.observation, state.projection))[np.asarray(batch.first)]
        for code in [*codes.flat, *begun]:
            seen[code] = seen.get(code, 0) + 1
        expected = np.array([[seen[code] ** -0.5 for code in row] for row in codes])
    np.testing.assert_allclose(paid, expected, rtol=1e-6)


def test_counts_of_episodes_begin_anew():
    bonus, state = start("episodic_counts")
    batch = transition()
    same = batch.replace(
        observation=-jnp.broadcast_to(batch.next_observation[:1], (4, 4, 3)),  # Elsewhere: the opposite code.
        next_observation=jnp.broadcast_to(batch.next_observation[:1], (4, 4, 3)),
        first=jnp.zeros((4, 4), bool).at[0].set(True).at[2, 0].set(True),
    )
    paid, state, info = bonus.apply(state, same)
    np.testing.assert_allclose(paid[:, 0], [1.0, 2**-0.5, 1.0, 2**-0.5], rtol=1e-6)
    np.testing.assert_allclose(paid[:, 1], np.arange(1, 5) ** -0.5, rtol=1e-6)
    assert float(info["codes"]) == 2.0  # That, and where the episode began.
    paid, _, _ = bonus.apply(state, same.replace(first=jnp.zeros((4, 4), bool)))
    np.testing.assert_allclose(paid[0, :2], [3**-0.5, 5**-0.5], rtol=1e-6)
    # Where it began is reached for the second time.
    paid, _, _ = bonus.apply(state, same.replace(next_observation=same.observation))
    np.testing.assert_allclose(paid[:2, 0], [2**-0.5, 3**-0.5], rtol=1e-6)


def test_bonuses_are_multiplied():
    batch = transition()
    bonus, state = start("product")
    paid, after, info = bonus.apply(state, batch)
    parts = []
    for part in ("counts", "episodic_counts"):
        of_part, kept, _ = MAKERS[part](*SPACES).apply(state[part], batch)
        parts.append(of_part)
        jax.tree.map(np.testing.assert_array_equal, after[part], kept)
        np.testing.assert_allclose(info[f"{part}/mean"], np.mean(of_part), rtol=1e-5)
    np.testing.assert_allclose(paid, parts[0] * parts[1], rtol=1e-5)
    assert {"counts/codes", "episodic_counts/codes"} < set(info)


def test_a_bonus_is_divided_by_the_deviation_of_all_that_it_paid():
    paid_inside = iter([jnp.asarray([[1.0, 3.0]]), jnp.asarray([[5.0, 7.0]])])
    inside = Bonus(init=lambda key, shapes: (), apply=lambda state, steps: (next(paid_inside), state, {"own": 1.0}))
    bonus = make_normalized_bonus(*SPACES, inner=lambda *spaces, axis_name: inside)
    state = bonus.init(KEY, jax.eval_shape(transition))
    paid, state, info = bonus.apply(state, transition())  # 1 and 3 have the variance 1.
    np.testing.assert_allclose(paid, [[1.0, 3.0]], rtol=1e-5)
    assert info["own"] == 1.0 and abs(float(info["deviation"]) - 1.0) < 1e-5
    paid, _, info = bonus.apply(state, transition())  # 1, 3, 5 and 7 have the variance 5.
    np.testing.assert_allclose(paid, [[5.0 / 5**0.5, 7.0 / 5**0.5]], rtol=1e-5)


def test_nothing_cannot_be_combined():
    with pytest.raises(ValueError, match="`factors` must be at least one bonus, got none"):
        make_product_bonus(*SPACES, factors={})


def test_counts_of_a_plane_ignore_the_others():
    space, step = Box((2, 2, 3)), transition(2, 4)
    generator = np.random.default_rng(0)
    seen = generator.normal(size=(2, 4, 2, 2, 3)).astype(np.float32)
    seen[..., 1] = seen[0, 0, ..., 1]  # The same in all observations.
    step = step.replace(
        observation=jnp.asarray(seen), next_observation=jnp.asarray(seen), first=jnp.zeros((2, 4), bool)
    )
    bonus = make_count_bonus(space, SPACES[1], num_bits=12, planes=[1])
    paid, state, info = bonus.apply(bonus.init(KEY, step), step)
    assert state.projection.shape == (4, 12) and float(info["codes"]) == 1.0
    np.testing.assert_allclose(paid, 8**-0.5, rtol=1e-6)  # All eight are visits of one place.
    bonus = make_count_bonus(space, SPACES[1], num_bits=12, planes=[0, 2])
    assert float(bonus.apply(bonus.init(KEY, step), step)[2]["codes"]) > 4.0
    with pytest.raises(ValueError, match=r"`planes` must be indices from 0 to 2 of observations .*, got \[3\]"):
        make_count_bonus(space, SPACES[1], planes=[3])


def test_distillation_pays_squared_errors_in_units_of_their_deviation():
    bonus, state = start("rnd", learning_rate=0.01)
    batch, apply = transition(), jax.jit(bonus.apply)
    paid, after, metrics = apply(state, batch)
    seen = np.asarray(batch.next_observation)
    scaled = np.clip((seen - seen.mean((0, 1))) / seen.std((0, 1)), -5.0, 5.0)
    outputs = [MLP((8,)).apply(params, scaled) for params in (state.predictor, state.target)]
    errors = np.mean(np.square(np.asarray(outputs[0] - outputs[1])), axis=-1)
    np.testing.assert_allclose(paid, errors / errors.std(), rtol=1e-3)
    np.testing.assert_allclose(metrics["distillation_loss"], errors.mean(), rtol=1e-4)
    for _ in range(20):
        _, after, metrics = apply(after, batch)
    assert float(metrics["distillation_loss"]) < 0.9 * errors.mean()


def test_noveld_compares_norms_as_its_authors():
    """`|f(s') - g(s')| - 0.5 |f(s) - g(s)|` of all features, in units of its deviation; squares would differ."""
    bonus, state = start("noveld", once_per_episode=False)
    batch = transition()
    paid, after, _ = bonus.apply(state, batch)
    mean, variance = np.asarray(after.observations.mean), np.asarray(after.observations.variance)

    def norm(observation):
        seen = np.clip((np.asarray(observation) - mean) / variance**0.5, -5.0, 5.0)
        one, other = (MLP((8,)).apply(params, seen) for params in (state.predictor, state.target))
        return np.linalg.norm(np.asarray(one - other), axis=-1)

    rises = np.maximum(norm(batch.next_observation) - 0.5 * norm(batch.observation), 0.0)
    np.testing.assert_allclose(paid, rises / rises.std(), rtol=1e-3)


def test_noveld_pays_rises_at_first_visits():
    """Four times to the same place in every environment: only the first step of the episode is paid."""
    bonus, state = start("noveld")
    batch = transition()
    same = batch.replace(next_observation=jnp.broadcast_to(batch.next_observation[:1], (4, 4, 3)))
    paid, _, _ = bonus.apply(state, same)
    assert np.all(np.asarray(paid[1:]) == 0.0) and np.any(np.asarray(paid[0]) > 0.0)
    always, state = start("noveld", once_per_episode=False)
    again, _, _ = always.apply(state, same)
    np.testing.assert_array_equal(again[0] > 0.0, paid[0] > 0.0)
    assert np.any(np.asarray(again[1:]) > 0.0)


@pytest.mark.exhaustive
@pytest.mark.parametrize("space", [Discrete(2), Box((2,), -1.0, 1.0)])
def test_curiosity_learns_both_dynamics(space):
    batch = transition()
    if isinstance(space, Box):
        batch = batch.replace(action=jnp.stack([batch.observation[..., 0], batch.observation[..., 1]], axis=-1))
    bonus = make_curiosity_bonus(SPACES[0], space, encoder=MLP((8,)), learning_rate=0.01, num_steps=20)
    state = bonus.init(KEY, batch)
    _, state, first = bonus.apply(state, batch)
    _, state, later = bonus.apply(state, batch)
    assert float(later["inverse_loss"]) < float(first["inverse_loss"])
    assert float(later["forward_loss"]) < float(first["forward_loss"])


@pytest.mark.slow
@pytest.mark.parametrize("name", MAKERS)
def test_two_devices_pay_as_one(name):
    bonus, state = start(name)
    split, _ = start(name, axis_name="device")
    axes = jax.tree.map(lambda leaf: REPLICATED, state) if bonus.partition is None else bonus.partition(state)
    axes = jax.tree.map(lambda axis: None if axis == REPLICATED else axis, axes)

    def halves(tree, axes):
        return jax.tree.map(lambda leaf: jnp.stack(jnp.split(leaf, 2, axis=axes)), tree)

    parts = jax.tree.map(
        lambda leaf, axis: jnp.stack([leaf, leaf]) if axis is None else halves(leaf, axis),
        state,
        axes,
        is_leaf=lambda leaf: leaf is None,
    )
    many = jax.jit(jax.vmap(split.apply, axis_name="device"))
    for seed in (0, 1):
        paid, state, _ = bonus.apply(state, transition(seed=seed))
        paid_by_two, parts, _ = many(parts, halves(transition(seed=seed), 1))
        np.testing.assert_allclose(jnp.concatenate(list(paid_by_two), axis=1), paid, rtol=2e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["noveld", "e3b"])
def test_grids_are_paid_as_their_numbers_in_a_row(name):
    steps = transition()
    grids = {key: getattr(steps, key).reshape(4, 4, 3, 1) for key in ("observation", "next_observation")}
    bonus, state = start(name)
    of_grids = MAKERS[name](Box((3, 1)), SPACES[1])
    expected, _, _ = bonus.apply(state, steps)
    paid, _, _ = of_grids.apply(of_grids.init(KEY, jax.eval_shape(lambda: steps)), steps.replace(**grids))
    np.testing.assert_allclose(paid, expected, rtol=1e-6)


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match="`num_bits` must be from 1 to 20, got 30"):
        make_count_bonus(*SPACES, num_bits=30)
    with pytest.raises(ValueError, match="`rise` must not be negative, got -0.5"):
        MAKERS["noveld"](*SPACES, rise=-0.5)
    with pytest.raises(ValueError, match=r"`forward_share` must be in \[0, 1\], got 2"):
        MAKERS["icm"](*SPACES, forward_share=2.0)
    with pytest.raises(ValueError, match="`observation_space` must be a Box, got Discrete"):
        MAKERS["icm"](SPACES[1], SPACES[1])


def make_corridor(length=20):
    """Cells 0 .. length - 1: action 1 goes on, 0 back to the first; the last one pays 1 and ends the episode."""

    def view(state, reward=0.0, terminated=False):
        place, moves = state
        return state, TimeStep(
            observation=jax.nn.one_hot(place, length),
            reward=jnp.float32(reward),
            terminated=jnp.asarray(terminated),
            truncated=(moves >= length) & ~jnp.asarray(terminated),
        )

    def step(key, state, action):
        place = jnp.where(action == 1, jnp.minimum(state[0] + 1, length - 1), 0)
        return view((place, state[1] + 1), place == length - 1, place == length - 1)

    return make_world(lambda key, task: view((jnp.int32(0), jnp.int32(0))), step, Box((length,)), Discrete(2), length)


@pytest.mark.exhaustive
def test_counts_find_the_end_of_a_corridor_and_a_pause_changes_no_bit():
    """Random actions reach it once in 500,000 episodes; the same program without the bonus stays at 0."""
    world = make_corridor()
    policy, adam = partial(make_actor_critic, encoder=MLP((32,))), lambda num_steps: optax.adam(3e-3)
    inner = partial(ppo.make_agent, policy=policy, optimizer=adam, num_epochs=4, num_minibatches=2)
    agent = make_agent(world, inner=inner, bonus=partial(make_count_bonus, num_bits=16), coefficient=0.1)
    collector = make_rollout_collector(world, agent.policy, num_envs=16, num_steps=40)
    program = make_program(collector, agent.make_learner(collector, 120))
    run = jax.jit(partial(run_updates, program))
    state = program.init(KEY)
    without, metrics = run(state.replace(learner=state.learner.replace(coefficient=jnp.float32(0.0))), 60)
    assert float(metrics["rollout/episode_return"].value) == 0.0
    half, _ = run(program.init(KEY), 60)
    resumed, metrics = run(half, 60)
    assert float(metrics["rollout/episode_return"].value) > 0.1
    whole, _ = run(program.init(KEY), 120)
    same = jax.tree.map(lambda a, b: bool(jnp.array_equal(a, b)), whole.learner.params, resumed.learner.params)
    assert all(jax.tree.leaves(same)) and run._cache_size() == 1
