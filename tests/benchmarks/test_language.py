"""Tests of what the benchmarks of language agents count."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from omegaconf import OmegaConf

from jaxagents.benchmarks.agents import agent_shares
from jaxagents.benchmarks.environments import environment_subject
from jaxagents.benchmarks.language import (
    generation_subject,
    make_model,
    make_sequences,
    supervised_subject,
    training_flops,
)
from jaxagents.benchmarks.suites import run_suite
from jaxagents.benchmarks.timing import Subject, compiled_subject, matmul_subject, measure
from jaxagents.environments.text.bandit import make_environment
from jaxagents.types import Layout
from tests import CONFIGS


@pytest.fixture(scope="module")
def model():
    return make_model(10, features=8, num_layers=1, num_heads=2)


def test_training_flops_by_hand(model):
    params = jax.eval_shape(model.init, jax.random.key(0))
    # Embedding 10 x 8, queries, keys and values 8 x 24, output 8 x 8, MLP 8 x 32 twice.
    matrices = 80 + 192 + 64 + 256 + 256
    flops = training_flops(params, num_layers=1, features=8, sequence_tokens=16)
    assert flops == 6 * matrices + 12 * 8 * 16


def test_a_compiled_subject_calls_the_function_and_says_its_work():
    subject = compiled_subject("double", lambda x: 2.0 * x, jnp.ones(3), work=7.0)
    assert (subject.name, subject.run()) == ("double", 7.0)
    assert subject.compile_seconds > 0.0
    # A call works on the inputs that were given: an error in the function is one of the subject.
    with pytest.raises(ValueError, match="no work"):
        compiled_subject("broken", _broken, jnp.ones(3), work=1.0)


def _broken(x):
    raise ValueError("no work")


@pytest.mark.exhaustive
def test_subjects_count_their_units(model):
    generated = generation_subject("generate", model, batch_size=2, num_tokens=3)
    trained = supervised_subject("train", model, batch_size=2, sequence_tokens=4, num_updates=3)
    world = environment_subject(make_environment((2,), (0.3,)), num_envs=3, num_steps=5, reset_pool=2)
    products = matmul_subject(size=8, repeats=2)
    assert [subject.run() for subject in (generated, trained, world)] == [6, 24, 15]
    assert math.isclose(products.run(), 2 * 2 * 8**3 / 1e9)
    assert world.name == "rendered_steps/bandit"


def test_supervised_sequences_teach_every_token_but_the_first(model):
    layout = Layout(prompt=0, observation=1, thought=0, action=3, num_turns=1, context_turns=1)
    episode = make_sequences(layout, jnp.arange(8, dtype=jnp.int32).reshape(2, 4))
    np.testing.assert_array_equal(episode.tokens[:, 0], [[0, 1, 2, 3], [4, 5, 6, 7]])
    np.testing.assert_array_equal(episode.action_mask[:, 0], [[False, True, True, True]] * 2)
    np.testing.assert_array_equal(episode.position[:, 0], [[0, 1, 2, 3]] * 2)
    assert bool(jnp.all(episode.token_mask)) and bool(jnp.all(episode.valid))


def test_medians_of_rates_and_shares_of_an_update():
    work = iter([1.0, 100.0, 3.0])
    subject = Subject(name="x", run=lambda: next(work), compile_seconds=0.5)
    row = measure([subject], 3)["x"]
    assert row["per_second"] > 0.0 and row["compile_seconds"] == 0.5
    speeds = {"collect": 4.0, "world": 16.0, "learn": 2.0}  # 1/4, 1/16 and 1/2 of a second.
    shares = agent_shares("agent", {f"agent/{part}": {"per_second": speed} for part, speed in speeds.items()})
    assert shares == {
        "agent/share_of_model": pytest.approx(0.1875 / 0.75),
        "agent/share_of_world": pytest.approx(0.0625 / 0.75),
        "agent/share_of_learner": pytest.approx(0.5 / 0.75),
    }


def test_an_unknown_suite_is_refused():
    with pytest.raises(ValueError, match="`suite` must be one of rl, .*, worlds, scale, kernels, got 'rlhf'"):
        run_suite(OmegaConf.create({"suite": "rlhf"}), CONFIGS)


def test_quick_changes_settings_that_there_are():
    config = OmegaConf.to_container(OmegaConf.load(CONFIGS / "benchmark.yaml"))
    quick = config.pop("when_quick")
    for name, values in quick.items():
        assert name in config
        assert not isinstance(values, dict) or set(values) <= set(config[name])
