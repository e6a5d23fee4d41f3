"""Candidates for every turn: what goes on, what is a row, and who judges; on a lake whose distances are known."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text.frozenlake import ACTIONS
from jaxagents.language.relabeling import recorded_words
from jaxagents.language.stepwise import make_stepwise_collector
from jaxagents.language.verifiers import make_distance_verifier, make_outcome_verifier
from jaxagents.learners.token_losses import make_token_view
from jaxagents.ops.imitation import best_of_group
from jaxagents.policies.contexts import to_rows
from jaxagents.types import EpisodeView
from tests.fakes import score_tokens

KEY, GROUPS, CANDIDATES, TURNS = jax.random.key(3), 3, 4, 6


def collect_with(lake, policy):
    return make_stepwise_collector(
        lake, policy, num_groups=GROUPS, group_size=CANDIDATES, verifier=make_distance_verifier
    )


@pytest.fixture(scope="module")
def collected(lake, wanderer):
    """Returns a batch, rows `[n, K, T]`, and its metrics."""
    collector, params = collect_with(lake, wanderer), wanderer.init(KEY)
    return collector, params, *jax.jit(lambda key: collector.collect(collector.init(key, params), params, key)[1:])(KEY)


@pytest.mark.exhaustive
def test_the_verified_best_goes_on_and_the_others_were_carried_out(lake, wanderer, collected):
    """Plays the chosen actions once more, in numpy, from the grids of the tasks."""
    _, _, batch, metrics = collected
    words, _ = recorded_words(wanderer, batch)
    shape = (GROUPS, CANDIDATES, TURNS)
    output = np.asarray(words)[:, 0, 0].reshape(shape)
    valid, score = (np.asarray(x).reshape(shape) for x in (batch.valid, batch.reward))
    task = jax.tree.map(lambda leaf: np.asarray(leaf).reshape(*shape, *leaf.shape[1:])[:, 0, 0], batch.task)
    names = [lake.text.words[i] for i in range(len(lake.text.words))]
    moves = {names.index(name): move for name, move in zip(ACTIONS, [(0, -1), (1, 0), (0, 1), (-1, 0)])}
    num_turns = solved = 0
    for n in range(GROUPS):
        holes, goal = task["holes"][n], divmod(int(task["goal"][n]), 4)
        distance = _distances(holes, goal)
        cell, live = divmod(int(task["start"][n]), 4), True
        for t in range(TURNS):
            assert valid[n, :, t].all() == valid[n, :, t].any() == live
            if not live:
                break
            num_turns += CANDIDATES
            after = []
            for k in range(CANDIDATES):
                move = moves.get(output[n, k, t], (0, 0))
                after.append(tuple(int(x) for x in np.clip(np.add(cell, move), 0, 3)))
                assert score[n, k, t] == (distance[after[k]] < distance[cell])
            cell = after[int(np.argmax(score[n, :, t]))]
            live = not holes[cell] and cell != goal
            solved += cell == goal
    assert int(metrics["turns"].total) == num_turns and float(metrics["success_rate"].total) == solved
    assert 0.0 < float(metrics["verified_rate"].value) < 1.0  # Both kinds were seen.


def _distances(holes, goal):
    """Returns steps to the goal of every cell of a 4x4 lake by relaxation, infinite from holes."""
    steps = np.full((4, 4), np.inf)
    steps[goal] = 0
    for _ in range(16):
        for row in range(4):
            for column in range(4):
                near = [(row + i, column + j) for i, j in ((0, 1), (0, -1), (1, 0), (-1, 0))]
                near = [steps[cell] + 1 for cell in near if min(cell) >= 0 and max(cell) <= 3]
                if not holes[row, column] and (row, column) != goal:
                    steps[row, column] = min(near)
    return steps


@pytest.mark.exhaustive
def test_rows_are_turns_and_those_of_a_turn_are_a_group(collected):
    _, _, batch, _ = collected
    group = np.asarray(batch.group).reshape(GROUPS, CANDIDATES, TURNS)
    assert (group == group[:, :1]).all() and len(set(group[:, 0].ravel())) == GROUPS * TURNS
    np.testing.assert_array_equal(batch.keep, batch.valid[:, 0])
    np.testing.assert_array_equal(batch.success, batch.keep & (batch.reward[:, 0] == 1.0))
    chosen = np.asarray(best_of_group(EpisodeView(episode=batch))).reshape(group.shape)
    np.testing.assert_array_equal(chosen.sum(axis=1), np.asarray(batch.keep).reshape(group.shape)[:, 0])


@pytest.mark.slow
def test_rows_score_as_they_were_sampled(lake, speak, params_of):
    """The training pass over a row gives the log-probabilities of decoding."""
    policy = speak(lake, context_turns=1, prompt=False)
    collector, params = collect_with(lake, policy), params_of(policy)
    batch = jax.jit(lambda key: collector.collect(collector.init(key, params), params, key)[1])(KEY)
    statistics = score_tokens(policy.model, params, to_rows(batch), batch.layout, fields=("log_prob",))
    mask = np.asarray(make_token_view(batch, mask=batch.action_mask).mask)
    assert mask.sum() == batch.action_mask.sum() > 0
    np.testing.assert_allclose(
        np.where(mask, statistics.log_prob, 0.0), np.where(mask, batch.behavior_log_prob, 0.0), atol=1e-4
    )


@pytest.mark.exhaustive
def test_an_episode_depends_on_its_own_index_only(collected):
    """A batch of all groups, and the same groups one at a time, as on several devices."""
    collector, params, batch, _ = collected
    state = collector.init(KEY, params)
    one = jax.jit(lambda group: collector.collect(state | {"group": group}, params, KEY)[1])
    alone = [one(jnp.array([group], jnp.int32)) for group in range(GROUPS)]
    rows = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *alone)
    np.testing.assert_array_equal(rows.tokens * rows.token_mask, batch.tokens * batch.token_mask)
    np.testing.assert_array_equal(rows.reward, batch.reward)


def test_noise_turns_judgements_round(lake, wanderer):
    """Without noise, with certain noise, and with some, of the expert's first actions."""
    index = jnp.arange(400, dtype=jnp.int32)

    @jax.jit
    def judge(key):
        keys = jax.random.split(key, 400)
        task = jax.vmap(lake.sample_task)(keys)
        state, _ = jax.vmap(lake.reset)(keys, task)
        best = jax.vmap(lambda state: lake.text.expert(key, state)[0])(state)
        rest = (None, key, index, task, state, jax.vmap(lake.step)(keys, state, best))
        return [make_distance_verifier(lake, wanderer, noise=noise).score(*rest).mean() for noise in (0.0, 1.0, 0.25)]

    shares = judge(KEY)
    assert shares[:2] == [1.0, 0.0] and abs(shares[2] - 0.75) < 0.07


