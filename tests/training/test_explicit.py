"""Tests of values of the command line against those of quick runs and of stages."""

import pytest
from omegaconf import OmegaConf

from jaxagents.training.explicit import honour_overrides


def make_config(stages, quick=False):
    return OmegaConf.create(
        {
            "quick": quick,
            "collector": {"_target_": "own", "num_envs": 4},
            "training": {"total_steps": 100, "log_every_steps": 10},
            "when_quick": {"training": {"total_steps": 8}},
            "warm": {"name": "warm", "collector": {"_target_": "files"}, "training": {"total_steps": 50}},
            "stages": stages,
        }
    )


def test_what_is_written_wins_over_what_quick_runs_have():
    config = make_config([], quick=True)
    config.training.total_steps = 64
    honour_overrides(config, ["training.total_steps=64", "training.log_every_steps=10"])
    assert config.when_quick == {"training": {"total_steps": 64}}


def test_what_is_not_written_stays():
    config = make_config([], quick=True)
    honour_overrides(config, ["collector.num_envs=4", "quick=true"])
    assert config.when_quick == {"training": {"total_steps": 8}}


@pytest.mark.parametrize("override", ["collector=rollout", "collector.num_envs=8", "training.total_steps=64"])
def test_what_every_stage_replaces_is_refused(override):
    with pytest.raises(ValueError, match=rf"`{override}` must be used by a stage, got warm with a "):
        honour_overrides(make_config(["${warm}"]), [override])


def test_rounds_are_looked_into():
    with pytest.raises(ValueError, match="got warm with a collector of its own"):
        honour_overrides(make_config([{"rounds": 2, "stages": ["${warm}"]}]), ["collector=rollout"])


@pytest.mark.parametrize(
    "override", ["collector=rollout", "training.log_every_steps=20", "warm.training.total_steps=5"]
)
def test_what_some_stage_uses_is_taken(override):
    stages = ["${warm}", {"name": "main"}] if override.startswith("collector") else ["${warm}"]
    honour_overrides(make_config(stages), [override])
