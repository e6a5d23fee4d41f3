"""Rewards by a Python function that reads text: what it is given, where its numbers go, and what it may do wrong."""

import dataclasses
import functools
import threading
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text import kuhn
from jaxagents.language.collect import make_dialogue_collector, make_dialogue_evaluator
from jaxagents.language.host_rewards import make_rewarded_collector, paid_alike, pay, texts_of
from jaxagents.language.tokenizers import word_level
from jaxagents.ops.group_filters import informative_groups
from jaxagents.types import Episode, Layout

WORDS = ("go", "left", "right", "wall", "start", "hmm")
TOKENIZER = word_level(WORDS)
POLICY = SimpleNamespace(tokenizer=TOKENIZER, lexicon=None)
END, OBSERVATION, ACT = (TOKENIZER.marks[mark] for mark in ("end", "observation", "act"))
GO, LEFT, RIGHT, WALL, START, HMM = (TOKENIZER.encode(word)[0] for word in WORDS)


def make_episode(context_turns):
    """Two episodes: `wall` -> (hmm) left, then `wall wall` -> right; and `start` -> go left. Both begin with `go`."""
    tokens = [
        [[OBSERVATION, WALL, 0, ACT, HMM, LEFT, END], [OBSERVATION, WALL, WALL, ACT, RIGHT, END, 0]],
        [[OBSERVATION, START, 0, ACT, GO, LEFT, END], [0] * 7],
    ]
    sampled = [[[4, 5, 6], [4, 5]], [[4, 5, 6], []]]
    tokens = np.array(tokens, np.int32)
    action_mask = np.zeros(tokens.shape, bool)
    for row, turns in enumerate(sampled):
        for turn, columns in enumerate(turns):
            action_mask[row, turn, columns] = True
    nothing = {field.name: None for field in dataclasses.fields(Episode) if field.name != "extras"}
    given = {
        "prompt_tokens": np.array([[GO, 0], [GO, 0]], np.int32),
        "prompt_mask": np.array([[True, False]] * 2),
        "tokens": tokens,
        "token_mask": tokens != 0,
        "action_mask": action_mask,
        "thought_mask": tokens == HMM,
        "reward": np.array([[0.25, 1.0], [0.5, 0.0]], np.float32),
        "valid": np.array([[True, True], [True, False]]),
        "success": np.array([True, False]),
        "task": {"goal": np.array([[1, 2], [3, 4]]), "level": np.array([0, 1])},
        "layout": Layout(prompt=2, observation=4, thought=0, action=3, num_turns=2, context_turns=context_turns),
    }
    return Episode(**nothing | given)


def test_every_turn_is_a_completion_with_all_that_came_before_it():
    texts = texts_of(POLICY, make_episode(context_turns=2))
    assert texts.prompts == ["go\nwall", "go\nwall\nhmm\nleft\nwall wall", "go\nstart"]
    assert texts.completions == ["hmm\nleft", "right", "go left"]
    assert texts.columns == {
        "goal": [[1, 2], [1, 2], [3, 4]],
        "level": [0, 0, 1],
        "success": [True, True, False],
        "world_reward": [0.25, 1.0, 0.5],
        "completion_ids": [[HMM, LEFT, END], [RIGHT, END], [GO, LEFT, END]],
        "episode": [0, 0, 1],
        "turn": [0, 1, 0],
    }


def test_a_policy_that_forgets_is_judged_by_what_it_saw():
    assert texts_of(POLICY, make_episode(context_turns=1)).prompts == ["go\nwall", "go\nwall wall", "go\nstart"]


def test_rewards_go_to_their_turns():
    def count_words(prompts, completions, **columns):
        return [len(text.split()) + bonus for text, bonus in zip(completions, columns["world_reward"])]

    paid = pay(count_words, POLICY, make_episode(context_turns=2))
    assert paid.dtype == np.float32 and paid.tolist() == [[2.25, 2.0], [2.5, 0.0]]


PLACE = r"<lambda> \(.*test_host_rewards\.py, line \d+\)\."


def fails(prompts, completions, **columns):
    return [1 / len(columns["nothing"]) for _ in completions]


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        (
            lambda **columns: [1.0, 2.0],
            r"must return a list of 3 rewards, one per completion, got 2 of them from " + PLACE,
        ),
        (lambda **columns: 1.0, r"must return a list of 3 rewards, one per completion, got 1\.0 from "),
        (
            lambda **columns: [1.0, float("nan"), 0.0],
            r"must return finite numbers, got nan for completion 1 from " + PLACE,
        ),
        (lambda **columns: [0.0, 0.0, None], r"must return finite numbers, got None for completion 2 from "),
        (lambda **columns: ["1", 0.0, 0.0], r"must return finite numbers, got '1' for completion 0 from "),
        (fails, r"must return rewards, got KeyError: 'nothing' \(.*test_host_rewards\.py, line \d+: return \[1 / len"),
    ],
)
def test_what_a_function_does_wrong_is_said_in_a_line(reward, message):
    with pytest.raises(ValueError, match=r"`collector\.reward` " + message) as error:
        pay(reward, POLICY, make_episode(context_turns=2))
    assert "\n" not in str(error.value)


