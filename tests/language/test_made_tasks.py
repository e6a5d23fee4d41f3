"""Own episodes under hints and stretches of play, as transcripts of tasks that nobody gave."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text import crafting, lists, tools
from jaxagents.environments.text.builder import make_text_world
from jaxagents.environments.text.crafting_goals import made
from jaxagents.environments.text.hints import with_hints
from jaxagents.environments.text.procedures import procedure
from jaxagents.language.cues import make_curious_collector
from jaxagents.language.demonstrations import make_demonstrations
from jaxagents.language.hints import _after_failures, make_hint_collector
from jaxagents.language.interventions import episode_actions, replay, with_interventions
from jaxagents.language.relabel import make_stretch_collector, stretches
from jaxagents.language.relabeling import recorded_words
from tests.fakes import jitted

KEY = jax.random.key(9)


@pytest.fixture(scope="module")
def hinted():
    rules = crafting.make_environment((1,), max_steps=6).text.rules
    return jitted(make_text_world(with_hints(rules, write=procedure)))


def output(world, episode, policy, row, turn=0):
    size = policy.layout.observation
    words, _ = policy.lexicon.parse(
        episode.tokens[row, turn, 1 : size - 1], episode.token_mask[row, turn, 1 : size - 1], size
    )
    return policy.lexicon.text(np.asarray(words))


def test_a_hint_is_given_where_the_task_says_so_and_by_no_task_that_is_drawn(hinted):
    task = hinted.sample_task(KEY)
    assert not task["hint"] and not hinted.text.sample_held_out_task(KEY)["hint"]
    seen = []
    for hint in (False, True):
        _, timestep = hinted.reset(KEY, task | {"hint": jnp.bool_(hint)})
        seen.append(" ".join(hinted.text.words[word] for word in timestep.observation.tolist() if word >= 0))
    goal = crafting.GOODS[int(task["inner"]["goal"])]
    assert seen[1] == f"hint {goal} . {seen[0]}" and seen[0].startswith(f"goal {goal}")


def test_a_share_of_the_tasks_that_are_drawn_gives_a_hint():
    rules = crafting.make_environment((1,), max_steps=6).text.rules
    keys = jax.random.split(KEY, 400)
    draw = {share: with_hints(rules, write=procedure, share=share).sample for share in (0.0, 0.5)}
    some, none = (jax.vmap(draw[share], in_axes=(0, None))(keys, jnp.int32(0)) for share in (0.5, 0.0))
    assert 0.4 < some["hint"].mean() < 0.6 and not none["hint"].any()
    np.testing.assert_array_equal(some["inner"]["goal"], none["inner"]["goal"])  # They are the same tasks.
    with pytest.raises(ValueError, match="`share` must be"):
        with_hints(rules, write=procedure, share=1.5)


def test_whether_a_task_gives_hints_says_nothing_of_the_task():
    """Worlds split their keys in up to eleven."""
    rules = tools.make_environment(impossible=0.5).text.rules
    draw = with_hints(rules, write=lambda world, state: None, share=0.5).sample
    tasks = jax.jit(jax.vmap(lambda key: draw(key, jnp.int32(0))))(jax.random.split(KEY, 512))
    hint, impossible = np.asarray(tasks["hint"]), np.asarray(tasks["inner"]["impossible"])
    assert 0.3 < hint.mean() < 0.7 and 0.3 < impossible.mean() < 0.7
    assert abs(hint[impossible].mean() - hint[~impossible].mean()) < 0.2  # Of one stream: 1, and what is left.


@pytest.mark.slow
@pytest.mark.parametrize("only_failed", [False, True])
def test_episodes_under_hints_are_written_down_without_them(hinted, speak, params_of, only_failed):
    policy = speak(hinted, context_turns=1, prompt=False)
    params = params_of(policy)
    options = {"num_groups": 3, "group_size": 2, "only_failed": only_failed}

    def collect(**more):
        collector = make_hint_collector(hinted, policy, **options | more)
        return jax.jit(lambda key: collector.collect(collector.init(key, params), params, key)[1:])(KEY)

    (plain, metrics), (kept, _) = collect(), collect(keep_hints=True)
    actions = [np.asarray(episode_actions(hinted, policy, episode)[0]) for episode in (plain, kept)]
    np.testing.assert_array_equal(*actions)
    np.testing.assert_array_equal(plain.success, kept.success)
    size = 4 if only_failed else 2
    assert plain.group.tolist() == sum(([n] * size for n in range(3)), [])
    assert not plain.task["hint"].any()
    under = np.arange(3 * size) % size >= size - 2
    np.testing.assert_array_equal(np.asarray(kept.task["hint"]), under)
    for row in range(3 * size):
        assert output(hinted, kept, policy, row).startswith("hint") == under[row]
        assert output(hinted, plain, policy, row).startswith("goal")
    assert metrics["hinted_success_rate"].count == 6.0
    if only_failed:  # This model never succeeds.
        assert not plain.success.any() and plain.keep.all()


def test_hints_are_of_no_use_where_own_episodes_succeed(hinted, speak):
    policy = speak(hinted, context_turns=1, prompt=False)
    shown = jax.jit(make_demonstrations(hinted, policy))(KEY, jnp.arange(4))
    failed = shown.replace(success=jnp.array([False, True, False, False]))
    both = _after_failures(failed, shown, 2)
    assert both.keep.tolist() == [True, True, False, False, True, True, True, True]
    assert both.group.tolist() == [0, 1, 0, 1, 2, 3, 2, 3]


def test_hints_are_refused_where_the_world_gives_none(lake, wanderer):
    with pytest.raises(ValueError, match="`environment` must give hints, got 'frozenlake'; try "):
        make_hint_collector(lake, wanderer, num_groups=2, group_size=2)


def test_where_stretches_begin_and_end():
    length = jnp.array([10, 8, 3])
    begin, end = stretches(jax.random.split(KEY, 3), length, 3, "prefixes", 4)
    assert not begin.any() and end.tolist() == [[4, 8, 10], [4, 8, 0], [3, 0, 0]]
    begin, end = stretches(jax.random.split(KEY, 3), length, 50, "any", 4)
    assert (begin >= 0).all() and (begin <= end).all() and (end <= length[:, None]).all()
    assert (end.max(axis=1) == length).all() and len(np.unique(np.asarray(begin)[0])) > 5


def test_the_deepest_good_that_was_made_is_the_goal():
    world = crafting.make_environment((2,))
    task = world.sample_task(KEY)
    before = world.text.rules.start(KEY, task)
    size = before.pack.shape[0]
    before = before.replace(pack=jnp.arange(size) == 2)
    after = before.replace(pack=jnp.isin(jnp.arange(size), jnp.array([2, 4, 9, 12])))
    made_task, good = made(before, after)
    assert (
        good and made_task["goal"] == 12 - len(crafting.BASES) and made_task["given"].tolist() == before.pack.tolist()
    )
    assert not made(before, before)[1] and not made(after, before)[1]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["any", "prefixes"])
def test_stretches_are_transcripts_that_solve_their_tasks(speak, kind):
    world = crafting.make_environment((1, 2), informative=True)
    policy = speak(world, thought_tokens=4, context_turns=1, prompt=False)
    params = policy.init(KEY)
    collector = make_stretch_collector(
        world, policy, label=made, num_episodes=64, num_stretches=3, kind=kind, level=0, every=3
    )
    episode, metrics = jax.jit(lambda key: collector.collect(collector.init(key, params), params, key)[1:])(KEY)
    success = np.asarray(episode.success)
    assert metrics["labelled_fraction"].total == success.sum() and episode.success.shape == (192,)
    watched = with_interventions(world)
    actions = recorded_words(policy, episode)[0][..., :2]
    start = jax.vmap(watched.reset)(jax.random.split(KEY, 192), episode.task)
    seen = jax.jit(replay, static_argnums=0)(watched, start, jnp.where(episode.valid[..., None], actions, -1))
    assert np.asarray(seen.success)[success].all()


@pytest.mark.slow
def test_an_explorer_comes_upon_tasks_that_its_own_actions_solve(speak):
    world = crafting.make_environment((1, 2), informative=True)
    policy = speak(world, context_turns=1, prompt=False)
    params = policy.init(KEY)
    collector = make_curious_collector(world, policy, label=made, num_groups=16, group_size=2, level=0)
    state = collector.init(KEY, params)
    after, episode, metrics = jax.jit(collector.collect)(state, params, KEY)
    keep = np.asarray(episode.keep).reshape(16, 2)
    assert (keep[:, 0] == keep[:, 1]).all() and metrics["made_fraction"].total == keep[:, 0].sum() > 0
    given = np.asarray(episode.task["given"])[np.asarray(episode.keep)]
    assert given.shape == (2 * keep[:, 0].sum(), 14)
    assert (np.asarray(after["visits"]).sum(axis=1) <= 10).all() and (np.asarray(after["visits"]).sum() > 100)


def test_a_label_of_another_world_is_refused():
    world = lists.make_environment()
    with pytest.raises(ValueError, match="`label` must fit the world, got .*State: .*made reads the states of"):
        jax.eval_shape(lambda state: made(state, state), world.reset(KEY, world.sample_task(KEY))[0].inner)
