"""Sections of a config: what they refuse, and when two configs are the same run."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxagents.ops.checks import require_positive
from jaxagents.training.config import (
    DevicesConfig,
    EvaluationConfig,
    LoggingConfig,
    TrainingConfig,
    changed_keys,
    config_hash,
    make_section,
    require_run,
    run_hash,
)

TRAINING = {"total_steps": 100, "log_every_steps": 10, "checkpoint_every_steps": 50}
CONFIG = {"seed": 1, "training": dict(TRAINING), "learner": {"discount": 0.9, "sizes": [1, 2]}, "run_dir": "a"}


def test_sections_take_their_values_and_defaults():
    training = make_section(TrainingConfig, "training", TRAINING | {"target_return": 475.0})
    given = {name: value for name, value in dataclasses.asdict(training).items() if value is not None}
    assert given == TRAINING | {"keep_checkpoints": 3, "target_return": 475.0} and training.experience == {}
    budgets = make_section(TrainingConfig, "training", TRAINING | {"total_tokens": 1e3, "total_turns": 5})
    assert budgets.experience == {"turns": 5, "tokens": 1000}
    assert make_section(EvaluationConfig, "evaluation", {"every_steps": 5, "num_episodes": 2}).greedy
    assert make_section(DevicesConfig, "devices", {}) == DevicesConfig()
    assert not make_section(LoggingConfig, "logging", {"report": False}).report
    with pytest.raises(dataclasses.FrozenInstanceError):
        training.total_steps = 1


def test_whole_numbers_may_be_written_as_floats():
    """`training.total_steps=1e6` on a command line is a float."""
    training = make_section(TrainingConfig, "training", TRAINING | {"total_steps": 1e6, "target_return": 3.0})
    assert training.total_steps == 1_000_000 and isinstance(training.total_steps, int)
    assert isinstance(training.target_return, float)
    level = make_section(EvaluationConfig, "evaluation", {"every_steps": 5, "num_episodes": 2, "level": 3.0}).level
    assert isinstance(level, int)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([0, -1, True, "10", None, float("nan"), float("-inf")], "must be a positive number, got"),
        ([0.5, float("inf")], "must be a whole number, got"),
    ],
)
def test_counts_are_positive_whole_numbers(values, message):
    for value in values:
        with pytest.raises(ValueError, match=f"`seeds` {message}"):
            require_positive("seeds", value)


@pytest.mark.parametrize("value", [True, "10", None, float("nan"), float("-inf"), 0.5, [1], {"a": 1}])
def test_counts_of_sections_are_whole_numbers(value):
    with pytest.raises(ValueError, match="`training.keep_checkpoints` must be a whole number, got"):
        make_section(TrainingConfig, "training", TRAINING | {"keep_checkpoints": value})
    with pytest.raises(ValueError, match="`evaluation.num_episodes` must be a whole number, got"):
        make_section(EvaluationConfig, "evaluation", {"every_steps": 5, "num_episodes": value})


RUN = {"name": "a", "seed": 0, "seeds": 1, "run_dir": "runs/a", "quick": False, "stages": []}


def test_what_stands_at_the_top_of_a_config_is_checked():
    assert require_run({**RUN, "learner": {}}).seeds == 1
    with pytest.raises(ValueError, match="`run_dir` must be a path, got nothing"):
        require_run(RUN | {"run_dir": ""})


@pytest.mark.parametrize("name", ["total_steps", "log_every_steps", "checkpoint_every_steps"])
def test_every_period_is_checked(name):
    require_positive(name, 1)
    with pytest.raises(ValueError, match=f"`training.{name}` must be a positive number, got 0"):
        make_section(TrainingConfig, "training", TRAINING | {name: 0})


def test_unknown_keys_are_refused_with_the_nearest():
    with pytest.raises(ValueError, match="`training` has no key 'total_step'; try total_steps"):
        make_section(TrainingConfig, "training", TRAINING | {"total_step": 1})
    with pytest.raises(ValueError, match="`logging` has no key 'zzz'; try curves or progress or report or tensorboard"):
        make_section(LoggingConfig, "logging", {"zzz": 1})


def test_missing_keys_are_named():
    with pytest.raises(ValueError, match="`evaluation` must have the keys every_steps, num_episodes, which"):
        make_section(EvaluationConfig, "evaluation", {"seed": 3})


def test_hash_does_not_depend_on_order_place_or_devices():
    reordered = dict(reversed(CONFIG.items())) | {"learner": {"sizes": [1, 2], "discount": 0.9}}
    moved = CONFIG | {"run_dir": "b", "devices": {"mode": "pmap"}, "logging": {"report": False}, "hydra": 1}
    assert config_hash(CONFIG) == config_hash(reordered) == config_hash(moved)
    assert len(config_hash(CONFIG)) == 16 and int(config_hash(CONFIG), 16) >= 0
    assert changed_keys(CONFIG, moved) == []


@pytest.mark.parametrize(
    ("change", "keys"),
    [
        ({"seed": 2}, ["seed"]),
        ({"learner": {"discount": 0.99, "sizes": [2, 1]}}, ["learner.discount", "learner.sizes"]),
        ({"learner": 3}, ["learner"]),
        ({"extra": None}, ["extra"]),  # There now, though nothing.
        ({"training": TRAINING | {"devices": 1}}, ["training.devices"]),  # Only whole sections do not count.
        ({"seed": 1.0}, ["seed"]),  # Equal to Python, another number to a compiler.
    ],
)
def test_changes_are_named_and_change_the_hash(change, keys):
    assert changed_keys(CONFIG, CONFIG | change) == changed_keys(CONFIG | change, CONFIG) == keys
    assert config_hash(CONFIG) != config_hash(CONFIG | change)
    assert run_hash(CONFIG) != run_hash(CONFIG | change)


def test_lengths_and_periods_may_change_in_every_stage():
    longer = TRAINING | {"total_steps": 7, "checkpoint_every_steps": 3}
    one = CONFIG | {"stages": [{"name": "a", "training": TRAINING, "evaluation": {"every_steps": 1, "greedy": True}}]}
    other = CONFIG | {"stages": [{"name": "a", "training": longer, "evaluation": {"every_steps": 2, "greedy": True}}]}
    assert run_hash(one) == run_hash(other) and run_hash(CONFIG) == run_hash(CONFIG | {"training": longer})
    assert changed_keys(one, other) == [] and config_hash(one) != config_hash(other)
    judged = CONFIG | {"stages": [{"name": "a", "training": longer, "evaluation": {"every_steps": 2, "greedy": False}}]}
    assert run_hash(one) != run_hash(judged) and changed_keys(one, judged) == ["stages"]


VALUES = st.one_of(st.none(), st.booleans(), st.integers(-1, 1), st.sampled_from([0.0, 1.0, "a"]))
SECTIONS = st.dictionaries(st.sampled_from(["a", "b", "logging"]), VALUES, max_size=2)
CONFIGS = st.dictionaries(st.sampled_from(["a", "b", "logging"]), st.one_of(VALUES, SECTIONS), max_size=3)


@given(CONFIGS, CONFIGS)
@settings(max_examples=200, deadline=None)
def test_a_changed_hash_has_changed_keys_and_the_other_way_round(before, after):
    assert (run_hash(before) != run_hash(after)) == bool(changed_keys(before, after))
