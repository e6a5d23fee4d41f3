"""Functions of users in arms of a batch: their faults are named before the first run."""

import dataclasses
import sys

import pytest

from jaxagents.papers.batch import check_batch
from jaxagents.papers.library import load_batch
from tests import CONFIGS
from tests.papers.requests import request

FUNCTIONS = """
import jax.numpy as jnp

def half(view, *, axis_name=None):
    return view.episode.reward / 2

def raising(view, *, axis_name=None):
    raise KeyError("no such reward")

def nan(view, *, axis_name=None):
    return view.episode.reward / 0.0 * 0.0

def of_episodes(view, *, axis_name=None):
    return view.episode.reward.sum(-1)

def make_judge(environment, policy, noise):
    from jaxagents.language.verifiers import Verifier
    return Verifier(lambda params, key, index, *further: jnp.full(index.shape, noise))

def make_judge_of_two(environment, policy, noise):
    from jaxagents.language.verifiers import Verifier
    return Verifier(lambda params, key, index, *further: jnp.full((*index.shape, 2), noise))
"""
REWARD = "+learner.rewards.mine={_target_: functions_of_a_user.%s, _partial_: true}"
JUDGE = "collector.verifier={_target_: functions_of_a_user.%s}"


@pytest.fixture
def failures(tmp_path, monkeypatch):
    """Returns a function that checks arms with functions of a user, and returns why they fail."""
    (tmp_path / "functions_of_a_user.py").write_text(FUNCTIONS)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("functions_of_a_user", None)
    of = load_batch(CONFIGS.parent / "experiments", "self_training", (100,))
    arms = {arm.name: arm for arm in of.arms}

    def check(**changes):
        changed = [arms[name]._replace(overrides=(*arms[name].overrides, one)) for name, one in changes.items()]
        return check_batch(dataclasses.replace(of, arms=tuple(changed)), request(tmp_path, arms=tuple(changes)))

    return check


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        ("raising", "KeyError: 'no such reward'"),
        ("of_episodes", "`rewards.mine` must return an array of (128, 12), got an array of (128,)."),
        pytest.param(
            "nan",
            "`functions_of_a_user.nan` must return finite numbers, got NaN or infinite `train/",
            marks=pytest.mark.slow,
        ),
        pytest.param("half", None, marks=pytest.mark.slow),
    ],
)
def test_rewards_of_users_are_tried_before_the_first_run(failures, function, reason):
    found = failures(grpo=REWARD % function)
    assert found == {} if reason is None else reason in found["grpo"]


@pytest.mark.parametrize(
    ("judge", "reason"),
    [
        pytest.param("make_judge, noise: 1.0", None, marks=pytest.mark.slow),
        pytest.param(
            "make_judge, noise: nan",
            "must return finite numbers, got NaN or infinite `rollout/verified_rate` in a quick run",
            marks=pytest.mark.slow,
        ),
        ("make_judge_of_two", "`verifier` must return an array of (128,), got an array of (128, 2)."),
    ],
)
def test_judges_of_users_are_tried_before_the_first_run(failures, judge, reason):
    found = failures(good_turns=JUDGE % judge)
    assert found == {} if reason is None else reason in found["good_turns"]