def test_a_function_that_does_not_return_ends_the_run_with_its_line():
    done = threading.Event()

    def hangs(prompts, completions, **columns):
        while not done.wait(0.01):
            pass

    with pytest.raises(ValueError, match=r"within 0\.2 seconds, got nothing yet from hangs .*, line \d+; try a longer"):
        pay(hangs, POLICY, make_episode(context_turns=2), seconds=0.2)
    done.set()
    assert pay(lambda **columns: [1.0, 2.0, 3.0], POLICY, make_episode(context_turns=2), seconds=9).sum() == 6.0


def count_right(prompts, completions, *, bonus=0.0, **columns):
    return [text.split().count("right") + bonus for text in completions]


@pytest.fixture(scope="module")
def collected(lake, wanderer):
    """Returns `collect(key)` of four episodes that are paid for each `right`, and its collector."""
    collector = make_rewarded_collector(lake, wanderer, reward=count_right, num_groups=2, group_size=2)
    params = jnp.zeros(4)

    def collect(state, key):
        return collector.collect(state, params, key)[1:]

    return collector, collect, collector.init(jax.random.key(0), params)


@pytest.mark.slow
def test_a_compiled_run_is_paid_by_the_host(collected, wanderer):
    collector, collect, state = collected
    assert collector.steps_per_collect == 4
    episode, metrics = jax.jit(collect)(state, jax.random.key(1))
    right = wanderer.tokenizer.encode("right")[0]
    expected = np.sum((np.asarray(episode.tokens) == right) & np.asarray(episode.action_mask), axis=-1)
    assert expected.any() and not expected.all()
    np.testing.assert_array_equal(episode.reward, expected)
    assert float(metrics["episode_return"].value) == expected.sum() / 4
    assert 0.0 <= float(metrics["world_return"].value) <= 1.0


@pytest.mark.slow
def test_evaluations_are_paid_by_the_function_of_the_collector(lake, wanderer):
    """A point for every turn: the return of an episode is its length, and that of the world stands beside it."""
    sizes = {"num_episodes": 4, "greedy": False}
    collector = functools.partial(
        make_rewarded_collector, reward=lambda completions, **columns: [1.0] * len(completions)
    )
    paid, plain = (
        jax.jit(evaluator(lake, wanderer, **sizes))(jnp.zeros(4), jax.random.key(0))
        for evaluator in (paid_alike(make_dialogue_evaluator, collector), make_dialogue_evaluator)
    )
    np.testing.assert_array_equal(paid["episode_return"], paid["episode_length"])
    np.testing.assert_array_equal(paid["world_return"], plain["episode_return"])
    assert paid_alike(make_dialogue_evaluator, make_dialogue_collector) is make_dialogue_evaluator


@pytest.mark.exhaustive
def test_devices_and_seeds_are_paid_as_one(collected):
    _, collect, state = collected
    one = jax.jit(collect)
    whole, key = one(state, jax.random.key(1))[0].reward, jax.random.key(1)
    halves = jax.tree.map(lambda leaf: leaf.reshape(2, -1, *leaf.shape[1:]), state)
    mapped = jax.pmap(lambda state: collect(state, key)[0].reward)(halves)
    np.testing.assert_array_equal(np.concatenate(mapped), whole)
    mesh = jax.make_mesh((2,), ("devices",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = jax.sharding.PartitionSpec("devices")
    spread = jax.shard_map(
        lambda state: collect(state, key)[0].reward, mesh=mesh, in_specs=rows, out_specs=rows, check_vma=False
    )
    np.testing.assert_array_equal(jax.jit(spread)(state), whole)
    keys = jax.random.split(jax.random.key(2), 2)
    seeds = jax.jit(jax.vmap(lambda key: collect(state, key)[0].reward))(keys)
    for paid, key in zip(seeds, keys, strict=True):
        np.testing.assert_array_equal(paid, one(state, key)[0].reward)


def brief(prompts, completions):
    return [0.0 for _ in completions]


def test_what_cannot_be_paid_is_refused(lake, wanderer):
    sizes = {"num_groups": 1, "group_size": 1}
    with pytest.raises(ValueError, match=r"must take prompts, .* got brief\(prompts, completions\); try def brief\("):
        make_rewarded_collector(lake, wanderer, reward=brief, **sizes)
    with pytest.raises(ValueError, match=r"`collector.dynamic_sampling` must be null .* learner\.group_filter"):
        make_rewarded_collector(lake, wanderer, reward=count_right, dynamic_sampling=informative_groups, **sizes)
    with pytest.raises(ValueError, match=r"`environment` must have one seat .* got kuhn_poker with 2"):
        make_rewarded_collector(kuhn.make_environment(), wanderer, reward=count_right, **sizes)
    make_rewarded_collector(lake, wanderer, reward=functools.partial(count_right, bonus=0.5), **sizes)
