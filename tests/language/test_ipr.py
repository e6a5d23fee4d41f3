"""Own steps beside an expert's: what is taken over, what counts as sampled, and how steps are judged."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.language.demonstrations import make_demonstrations
from jaxagents.language.ipr import make_refinement_collector
from jaxagents.language.relabeling import recorded_words
from jaxagents.language.tasks import make_uniform
from jaxagents.language.verifiers import make_distance_verifier, make_outcome_verifier
from jaxagents.ops.expert_pairs import agreeing_steps

KEY, GROUPS, STATES, ATTEMPTS, TURNS = jax.random.key(4), 5, 3, 2, 6
MOVES = {"left": (0, -1), "down": (1, 0), "right": (0, 1), "up": (-1, 0)}


@pytest.fixture(scope="module")
def collected(lake, wanderer):
    """Returns a batch judged by distances, its metrics, and the expert's episodes of the same keys."""
    collector = make_refinement_collector(
        lake,
        wanderer,
        num_groups=GROUPS,
        group_size=STATES,
        num_attempts=ATTEMPTS,
        noise=0.7,
        verifier=make_distance_verifier,
    )
    params = jnp.array([0.0, 1.0, 1.0, 0.0])

    def collect(key):
        state = collector.init(key, params)
        task_key, expert_key, *_ = jax.random.split(key, 4)
        chosen = make_uniform().choose(state["source"], task_key, state["group"])
        shown = make_demonstrations(lake, wanderer, noise=0.7)(expert_key, state["group"], chosen)
        return *collector.collect(state, params, key)[1:], shown

    return jax.jit(collect)(KEY)


def split_rows(batch):
    """Returns the expert's rows `[n K]` and the own ones `[n K, A]` of an array."""
    rows, number = np.asarray(batch), GROUPS * STATES
    return rows[:number], rows[number:].reshape(number, ATTEMPTS, *rows.shape[1:])


@pytest.mark.exhaustive
def test_own_rows_take_over_the_expert_and_only_what_follows_counts(wanderer, collected):
    batch, _, shown = collected
    expert = np.asarray(recorded_words(wanderer, shown)[0])[:, :, 0]
    words, sampled, took = (
        np.asarray(x) for x in (recorded_words(wanderer, batch)[0][:, :, 0], batch.action_mask.any(axis=2), batch.valid)
    )
    length = np.asarray(shown.valid).sum(axis=1)
    for n in range(GROUPS):
        for k in range(STATES):
            row, turn = n * STATES + k, k * -(-length[n] // STATES)
            own = [GROUPS * STATES + row * ATTEMPTS + a for a in range(ATTEMPTS)]
            np.testing.assert_array_equal(words[row, : length[n]], expert[n, : length[n]])
            for each in (row, *own):
                assert batch.group[each] == row and batch.keep[each] == (turn < length[n])
                np.testing.assert_array_equal(words[each, : min(turn, length[n])], expert[n, : min(turn, length[n])])
                np.testing.assert_array_equal(sampled[each], took[each] & (np.arange(TURNS) >= turn))
    assert not np.asarray(batch.keep).all()  # Some episodes of the expert are too short.


@pytest.mark.exhaustive
def test_the_score_is_that_of_the_first_step_of_ones_own(lake, wanderer, collected):
    """Walks in numpy to the state and one step on; a step is good where the distance of the world's plan falls."""
    batch, _, _ = collected
    words, sampled = np.asarray(recorded_words(wanderer, batch)[0])[:, :, 0], batch.action_mask.any(axis=2)
    moves = {lake.text.words.index(name): move for name, move in MOVES.items()}
    task, both = jax.tree.map(np.asarray, batch.task), set()
    states, _ = jax.jit(jax.vmap(lake.reset))(jax.random.split(KEY, len(batch.success)), batch.task)
    distances = np.asarray(states.inner.distance)
    for row in np.flatnonzero(batch.keep):
        distance, turn = distances[row], int(np.argmax(sampled[row]))
        cells = [divmod(int(task["start"][row]), 4)]
        for word in words[row, : turn + 1]:
            cells.append(tuple(int(x) for x in np.clip(np.add(cells[-1], moves[int(word)]), 0, 3)))
        hole = bool(task["holes"][row][cells[-1]])
        good = not hole and distance[4 * cells[-1][0] + cells[-1][1]] < distance[4 * cells[-2][0] + cells[-2][1]] - 0.5
        expected = np.zeros(TURNS)
        expected[turn] = float(good) if turn > 0 else 0.0
        np.testing.assert_array_equal(batch.reward[row], expected)
        both.add((turn > 0, good))
    assert len(both) == 4  # Good and bad steps, first ones and later ones.


@pytest.mark.exhaustive
def test_metrics_and_pairs(collected):
    batch, metrics, shown = collected
    score, kept = split_rows(np.asarray(batch.reward).sum(axis=1)), split_rows(batch.keep)
    gap = (score[0][:, None] - score[1])[kept[1] & (np.arange(GROUPS * STATES) % STATES > 0)[:, None]]
    assert float(metrics["score_gap"].value) == pytest.approx(gap.mean())
    own = split_rows(batch.success)[1][::STATES]
    assert float(metrics["success_rate"].total) == own.sum() and float(metrics["success_rate"].count) == own.size
    assert float(metrics["expert_success_rate"].value) == pytest.approx(float(shown.success.mean()))
    pairs = agreeing_steps(batch)
    for row in np.flatnonzero(pairs.pair >= 0):
        assert batch.success[pairs.pair[row]] and not batch.success[row]
        assert batch.group[pairs.pair[row]] == batch.group[row]


@pytest.mark.exhaustive
def test_what_the_verifier_plays_are_steps_and_states_may_be_the_first_alone(lake, wanderer):
    """Every turn of an expert who does not err: the last one succeeds, and what follows the others is played."""
    make = partial(make_refinement_collector, lake, wanderer, num_groups=4, num_attempts=2, noise=0.0)
    verifier = partial(make_outcome_verifier, num_rollouts=5)
    collector, params = make(group_size=TURNS, verifier=verifier), wanderer.init(KEY)
    assert collector.steps_per_collect == 4 * (6 * 2 + 5 * 3 * 5)
    batch = jax.jit(lambda key: collector.collect(collector.init(key, params), params, key)[1])(KEY)
    reward, length = np.asarray(batch.reward), np.asarray(batch.valid).sum(axis=1)
    assert set((5 * reward).round(4).ravel()) <= set(range(6)) and max(length[:24:TURNS]) > 2
    for row in range(0, 24, TURNS):
        for turn in range(1, length[row]):
            assert reward[row + turn, turn] == 1.0 or turn < length[row] - 1
    alone = make(group_size=1, verifier=verifier)
    assert alone.steps_per_collect == 8
    batch = jax.jit(lambda key: alone.collect(alone.init(key, params), params, key)[1])(KEY)
    assert batch.keep.all() and not batch.reward.any() and batch.success.shape == (12,)


def test_refused(lake, wanderer):
    with pytest.raises(ValueError, match="`num_attempts` must be a positive number, got 0"):
        make_refinement_collector(
            lake, wanderer, num_groups=2, group_size=2, num_attempts=0, verifier=make_distance_verifier
        )
