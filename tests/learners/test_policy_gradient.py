"""The policy-gradient learner against the gradient written out, and what each slot does."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxagents.language.dialogue import make_dialogue
from jaxagents.learners.policy_gradient import make_agent, make_policy_gradient
from jaxagents.losses import aggregation
from jaxagents.losses.regularizers import entropy_bonus, kl_k2
from jaxagents.losses.token_policy_gradient import plain, ppo_clip
from jaxagents.ops import credit
from jaxagents.ops.episodes import credited_tokens
from jaxagents.ops.group_filters import informative_groups
from jaxagents.ops.reward_shaping import invalid_action_penalty
from jaxagents.ops.schedules import linear_schedule
from jaxagents.policies.contexts import Rows, to_rows
from jaxagents.types import EpisodeView, Stateful
from tests.fakes import score_tokens, with_numbers

KEY = jax.random.key(3)
CONTEXTS = {"markov": {"context_turns": 1, "prompt": False}, "history": {}, "thoughts": {"thought_tokens": 2}}
SLOTS = {"advantage": credit.rloo, "loss": plain, "aggregation": aggregation.token_mean}


@pytest.fixture(
    scope="module",
    params=["history", *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("markov", "thoughts"))],
)
def played(request, lake, speak, params_of):
    """Returns a policy with a value head, parameters and episodes in which rewards differ."""
    policy = speak(lake, value_head=True, **CONTEXTS[request.param])
    params = params_of(policy)
    episode = jax.jit(make_dialogue(lake, policy, group_size=4))(params, KEY, jnp.arange(2))
    reward = jnp.where(episode.valid, jnp.arange(8.0)[:, None] % 3.0, 0.0)
    return policy, params, episode.replace(reward=reward)


@pytest.fixture(scope="module")
def markov(lake, speak, params_of):
    policy = speak(lake, context_turns=1, prompt=False)
    params = params_of(policy)
    episode = jax.jit(make_dialogue(lake, policy, group_size=4))(params, KEY, jnp.arange(2))
    return policy, params, episode.replace(reward=jnp.where(episode.valid, jnp.arange(8.0)[:, None] % 3.0, 0.0))


def learner_of(policy, optimizer=None, **options):
    return make_policy_gradient(
        policy.model, policy.layout, optax.sgd(1.0) if optimizer is None else optimizer, **SLOTS | options
    )


def step(learner, params, episode, times=1):
    state = learner.init(KEY, params)
    for _ in range(times):
        state, metrics = jax.jit(learner.update)(state, KEY, episode)
    return state, metrics


def difference(before, after):
    return jax.tree.map(lambda old, new: np.asarray(old - new), before, after)


def largest(tree):
    return max(np.abs(leaf).max() for leaf in jax.tree.leaves(tree))


def assert_close(got, expected, tolerance=1e-4):
    """Compares pytrees relative to the largest entry of each leaf."""

    def compare(a, b):
        np.testing.assert_allclose(a, b, atol=tolerance * max(np.abs(np.asarray(b)).max(), 1e-6))

    jax.tree.map(compare, got, expected)


def written_out(policy, params, episode, weight, advantage):
    """Returns the gradient of `-sum weight advantage log_prob` by one pass over whole rows of `[B, L, V]` logits."""
    size, num_turns = policy.layout.prompt, policy.layout.num_turns

    def row(of_prompt, of_turns):
        return np.concatenate([of_prompt, np.asarray(of_turns).reshape(8, -1)], axis=1)

    tokens, present = row(episode.prompt_tokens, episode.tokens), row(episode.prompt_mask, episode.token_mask)
    positions = row(np.cumsum(episode.prompt_mask, axis=1) - episode.prompt_mask, episode.position)
    turn = np.concatenate([np.full(size, -1), np.repeat(np.arange(num_turns), policy.layout.turn)])
    recent = (turn[None] < 0) | (turn[:, None] - turn[None] < policy.layout.context_turns)
    mask = present[:, None] & (recent & np.tri(len(turn), dtype=bool))[None]
    column = np.maximum.accumulate(np.where(present, np.arange(len(turn))[None], 0), axis=1)
    previous = np.pad(column[:, :-1], ((0, 0), (1, 0)))

    def loss(params):
        hidden = policy.model.apply(params, jnp.asarray(tokens), positions=jnp.asarray(positions), mask=mask)
        log_probs = jax.nn.log_softmax(policy.model.logits(params, hidden))
        before = jnp.take_along_axis(log_probs, jnp.asarray(previous)[..., None], axis=1)
        log_prob = jnp.take_along_axis(before, jnp.asarray(tokens)[..., None], axis=2)[:, size:, 0]
        log_prob = log_prob.reshape(episode.tokens.shape)
        return -jnp.sum(jnp.where(episode.action_mask, weight * advantage * log_prob, 0.0))

    return jax.jit(jax.grad(loss))(params)


@pytest.mark.slow
@pytest.mark.parametrize("microbatch_tokens", [4096, 60])
def test_the_gradient_is_that_of_the_equation(played, microbatch_tokens):
    policy, params, episode = played
    learner = learner_of(policy, microbatch_tokens=microbatch_tokens)
    state, _ = step(learner, params, episode)
    weight = 1.0 / jnp.sum(episode.action_mask)
    expected = written_out(policy, params, episode, weight, credit.rloo(EpisodeView(episode=episode)).advantage)
    got = difference(params, state.params)
    assert largest(expected) > 1e-3
    assert_close(got, expected)


@pytest.mark.exhaustive
def test_ratios_are_one_on_the_first_step(played):
    policy, params, episode = played
    plainly, _ = step(learner_of(policy), params, episode)
    clipped, metrics = step(learner_of(policy, loss=partial(ppo_clip, clip_epsilon=0.2)), params, episode)
    assert_close(difference(params, plainly.params), difference(params, clipped.params))
    assert abs(float(metrics["approximate_kl"].value)) < 1e-8


@pytest.mark.exhaustive
def test_values_are_learned_from_the_targets_of_the_advantage(played):
    policy, params, episode = played
    options = {"advantage": credit.gae_turn, "value_coefficient": 1.0}
    learner = learner_of(policy, optax.adam(3e-3), **options)
    _, first = step(learner, params, episode)
    _, last = step(learner, params, episode, times=30)
    assert float(last["value_loss"]) < 0.5 * float(first["value_loss"])
    # The metric is without the coefficient, as in PPO of arrays; the loss is with it.
    _, half = step(learner_of(policy, optax.adam(3e-3), **options | {"value_coefficient": 0.5}), params, episode)
    np.testing.assert_allclose(half["value_loss"], first["value_loss"], rtol=1e-5)
    np.testing.assert_allclose(first["loss"] - half["loss"], 0.5 * first["value_loss"], rtol=1e-4)


def test_values_without_a_head_are_refused(markov):
    policy, params, episode = markov
    with pytest.raises(
        ValueError, match="`view.policy.value` must be there for gae_turn, got None; try a model with a value head"
    ):
        step(learner_of(policy, advantage=credit.gae_turn), params, episode)


@pytest.mark.exhaustive
def test_groups_that_fared_alike_are_left_out(markov):
    policy, params, episode = markov
    alike = episode.replace(reward=episode.reward.at[:4].set(0.0))
    state, metrics = step(learner_of(policy, group_filter=informative_groups), params, alike)
    assert float(metrics["kept_fraction"].value) == 0.5
    half = jax.tree.map(lambda leaf: leaf[4:], alike.replace(layout=None)).replace(layout=episode.layout)
    expected, _ = step(learner_of(policy), params, half)
    assert_close(difference(params, state.params), difference(params, expected.params))
    nothing, metrics = step(
        learner_of(policy, group_filter=informative_groups), params, alike.replace(reward=alike.reward * 0)
    )
    assert largest(difference(params, nothing.params)) == 0.0 and float(metrics["loss"]) == 0.0
    assert all(np.isfinite(getattr(metric, "value", metric)) for metric in metrics.values())


def test_rewards_are_shaped_before_they_are_credited(markov):
    policy, params, episode = markov
    bad = jnp.asarray(np.arange(8) % 2 == 0)[:, None] & episode.valid
    episode = episode.replace(reward=episode.reward * 0.0, action_valid=episode.valid & ~bad)
    learner = learner_of(policy, rewards={"invalid": partial(invalid_action_penalty, penalty=0.5)})
    state, metrics = step(learner, params, episode)
    by_hand = episode.replace(reward=jnp.where(bad, -0.5, 0.0))
    expected, _ = step(learner_of(policy), params, by_hand)
    assert float(metrics["advantage_magnitude"].value) > 0.1
    assert_close(difference(params, state.params), difference(params, expected.params))


def test_the_reference_pulls_back(markov):
    policy, params, episode = markov
    learner = learner_of(policy, optax.sgd(1e-3), reference=True, regularizers={"kl": partial(kl_k2, coefficient=1.0)})
    neutral = episode.replace(reward=episode.reward * 0.0)
    state, metrics = step(learner, params, neutral)
    assert largest(difference(params, state.params)) < 1e-6 and float(metrics["reference_kl"].value) == 0.0
    moved = state.replace(params=jax.tree.map(lambda leaf: leaf * 0.8, params))
    update = jax.jit(learner.update)
    _, first = update(moved, KEY, neutral)
    for _ in range(5):
        moved, last = update(moved, KEY, neutral)
    assert 0.0 < float(last["kl"]) < float(first["kl"])


def test_entropy_rises_with_its_bonus(markov):
    policy, params, episode = markov
    learner = learner_of(
        policy, optax.adam(1e-2), regularizers={"entropy_bonus": partial(entropy_bonus, coefficient=1.0)}
    )
    neutral = episode.replace(reward=episode.reward * 0.0)
    _, first = step(learner, params, neutral)
    _, last = step(learner, params, neutral, times=4)
    assert float(last["entropy"].value) > float(first["entropy"].value)


@pytest.mark.exhaustive
def test_tempered_tokens_are_weighed(markov):
    policy, params, episode = markov
    tempered = episode.replace(sampling_log_prob=episode.behavior_log_prob - jnp.log(1.5))
    weighed, _ = step(learner_of(policy, importance_cap=2.0), params, tempered)
    capped, _ = step(learner_of(policy, importance_cap=1.2), params, tempered)
    one, _ = step(learner_of(policy), params, episode)
    for state, factor in ((weighed, 1.5), (capped, 1.2)):
        changes = difference(params, state.params), difference(params, one.params)
        assert_close(changes[0], jax.tree.map(lambda leaf, by=factor: leaf * by, changes[1]))


def test_a_changed_number_is_the_same_program(markov):
    policy, params, episode = markov
    traces = []

    def loss(*args, **numbers):
        traces.append(1)
        return ppo_clip(*args, **numbers)

    learner = learner_of(policy, loss=partial(loss, clip_epsilon=0.2))
    update, state = jax.jit(learner.update), learner.init(KEY, params)
    update(state, KEY, episode)
    count = len(traces)
    update(with_numbers(state, loss={"clip_epsilon": 0.4}), KEY, episode)
    assert len(traces) == count and set(state.settings.numbers["loss"]) == {"clip_epsilon"}


def test_coefficients_follow_their_schedules(markov):
    """With a learning rate of zero, the term of a regulariser changes by its coefficient alone."""
    policy, params, episode = markov
    bonus = partial(entropy_bonus, coefficient=linear_schedule(start=2.0, end=0.0))
    options = {"num_updates": 4, "value_coefficient": linear_schedule(start=1.0, end=0.0)}
    learner = learner_of(policy, optax.sgd(0.0), regularizers={"bonus": bonus}, **options)
    state, update = learner.init(KEY, params), jax.jit(learner.update)
    terms = []
    for _ in range(3):
        state, metrics = update(state, KEY, episode)
        terms.append(float(metrics["bonus"]))
    assert terms[0] < 0.0
    np.testing.assert_allclose(terms, [terms[0], 0.75 * terms[0], 0.5 * terms[0]], rtol=1e-5)
    assert set(state.settings.memory) == {"regularizer/bonus.coefficient", "value_coefficient"}
    assert all(float(memory.update) == 3.0 for memory in state.settings.memory.values())


def remembered_turns(memory, view, *, coefficient):
    """A regulariser of nothing that remembers how many tokens of every turn it has seen."""
    count = jnp.zeros(6).at[view.turn.reshape(-1)].add(view.mask.reshape(-1))
    return coefficient * memory["first"] * jnp.where(view.mask, view.log_prob, 0.0), count


COUNTING = Stateful(
    init=lambda num_updates: {"tokens": jnp.zeros(6), "first": jnp.float32(num_updates)},
    apply=partial(remembered_turns, coefficient=0.5),
    update=lambda memory, count: {"tokens": memory["tokens"] + count, "first": jnp.float32(0.0)},
)


@pytest.mark.exhaustive
def test_a_slot_remembers_all_tokens_of_an_update_by_turn(played):
    policy, params, episode = played
    options = {"num_updates": 3, "num_minibatches": 2, "num_epochs": 2}
    learner = learner_of(policy, optax.sgd(1e-3), regularizers={"count": COUNTING}, **options)
    state = learner.init(KEY, params)
    assert float(state.settings.numbers["regularizer/count"]["coefficient"]) == 0.5
    assert float(state.settings.memory["regularizer/count"]["first"]) == 3.0
    update = jax.jit(learner.update)
    state, first = update(state, KEY, episode)
    expected = np.sum(episode.action_mask, axis=(0, 2))
    np.testing.assert_array_equal(state.settings.memory["regularizer/count"]["tokens"], 2.0 * expected)
    state, second = update(state, KEY, episode)
    np.testing.assert_array_equal(state.settings.memory["regularizer/count"]["tokens"], 4.0 * expected)
    assert float(first["count"]) < 0.0 == float(second["count"])


@pytest.mark.slow
def test_two_devices_remember_the_same_as_one(markov):
    policy, params, episode = markov
    one, _ = step(learner_of(policy, regularizers={"count": COUNTING}), params, episode)
    learner = learner_of(policy, regularizers={"count": COUNTING}, axis_name="devices")
    state = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), learner.init(KEY, params))
    halves = jax.tree.map(lambda leaf: leaf.reshape(2, 4, *leaf.shape[1:]), episode.replace(layout=None))
    halves = halves.replace(layout=episode.layout)
    two, _ = jax.pmap(learner.update, axis_name="devices", in_axes=(0, None, 0))(state, KEY, halves)
    tokens = two.settings.memory["regularizer/count"]["tokens"]
    np.testing.assert_array_equal(tokens[0], one.settings.memory["regularizer/count"]["tokens"])
    np.testing.assert_array_equal(tokens[0], tokens[1])


@pytest.mark.slow
def test_minibatches_are_of_whole_episodes_and_the_same_on_two_devices(markov):
    policy, params, episode = markov
    options = {"num_epochs": 2, "num_minibatches": 2, "optimizer": optax.sgd(1e-3)}
    one, _ = step(learner_of(policy, **options), params, episode)
    learner = learner_of(policy, axis_name="devices", **options)
    state = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), learner.init(KEY, params))
    halves = jax.tree.map(lambda leaf: leaf.reshape(2, 4, *leaf.shape[1:]), episode.replace(layout=None))
    halves = halves.replace(layout=episode.layout)
    two, _ = jax.pmap(learner.update, axis_name="devices", in_axes=(0, None, 0))(state, KEY, halves)
    for device in range(2):
        mine = jax.tree.map(lambda leaf, index=device: leaf[index], two.params)
        assert_close(difference(params, mine), difference(params, one.params), tolerance=1e-3)


def test_settings_out_of_range_are_refused(markov):
    policy, params, episode = markov
    with pytest.raises(ValueError, match="`num_epochs` must be at least 1, got 0"):
        learner_of(policy, num_epochs=0)
    with pytest.raises(ValueError, match="`num_minibatches` must divide .* got 3"):
        step(learner_of(policy, num_minibatches=3), params, episode)


def test_dropped_rows_count_nowhere(markov):
    _, _, episode = markov
    keep = jnp.arange(8) < 4
    mask = credited_tokens(episode.replace(keep=keep))
    assert bool(jnp.all(mask[:4] == episode.action_mask[:4])) and not bool(jnp.any(mask[4:]))


@pytest.mark.exhaustive
def test_agents_tell_the_optimiser_the_length_of_the_run(lake, speak):
    result = []
    agent = make_agent(
        lake,
        policy=speak,
        optimizer=lambda steps: result.append(steps) or optax.sgd(0.1),
        num_epochs=2,
        num_minibatches=3,
        **SLOTS,
    )
    agent.make_learner(None, 7)
    assert result == [42] and agent.policy.layout.num_turns == 6


@pytest.mark.exhaustive
def test_statistics_of_rows_do_not_depend_on_the_layout_they_are_scored_in(markov):
    """A row of a turn of its own says the same as the turn in a row with all others out of sight."""
    policy, params, episode = markov
    folded = score_tokens(policy.model, params, to_rows(episode), episode.layout)
    names = ("prompt_tokens", "prompt_mask", "tokens", "token_mask", "position", "agent")
    whole = Rows(**{name: getattr(episode, name) for name in names})
    long = score_tokens(policy.model, params, whole, episode.layout)
    mask = np.asarray(episode.action_mask)
    np.testing.assert_allclose(folded.log_prob.reshape(mask.shape)[mask], long.log_prob[mask], atol=1e-5)
