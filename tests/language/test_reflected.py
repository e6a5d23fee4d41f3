"""Re-ReST: which attempt is learned, and corrections that are told from the beginning."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text import lists
from jaxagents.environments.text.builder import make_text_world
from jaxagents.environments.text.retries import with_retries
from jaxagents.language import reflected
from jaxagents.language.interventions import episode_actions
from jaxagents.language.reflected import last_attempt, make_reflected_collector
from jaxagents.language.scripts import play_script

KEY = jax.random.key(5)


def test_where_the_last_attempt_begins():
    """Trials of three turns; of three and two; one, two and one; one and one. What ends a trial counts the next."""
    valid = jnp.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [1, 1, 1, 1, 0], [1, 1, 0, 0, 0]], bool)
    trials = jnp.array([[1, 1, 1, 0, 0], [1, 1, 2, 2, 2], [2, 2, 3, 3, 0], [2, 2, 0, 0, 0]], jnp.float32)
    correction = SimpleNamespace(valid=valid, extras={"trials": trials})
    assert last_attempt(correction).tolist() == [0, 3, 3, 1]
    assert last_attempt(SimpleNamespace(valid=valid, extras={})).tolist() == [2, 4, 3, 1]


@pytest.fixture(scope="module")
def worlds():
    """Two lists of one task, a letter of which decides: attempts as turns of the world, and as trials."""
    attempts = lists.make_environment((4,), operations=("reverse",), num_attempts=3, feedback="place")
    single = lists.make_environment((4,), operations=("reverse",)).text.rules
    return {"turns": attempts, "trials": make_text_world(with_retries(single, num_trials=3))}


@pytest.mark.parametrize(
    "kind", [pytest.param("turns", marks=pytest.mark.exhaustive), pytest.param("trials", marks=pytest.mark.slow)]
)
def test_corrections_are_told_as_first_answers(worlds, speak, kind, monkeypatch):
    """A player of groups of three who says the right list in the first, the second and the third attempt."""
    world = worlds[kind]
    policy = speak(world, context_turns=1, prompt=False)

    def play_as_told(environment, policy, *, group_size, sampling, parts):
        assert parts == (["trials"] if kind == "trials" else [])

        def play(params, key, group, *, task, start):
            task, start = jax.tree.map(lambda leaf: jnp.repeat(leaf, group_size, axis=0), (task, start))
            row = jnp.arange(group.shape[0] * group_size)

            def choose(keys, state, timestep, turn):
                right = jax.vmap(environment.text.expert)(keys, state)[0]
                good = (turn == row % 3)[:, None]
                return jnp.where(good, right, right[:, ::-1].at[:, 0].set(right[:, 0])), None, True

            keys = jax.random.split(key, row.shape[0])
            played = play_script(
                environment, policy, choose, keys=keys, task=task, start=start, group=jnp.repeat(group, group_size)
            )
            begun = jnp.cumsum(played.valid, axis=1)  # A trial that fails begins the next one.
            return played.replace(extras={"trials": jnp.minimum(begun + 1.0, begun[:, -1:])} if parts else {})

        return play

    monkeypatch.setattr(reflected, "make_dialogue", play_as_told)
    collector = make_reflected_collector(world, policy, num_groups=2, group_size=3)
    both, metrics = jax.jit(lambda key: collector.collect(collector.init(key, None), None, key)[1:])(KEY)
    assert both.success.shape == (12,) and both.group.tolist() == [0] * 6 + [1] * 6
    own, correction = (jax.tree.map(lambda leaf, at=at: leaf[at::2], both) for at in (0, 1))
    assert own.success.all() and own.keep.all()
    np.testing.assert_array_equal(np.sum(own.valid, axis=1), [1, 2, 3] * 2)
    np.testing.assert_array_equal(correction.keep, [False, True, True] * 2)  # Who was right at once corrects nothing.
    assert metrics["corrected_fraction"].total == 4.0 and metrics["corrected_fraction"].count == 6.0
    # Of own episodes the attempt that was right is learned, be it the first or one that has read the others.
    np.testing.assert_array_equal(own.loss_weight[:3, :, 0], [[1, 1, 1], [0, 1, 1], [0, 0, 1]])
    assert (correction.loss_weight == 1.0).all()
    np.testing.assert_array_equal(np.sum(correction.valid, axis=1)[np.asarray(correction.keep)], [1] * 4)
    actions = episode_actions(world, policy, own)[0]
    last = np.asarray(actions)[np.arange(6), np.sum(own.valid, axis=1) - 1]
    np.testing.assert_array_equal(np.asarray(episode_actions(world, policy, correction)[0])[:, 0], last)
    first = policy.layout.observation  # Nothing of the failures is read.
    np.testing.assert_array_equal(correction.tokens[:, 0, :first], own.tokens[:, 0, :first])


@pytest.mark.slow
def test_a_policy_plays_it(worlds, speak, params_of):
    policy = speak(worlds["trials"], context_turns=1, prompt=False)
    params = params_of(policy)
    collector = make_reflected_collector(worlds["trials"], policy, num_groups=2, group_size=2)
    both, _ = jax.jit(lambda key: collector.collect(collector.init(key, params), params, key)[1:])(KEY)
    assert both.keep.tolist() == [True, False] * 4 and not both.success.any()


def test_one_attempt_is_refused(lake, speak):
    world = lists.make_environment((4,))
    with pytest.raises(ValueError, match="`environment` must give several attempts, got 'lists'; try"):
        make_reflected_collector(world, speak(world), num_groups=2, group_size=2)
