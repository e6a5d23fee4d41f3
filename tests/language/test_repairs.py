"""Collectors of transcripts with repairs, forks, alternatives and choices, against what they should be by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text import crafting
from jaxagents.environments.text.builder import make_text_world
from jaxagents.environments.text.notes import with_notes
from jaxagents.environments.text.procedures import procedure
from jaxagents.language.a3t import make_exploration_collector
from jaxagents.language.agent_r import make_revision_collector, revise
from jaxagents.language.early_experience import (
    learn_observations,
    make_consideration_collector,
    make_outcome_collector,
)
from jaxagents.language.evocua import make_fork_collector
from jaxagents.language.interventions import Replay, replay, with_interventions
from jaxagents.language.limi import any_transcript, complete_and_long, longest, make_selection_collector
from jaxagents.language.relabeling import recorded_words
from jaxagents.language.step_partial_masking import make_step_correction_collector
from jaxagents.ops.pairs import best_against_others
from jaxagents.policies.contexts import to_rows
from tests.fakes import jitted, score_tokens

KEY, ROWS = jax.random.key(6), 16
AT_RANDOM = jnp.zeros(4)


@pytest.fixture(scope="module")
def world():
    return jitted(crafting.make_environment((1,), informative=True, max_steps=6))


@pytest.fixture(scope="module")
def actor(world, speak):
    return speak(world, thought_tokens=6, context_turns=2)


def collect(collector, params):
    return jax.jit(lambda key: collector.collect(collector.init(key, params), params, key)[1:])(KEY)


def watch(environment, policy, episode):
    """Plays recorded actions again; returns them, and what came of them."""
    watched = with_interventions(environment)
    actions = recorded_words(policy, episode)[0][..., : environment.action_space.shape[0]]
    keys = jax.random.split(KEY, actions.shape[0])
    return actions, jax.jit(lambda: replay(watched, jax.vmap(watched.reset)(keys, episode.task), actions))()


def learned(episode):
    """Returns bool `[B, T]`, turns that are learned."""
    weight = 1.0 if episode.loss_weight is None else np.asarray(episode.loss_weight)
    return (np.asarray(episode.action_mask) * weight).any(axis=2)


def experts(environment, episode, actions):
    """Returns what the expert does in every state of episodes, `[B, T, M]`."""
    environment = jitted(environment)
    rows = []
    for row in range(actions.shape[0]):
        task = jax.tree.map(lambda leaf, row=row: leaf[row], episode.task)
        state, output = environment.reset(KEY, task)[0], []
        for action in actions[row]:
            output.append(np.asarray(environment.text.expert(KEY, state)[0]))
            state = environment.step(KEY, state, action)[0]
        rows.append(output)
    return np.asarray(rows)


def test_the_expert_acts_after_each_wrong_step_of_the_policy(lake, wanderer):
    episode, _ = collect(make_step_correction_collector(lake, wanderer, num_episodes=ROWS), AT_RANDOM)
    actions, seen = watch(lake, wanderer, episode)
    np.testing.assert_array_equal(seen.live, episode.valid)
    np.testing.assert_array_equal(learned(episode), np.asarray(seen.live & ~seen.mistaken))
    mistaken, expert = np.asarray(seen.mistaken), experts(lake, episode, actions)
    after = np.pad(mistaken[:, :-1], ((0, 0), (1, 0))) & np.asarray(seen.live)
    assert after.sum() > 4 and not (after & mistaken).any()  # The expert makes none.
    np.testing.assert_array_equal(np.asarray(actions)[after], expert[after])


def test_a_revision_goes_on_along_the_good_path_from_where_the_two_part():
    bad = jnp.array([[5, 6, 7, 8, 8, 8], [5, 6, 6, 6, 6, 6]])[..., None]
    good = jnp.array([[5, 9, 8, 3, -1, -1], [5, 6, 1, -1, -1, -1]])[..., None]
    live = jnp.array([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]], bool)
    doubted = jnp.array([[0, 0, 1, 0, 1, 0], [0, 0, 0, 0, 0, 1]], bool)
    made = revise(bad, live, doubted, good)
    # The first doubted turn is the third. In the second row none that took place is: the path is read to its end.
    assert made.actions[..., 0].tolist() == [[5, 6, 7, 9, 8, 3], [5, 6, 6, 1, -1, -1]]
    assert made.read.tolist() == [[True] * 3 + [False] * 3] * 2 and (made.cut.sum(axis=1) == 1).all()


def test_revisions_are_of_failures_and_succeed(lake, wanderer):
    collector = make_revision_collector(lake, wanderer, num_episodes=4 * ROWS, doubt=0.3)
    episode, metrics = collect(collector, AT_RANDOM)
    actions, seen = watch(lake, wanderer, episode)
    assert seen.success.all() and episode.success.all()
    revised = (np.asarray(episode.loss_weight) == 0.0).any(axis=(1, 2))
    assert 0 < revised.sum() == metrics["revised_fraction"].total and not revised[::2].any()
    # A random walker doubts all that it does: its first action is read, and all else is learned.
    expected = np.asarray(seen.live) & ~(revised[:, None] & (np.arange(actions.shape[1]) == 0))
    np.testing.assert_array_equal(learned(episode), expected)
    clean = np.asarray(seen.mistaken)[~revised]
    assert not clean.any()


def test_observations_after_an_action_are_learned_and_can_be_scored(world, actor):
    episode, _ = collect(make_outcome_collector(world, actor, num_episodes=4, noise=0.5), None)
    mask, there = np.asarray(episode.action_mask), np.asarray(episode.token_mask)
    size = actor.layout.observation
    assert not mask[:, 0].any() and not mask[:, :, size:].any() and not mask[:, :, 0].any()
    np.testing.assert_array_equal(mask[:, 1:, 1:size], there[:, 1:, 1:size])
    assert episode.layout.turn == actor.layout.turn
    # What is scored at an observation's token is the log-probability of that token.
    params = actor.init(KEY)
    scored = score_tokens(actor.model, params, to_rows(episode), episode.layout, fields=("log_prob",)).log_prob
    assert (np.asarray(scored)[mask] < 0.0).all()
    changed = episode.replace(tokens=jnp.where(mask, 0, episode.tokens))
    other = score_tokens(actor.model, params, to_rows(changed), episode.layout, fields=("log_prob",)).log_prob
    assert (np.asarray(other) != np.asarray(scored))[mask].mean() > 0.9


def test_without_thoughts_the_layout_of_learned_observations_has_as_many_tokens(world, speak):
    policy = speak(world, context_turns=2)
    episode, _ = collect(make_outcome_collector(world, policy, num_episodes=2), None)
    assert episode.layout.turn == policy.layout.turn and episode.layout.observation == 1
    assert learn_observations(episode).layout.turn == policy.layout.turn
    with pytest.raises(ValueError, match="`policy.context_turns` must be at least 2"):
        make_outcome_collector(world, speak(world, context_turns=1), num_episodes=2)


@pytest.mark.parametrize("outcome_words", [2, pytest.param(0, marks=pytest.mark.exhaustive)])
def test_an_alternative_and_its_outcome_are_thought_before_the_expert_acts(world, actor, outcome_words):
    made = make_consideration_collector(world, actor, num_episodes=8, share=1.0, outcome_words=outcome_words)
    episode, _ = collect(made, None)
    actions, thoughts = (np.asarray(words) for words in recorded_words(actor, episode))
    assert episode.success.all() and episode.loss_weight is None
    considered = 0
    for row in range(8):
        state = world.reset(KEY, jax.tree.map(lambda leaf, row=row: leaf[row], episode.task))[0]
        for turn in range(int(episode.valid[row].sum())):
            thought = [word for word in thoughts[row, turn].tolist() if word >= 0]
            if len(thought) > 1:
                considered += 1
                rest = outcome_words or 1
                alternative = jnp.asarray((thought[: -rest - 1] + [-1])[:2])
                after, answer = world.step(KEY, state, alternative)
                assert world.text.distance(after) >= world.text.distance(state)
                seen = answer.observation[:2].tolist() if outcome_words else [world.text.words.index("nothing happens")]
                assert thought[-rest - 1 : -1] == seen
            state = world.step(KEY, state, jnp.asarray(actions[row, turn][:2]))[0]
    assert considered > 8


@pytest.mark.slow
def test_random_actions_are_written_down_as_chosen_with_themselves_as_reason(world, actor, params_of):
    options = {"num_groups": 4, "group_size": 3}
    params = params_of(actor)
    every, _ = collect(make_exploration_collector(world, actor, noise=1.0, **options), params)
    actions, thoughts = (np.asarray(words) for words in recorded_words(actor, every))
    valid = np.asarray(every.valid)
    np.testing.assert_array_equal(thoughts[valid][:, :2], actions[valid][:, :2])
    assert every.action_valid[valid].all() and every.group.tolist() == sum(([n] * 3 for n in range(4)), [])
    assert any((actions[n] != actions[n + 1]).any() for n in (0, 3, 6, 9))  # Rows of a group differ.
    assert (learned(every) == valid).all()
    # Without random actions they are the policy's own: most of this model's cannot be read.
    none, _ = collect(make_exploration_collector(world, actor, noise=0.0, **options), params)
    assert not none.action_valid[np.asarray(none.valid)].all()


def test_scores_of_transcripts():
    turns = jnp.arange(4)[None]
    played = Replay(
        actions=jnp.zeros((4, 4, 1)),
        live=turns < jnp.array([[2], [4], [3], [3]]),
        mistaken=turns < jnp.array([[0], [1], [1], [0]]),
        success=jnp.array([True, False, True, True]),
    )
    assert complete_and_long(played).tolist() == [2.0, -1.0, 4.0, 3.0]
    assert longest(played).tolist() == [2.0, 4.0, 3.0, 3.0] and any_transcript(played).tolist() == [0.0] * 4


def test_the_best_transcripts_are_chosen_once(lake, wanderer):
    options = {"num_episodes": 64, "num_candidates": 64, "num_transcripts": 4, "noise": 0.4}
    episode, _ = collect(make_selection_collector(lake, wanderer, **options), None)
    everything, _ = collect(make_selection_collector(lake, wanderer, **options | {"num_transcripts": 64}), None)
    actions, seen = watch(lake, wanderer, everything)
    score = np.asarray(complete_and_long(seen))
    chosen, came = watch(lake, wanderer, episode)
    assert len({row.tobytes() for row in np.asarray(chosen)}) <= 4 and episode.success.all()
    assert np.asarray(complete_and_long(came)).min() >= np.unique(score)[-4:].min()
    with pytest.raises(ValueError, match="`num_transcripts` must be at most 2 candidates, got 4"):
        make_selection_collector(lake, wanderer, num_episodes=2, num_candidates=2, num_transcripts=4)


@pytest.mark.slow
def test_pairs_differ_in_the_step_of_the_fork_and_in_the_step_after_it(lake, wanderer):
    episode, metrics = collect(make_fork_collector(lake, wanderer, num_episodes=ROWS), AT_RANDOM)
    actions, seen = watch(lake, wanderer, episode)
    actions, keep = np.asarray(actions), np.asarray(episode.keep)
    expert, mistaken = experts(lake, episode, actions), np.asarray(seen.mistaken)
    pairs = best_against_others(episode)
    compared = np.flatnonzero(np.asarray(pairs.pair) >= 0)
    np.testing.assert_array_equal(compared, np.flatnonzero(keep & (np.arange(4 * ROWS) % 2 == 1)))
    assert (np.asarray(pairs.pair)[compared] == compared - 1).all()
    assert metrics["forked_fraction"].total == keep[::4].sum() > 0
    for row in compared:
        better, last = row - 1, int(episode.valid[row].sum()) - 1
        np.testing.assert_array_equal(actions[better, :last], actions[row, :last])
        np.testing.assert_array_equal(actions[better, last], expert[row, last])
        sampled = np.asarray(episode.action_mask[jnp.array([better, row])]).any(axis=2)
        np.testing.assert_array_equal(sampled, [np.arange(sampled.shape[1]) == last] * 2)
        # The first mistake is the last step of the correction, and the one before it of the reflection.
        assert np.argmax(mistaken[row]) == last - (row % 4 == 3)


def test_a_procedure_says_each_sub_goal_once_and_leaves_out_what_is_done():
    rules = crafting.make_environment((2,)).text.rules
    world = jitted(make_text_world(with_notes(rules, write=procedure, cue="first")))
    task = world.sample_task(KEY) | {"given": jnp.zeros(8 + 6, bool)}
    state, timestep = world.reset(KEY, task)
    goal = crafting.GOODS[int(task["goal"])]
    below = crafting.BASES + crafting.GOODS
    first = below[int(task["ingredients"][int(task["goal"])][0])]

    def text(timestep):
        return " ".join(world.text.words[word] for word in timestep.observation.tolist() if word >= 0)

    assert text(timestep).startswith(f"first {first} {goal} . goal {goal}")
    for _ in range(10):
        action = world.text.expert(KEY, state)[0]
        state, timestep = world.step(KEY, state, action)
        if f"pack {first}" in text(timestep) or f" {first}" in text(timestep).split("pack")[-1]:
            break
    assert text(timestep).startswith(f"first {goal} . ")
