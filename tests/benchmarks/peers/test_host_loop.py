"""Tests that the two loops of `suite=lm_vs_host` play the same game."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.benchmarks.compiled_loop import make_compiled_loop, make_lakes, sample_tasks
from jaxagents.benchmarks.peers.host_loop import Game, act, make_host_loop, make_lake, observe
from jaxagents.environments.text.frozenlake import ACTIONS
from jaxagents.language.tokenizers import word_level

GAME = Game(
    num_groups=2, group_size=2, num_turns=2, action_tokens=3, instruction=("move", "on", ":"), end_probability=0.0
)


@pytest.fixture(scope="module")
def lakes():
    return make_lakes(GAME)


@pytest.mark.exhaustive
def test_the_python_lake_is_the_compiled_one(lakes):
    reset, step = jax.jit(lakes.reset), jax.jit(lakes.step)
    words, key = lakes.text.words, jax.random.key(0)
    says = np.random.default_rng(0)
    outcomes = set()
    for task in sample_tasks(lakes, 12):
        state, timestep = reset(key, jax.tree.map(jnp.asarray, task))
        lake = make_lake(task)
        for _ in range(lakes.max_steps):
            seen = [words[i] for i in timestep.observation.tolist() if i >= 0]
            assert seen == [*GAME.instruction, *observe(lake)]
            action = says.choice([*ACTIONS, "P"])
            reward, over = act(lake, [action])
            state, timestep = step(key, state, jnp.asarray([words.index(action)], jnp.int32))
            assert (reward, over) == (float(timestep.reward), bool(timestep.terminated))
            outcomes.add((reward, over))
            if over:
                break
    assert outcomes == {(0.0, False), (0.0, True), (1.0, True)}


@pytest.mark.parametrize("words", [[], ["P"], ["left", "left"], ["up", "P"]])
def test_other_words_than_one_move_change_nothing(lakes, words):
    lake = make_lake(sample_tasks(lakes, 1)[0])
    before = lake.position
    assert act(lake, words) == (0.0, False)
    assert lake.position == before
    assert observe(lake)[-2:] == ["nothing happens", "."]


@pytest.mark.exhaustive
def test_episodes_end_by_chance():
    lakes = make_lakes(GAME._replace(end_probability=1.0))
    state, timestep = lakes.reset(jax.random.key(0), lakes.sample_task(jax.random.key(0)))
    assert not bool(timestep.terminated)
    assert bool(lakes.step(jax.random.key(1), state, jnp.full((1,), -1, jnp.int32))[1].terminated)


@pytest.mark.slow
def test_both_loops_play_alike(lakes):
    words, tasks = lakes.text.words, sample_tasks(lakes, 2)
    size = {"features": 8, "num_layers": 1, "num_heads": 2}
    host_loop = make_host_loop(GAME, words=words, marks=word_level(words).marks, tasks=tasks, **size)
    compiled_loop = make_compiled_loop(GAME, lakes, **size)
    facts = {"host": host_loop.update(), "compiled": compiled_loop.update()}
    assert set(facts["host"]) == set(facts["compiled"])
    for fact in facts.values():
        assert 0.0 < fact["turns_per_episode"] <= GAME.num_turns
        # Instruction, sixteen cells, three row ends and two marks; "nothing happens ." after an invalid action.
        observed = (fact["tokens_per_episode"] - fact["sampled_tokens_per_episode"]) / fact["turns_per_episode"]
        assert 24.0 <= observed <= 25.0
        assert 1.0 <= fact["sampled_tokens_per_episode"] / fact["turns_per_episode"] <= GAME.action_tokens
    # One is gated and has a third matrix of two thirds of the size.
    assert host_loop.num_params == pytest.approx(compiled_loop.num_params, rel=0.05)


def test_a_missing_extra_is_named(lakes, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ModuleNotFoundError, match="jaxagents\\[hf\\]"):
        make_host_loop(GAME, words=lakes.text.words, marks={}, tasks=[], features=8, num_layers=1)
