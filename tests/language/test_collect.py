"""What evaluations say about attempts at the same problem, in one episode or in several."""

import dataclasses
from collections import Counter
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text import tools
from jaxagents.environments.text.arithmetic import make_environment
from jaxagents.language.collect import completion_metrics, first_and_last, make_dialogue_evaluator
from jaxagents.language.dialogue import make_dialogue
from jaxagents.types import Episode


def test_first_and_last_turns_by_hand():
    # Wrong to right, right to wrong, right twice, and an episode of one turn.
    nothing = {field.name: None for field in dataclasses.fields(Episode) if field.name != "extras"}
    reward = jnp.array([[0.0, 1.0, 0.0], [1.0, 0.5, 0.0], [1.0, 0.0, 1.0], [0.25, 0.0, 0.0]])
    valid = jnp.array([[True, True, False], [True, True, False], [True, True, True], [True, False, False]])
    results = jax.jit(first_and_last)(Episode(**nothing | {"reward": reward, "valid": valid}))
    assert {name: values.tolist() for name, values in results.items()} == {
        "first_turn_reward": [0.0, 1.0, 1.0, 0.25],
        "last_turn_reward": [1.0, 0.5, 1.0, 0.25],
        "turn_gain": [1.0, -0.5, 0.0, 0.0],
        "improved": [1.0, 0.0, 0.0, 0.0],
        "worsened": [0.0, 1.0, 0.0, 0.0],
    }


def test_completions_by_hand_on_one_device_and_on_two():
    """Turns of 1, 3 and 2 tokens, the second without its end 9; the last one of each row has not been played."""
    nothing = {field.name: None for field in dataclasses.fields(Episode) if field.name != "extras"}
    tokens = jnp.array([[[9, 0, 0], [4, 4, 4], [4, 9, 0]], [[4, 9, 0], [9, 0, 0], [4, 4, 4]]])
    length = jnp.array([[1, 3, 0], [2, 0, 3]])
    fields = {"tokens": tokens, "action_mask": jnp.arange(3)[None, None] < length[..., None], "valid": length > 0}
    fields["valid"] = fields["valid"].at[1, 2].set(False)
    policy = SimpleNamespace(tokenizer=SimpleNamespace(is_end=lambda tokens: tokens == 9))
    whole = completion_metrics(policy, Episode(**nothing | fields))
    assert float(whole["cut_turn_rate"].value) == pytest.approx(1 / 3)
    assert (float(whole["shortest_turn"]), float(whole["longest_turn"])) == (1.0, 3.0)
    measure = lambda fields: completion_metrics(policy, Episode(**nothing | fields), axis_name="device")  # noqa: E731
    parts = jax.vmap(measure, axis_name="device")(jax.tree.map(lambda leaf: leaf[:, None], fields))
    assert parts["shortest_turn"].tolist() == [1.0, 1.0] and parts["longest_turn"].tolist() == [3.0, 3.0]


@pytest.mark.exhaustive
def test_several_samples_of_every_task_are_judged_alone_and_together(speak):
    world = make_environment(num_digits=(1,), num_terms=(2,), operations=("+",))
    policy = speak(world, context_turns=1, prompt=False)
    params = jax.tree.map(lambda leaf: leaf * 3.0, policy.init(jax.random.key(7)))
    make = partial(make_dialogue_evaluator, world, policy, num_episodes=6, greedy=False, held_out=False)
    results = jax.jit(make(num_samples=8, pass_at=[1, 4, 8]))(params, jax.random.key(0))
    assert all(value.shape == (6,) for value in results.values())
    np.testing.assert_allclose(results["pass_at_1"], results["success"], atol=1e-6)
    np.testing.assert_array_equal(results["pass_at_8"], results["success"] > 0)
    episode = make_dialogue(world, policy, group_size=8)(params, jax.random.key(0), jnp.arange(6))
    np.testing.assert_allclose(results["success"], np.asarray(episode.success).reshape(6, 8).mean(axis=1))
    # The answer of most samples, word for word.
    output = [
        policy.tokenizer.decode(row)
        for row in np.where(episode.action_mask, episode.tokens, 0).reshape(48, -1).tolist()
    ]
    for task in range(6):
        rows = [row for row in range(8 * task, 8 * task + 8) if episode.action_valid[row, 0]]
        counts = Counter(output[row] for row in rows)
        most = max(counts.values(), default=0)
        wins = [bool(episode.success[row]) for row in rows if counts[output[row]] == most]
        np.testing.assert_allclose(results["majority_success"][task], np.mean(wins) if wins else 0.0, rtol=1e-6)
    with pytest.raises(ValueError, match="`greedy` must be false for 2 different samples of a task"):
        make(num_samples=2, greedy=True)
    with pytest.raises(ValueError, match=r"`pass_at` must be at most `num_samples`, got \[1, 9\] and 8"):
        make(num_samples=8, pass_at=[1, 9])


@pytest.mark.slow
def test_parts_of_what_the_world_reports_are_those_at_the_end(speak):
    world = tools.make_environment((1,), num_apps=1, max_steps=2)
    policy = speak(world)
    params = policy.init(jax.random.key(0))
    make = partial(make_dialogue_evaluator, world, policy, num_episodes=4, held_out=False)
    plain, more = (jax.jit(make(parts=names))(params, jax.random.key(1)) for names in ((), ("format", "state")))
    assert set(more) == {*plain, "format", "state"}
    np.testing.assert_array_equal(more["state"], more["success"])
    with pytest.raises(ValueError, match="`parts` must be what 'tools' reports, got 'score'"):
        make(parts=("score",))
