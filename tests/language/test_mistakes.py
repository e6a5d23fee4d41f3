"""Transcripts with mistakes: who acted, what was a mistake, what is learned, and what is thought after one."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text import countdown, crafting, mastermind
from jaxagents.language.interventions import replay, with_interventions
from jaxagents.language.mistakes import make_mistake_collector
from jaxagents.language.relabeling import recorded_words
from jaxagents.language.tasks import make_uniform, start_tasks
from tests.fakes import jitted

KEY, ROWS = jax.random.key(4), 12
REPLAY = jax.jit(replay, static_argnums=0)


@pytest.fixture(scope="module")
def world():
    return jitted(crafting.make_environment((1,), informative=True, max_steps=8))


@pytest.fixture(scope="module")
def policy(world, speak):
    return speak(world, thought_tokens=6, context_turns=2)


def words(world, *texts):
    """Returns actions int32 `[T, M]` of texts such as "get wood"."""
    return jnp.asarray([[world.text.words.index(word) for word in text.split()] for text in texts], jnp.int32)


def task_of_two(world):
    """Returns a task without gifts whose goal is made of two bases, and the number of the good."""
    task = world.sample_task(KEY)
    good = int(np.argmax(np.asarray(task["ingredients"])[:, 1] >= 0))
    return task | {"goal": jnp.int32(good), "given": jnp.zeros(11, bool)}, good


def test_a_mistake_is_what_comes_no_closer_to_the_goal(world):
    watched = with_interventions(world)
    task, good = task_of_two(world)
    one, other = (crafting.BASES[item] for item in np.asarray(task["ingredients"][good]))
    method, name = crafting.METHODS[int(task["methods"][good])], crafting.GOODS[good]
    wrong = next(other for other in crafting.METHODS if other != method)
    useless = next(base for base in crafting.BASES if base not in (one, other))
    output = [f"get {one}", f"get {useless}", f"{wrong} {name}", f"get {other}", f"{wrong} {name}", f"{method} {name}"]
    start = jax.tree.map(lambda leaf: leaf[None], watched.reset(KEY, task))
    played = REPLAY(watched, start, words(world, *output)[None])
    assert played.mistaken[0].tolist() == [False, True, True, False, True, False]
    assert played.live.all() and played.success.all()
    np.testing.assert_array_equal(played.actions[0], words(world, *output))
    # Without a distance, what the expert would not have done is one: it gets the first ingredient first.
    blind = dataclasses.replace(world, text=dataclasses.replace(world.text, distance=None))
    again = REPLAY(with_interventions(blind), start, words(world, *output)[None])
    expert = world.text.expert(KEY, world.reset(KEY, task)[0])[0]
    assert bool(again.mistaken[0, 0]) == (expert.tolist() != words(world, output[0])[0].tolist())
    assert again.mistaken[0, 1:3].all() and not again.mistaken[0, -1]


def test_who_intervenes_acts_and_is_told_of_the_mistake_before(world):
    def intervene(key, state, action, after_mistake, right):
        return jnp.where(after_mistake, right, action)

    corrected = with_interventions(world, intervene)
    task, _ = task_of_two(world)
    start = jax.tree.map(lambda leaf: leaf[None], corrected.reset(KEY, task))
    played = REPLAY(corrected, start, jnp.full((1, 8, 2), -1))  # Nothing that could be read.
    expected = np.zeros((8,), bool)
    expected[: int(played.live.sum()) : 2] = True  # Every other turn is a mistake, the next one the expert's.
    np.testing.assert_array_equal(played.mistaken[0], expected & np.asarray(played.live[0]))
    assert played.success[0] and played.live.sum() == 6  # Three steps to the good, each after a mistake.


@pytest.fixture(scope="module")
def collected(world, policy):
    collector = make_mistake_collector(
        world, policy, num_episodes=ROWS, noise=0.6, min_mistakes=2, num_attempts=8, num_transcripts=64
    )
    return jax.jit(lambda key: collector.collect(collector.init(key, None), None, key)[1:])(KEY)


def test_mistakes_are_read_and_not_learned_and_reflected_on_in_the_next_thought(world, policy, collected):
    episode, metrics = collected
    actions, thoughts = recorded_words(policy, episode)
    source = make_uniform(num_tasks=64)
    task, start, _ = start_tasks(
        with_interventions(world), source.choose(source.init(KEY, ROWS), KEY, jnp.arange(ROWS))
    )
    watched = REPLAY(with_interventions(world), start, actions[..., :2])
    np.testing.assert_array_equal(watched.live, episode.valid)
    assert (watched.mistaken.sum(axis=1) >= 2).all() and episode.success.all()
    learned = np.where(np.asarray(episode.action_mask), np.asarray(episode.loss_weight), 0.0).any(axis=2)
    np.testing.assert_array_equal(learned, np.asarray(watched.live & ~watched.mistaken))
    assert float(metrics["mistake_rate"].total) == watched.mistaken.sum()
    after = np.pad(np.asarray(watched.mistaken)[:, :-1], ((0, 0), (1, 0)))
    for row, turn in zip(*np.nonzero(np.asarray(watched.live))):
        thought = policy.lexicon.text(np.asarray(thoughts[row, turn]))
        if watched.mistaken[row, turn]:
            assert thought == ""
        else:
            assert thought.startswith("nothing happens") == after[row, turn] and thought.split()[-1] in crafting.GOODS


def test_without_masks_all_turns_are_learned(world, policy):
    collector = make_mistake_collector(world, policy, num_episodes=2, mask_mistakes=False, reflects=False)
    assert jax.eval_shape(collector.collect, collector.init(KEY, None), None, KEY)[1].loss_weight is None


def test_refused(world, speak):
    with pytest.raises(ValueError, match="hold the longest thought and 1 tokens before it, 3 in 'crafting', got 2"):
        make_mistake_collector(world, speak(world, thought_tokens=2), num_episodes=2)
    with pytest.raises(ValueError, match="`noise` must be"):
        make_mistake_collector(world, speak(world), num_episodes=2, noise=1.5)


@pytest.mark.slow
@pytest.mark.parametrize("make", [countdown.make_environment, mastermind.make_environment])
def test_thoughts_and_mistakes_are_of_the_decision_that_was_taken(make, speak):
    """Experts that choose at random among what is as good, and whose thoughts name the choice."""
    world = jitted(make())
    room = 24 if world.text.patterns.thought else 0
    actor = speak(world, thought_tokens=room)
    collector = make_mistake_collector(world, actor, num_episodes=ROWS, noise=0.0, reflects=False)
    episode, metrics = jax.jit(lambda key: collector.collect(collector.init(key, None), None, key)[1:])(KEY)
    actions, thoughts = recorded_words(actor, episode)
    if world.text.distance is None:
        assert float(metrics["mistake_rate"].total) == 0.0
    if not room:
        return
    starts = jax.jit(jax.vmap(world.reset))(jax.random.split(KEY, ROWS), episode.task)[0]
    ask = jax.jit(jax.vmap(jax.vmap(world.text.expert, in_axes=(0, None)), in_axes=(None, 0)))
    would, thinks = ask(jax.random.split(KEY, 512), starts)
    same = (would == actions[:, :1, : would.shape[2]]).all(axis=2)
    assert same.any(axis=1).all() and not same.all()
    width = min(thinks.shape[2], thoughts.shape[2])
    assert (same & (thinks[..., :width] == thoughts[:, :1, :width]).all(axis=2)).any(axis=1).all()