@pytest.mark.exhaustive
def test_playing_on_tells_the_chance_of_success(lake, wanderer):
    """From the goal every episode has succeeded, from a hole none; elsewhere shares of so many."""
    verify = jax.jit(partial(make_outcome_verifier(lake, wanderer, num_rollouts=4).score, wanderer.init(KEY)))
    key, index = jax.random.key(1), jnp.arange(3, dtype=jnp.int32)
    task = {
        "holes": jnp.zeros((3, 4, 4), bool).at[1, 0, 1].set(True),
        "start": jnp.zeros(3, jnp.int32),
        "goal": jnp.array([1, 15, 4], jnp.int32),
        "size": jnp.full(3, 4, jnp.int32),
        "level": jnp.zeros(3, jnp.int32),
    }
    state, _ = jax.jit(jax.vmap(lake.reset))(jax.random.split(key, 3), task)
    right = jnp.full((3, 1), lake.text.words.index("right"), jnp.int32)
    after = jax.jit(jax.vmap(lake.step))(jax.random.split(key, 3), state, right)
    score = verify(key, index, task, state, after)
    assert score[0] == 1.0 and score[1] == 0.0 and float(score[2]) in (0.0, 0.25, 0.5, 0.75, 1.0)


@pytest.mark.exhaustive
def test_what_a_verifier_plays_counts_as_rounds(lake, wanderer):
    verifier, params = partial(make_outcome_verifier, num_rollouts=2), wanderer.init(KEY)
    collector = make_stepwise_collector(lake, wanderer, num_groups=2, group_size=3, verifier=verifier)
    _, batch, metrics = jax.jit(lambda key: collector.collect(collector.init(key, params), params, key))(KEY)
    assert metrics["rounds"] == pytest.approx(1.0 + 2 * int(batch.valid.sum()) / 6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"group_size": 0}, "`group_size` must be a positive number, got 0"),
        ({"context": None}, "`policy.context_turns` must be 1 for candidates per turn, got 6"),
        ({"noise": 2.0}, r"`noise` must be in \[0, 1\], got 2.0"),
    ],
)
def test_refused(lake, speak, options, message):
    policy = speak(lake, context_turns=options.get("context", 1), prompt=False)
    verifier = partial(make_distance_verifier, noise=options.get("noise", 0.0))
    with pytest.raises(ValueError, match=message):
        make_stepwise_collector(lake, policy, num_groups=2, group_size=options.get("group_size", 2), verifier=verifier)
