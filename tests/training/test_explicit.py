"""Tests of values of the command line against those of quick runs and of stages."""

import pytest
from omegaconf import OmegaConf

from jaxagents.training.composition import compose
from jaxagents.training.explicit import honour_overrides, leave_out_unknown, require_fitting_world
from jaxagents.training.listing import fitting_worlds
from tests import CONFIGS


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


def make_referring_config(stages):
    return OmegaConf.create(
        {
            "quick": False,
            "when_quick": {},
            "optimizer": {"_target_": "optax.adam", "learning_rate": 1e-3},
            "loss": {"_target_": "plain"},
            "model": {"_target_": "tiny", "size": 4},
            "policy": {"_target_": "speaks", "model": "${model}"},
            "learner": {"_target_": "gradient", "policy": "${policy}", "optimizer": "${optimizer}", "loss": "${loss}"},
            "warm": {
                "name": "warm",
                "learner": {
                    "_target_": "imitate",
                    "policy": "${policy}",
                    "optimizer": {"_target_": "optax.adam", "learning_rate": 1e-2},
                },
            },
            "stages": stages,
        }
    )


@pytest.mark.parametrize("override", ["optimizer.learning_rate=1", "loss=plain"])
def test_options_that_no_stage_refers_to_are_refused(override):
    with pytest.raises(ValueError, match=rf"`{override}` must be used by a stage, got warm, which does not refer to"):
        honour_overrides(make_referring_config(["${warm}"]), [override])


def test_the_name_that_works_is_offered():
    with pytest.raises(ValueError, match=r"; try warm\.learner\.optimizer\.learning_rate=1\."):
        honour_overrides(make_referring_config(["${warm}"]), ["optimizer.learning_rate=1"])


@pytest.mark.parametrize("stages", [[], ["${warm}", {"name": "main"}]])
@pytest.mark.parametrize("override", ["optimizer.learning_rate=1", "loss=plain", "model.size=8"])
def test_options_that_are_referred_to_are_taken_also_through_others(stages, override):
    honour_overrides(make_referring_config(stages), [override])


def test_a_policy_that_says_which_values_there_are_is_used():
    chosen = ["world=tmaze", "algorithm=dqn", "policy=mlp"]
    honour_overrides(compose(CONFIGS, *chosen), chosen)
    chosen = ["world=tmaze", "algorithm=dqn", "value=q_mlp", "policy=gru"]
    with pytest.raises(ValueError, match="`policy=gru` must be used by a stage"):
        honour_overrides(compose(CONFIGS, *chosen), chosen)


def test_options_of_a_learner_that_has_no_use_for_them_are_refused():
    config = make_referring_config([])
    config.value = {"_target_": "q"}
    with pytest.raises(
        ValueError, match="`value=q` must be used by a stage, got a learner that does not refer to value"
    ):
        honour_overrides(config, ["value=q"])


@pytest.mark.parametrize("stages", [3, [1, 2], None])
def test_stages_are_a_list_of_mappings(stages):
    with pytest.raises(ValueError, match="`stages` must be a list of {name: ..., and what is changed}, got"):
        honour_overrides(make_config(stages), [])


def test_settings_of_an_option_that_the_command_line_replaces_are_left_out():
    files = {
        "_target_": "jaxagents.data.transcripts.make_transcript_collector",
        "paths": ["a"],
        "noise": 0.6,
        "rows": 1,
    }
    config = make_config(["${warm}"])
    config.warm.collector = files
    config.when_quick = {"warm": {"collector": {"num_episodes": 4, "num_rows": 2}}}
    arguments = ["collector@warm.collector=transcripts", "warm.collector.rows=1", "training.total_steps=8"]
    leave_out_unknown(config, arguments)
    assert set(config.warm.collector) == {"_target_", "paths", "rows"}  # Rows are the user's own mistake.
    assert config.when_quick == {"warm": {"collector": {"num_rows": 2}}}
    other = make_config(["${warm}"])
    leave_out_unknown(other, arguments[2:])
    assert other == make_config(["${warm}"])


def test_settings_of_quick_runs_for_another_option_are_left_out():
    config = make_config([], quick=True)
    config.collector = {"_target_": "jaxagents.data.transcripts.make_transcript_collector", "paths": "???", "noise": 1}
    config.when_quick = {"collector": {"num_episodes": 4, "num_rows": 2}, "training": {"total_steps": 8}}
    leave_out_unknown(config, ["collector=transcripts", "training.total_steps=8"])
    assert config.when_quick == {"collector": {"num_rows": 2}, "training": {"total_steps": 8}}
    assert config.collector.noise == 1  # Of the world, and refused where it does not fit.


FITS = fitting_worlds(CONFIGS)


@pytest.mark.parametrize(
    ("algorithm", "world", "kind"),
    [
        *((name, "cartpole", "one with levels") for name in ("accel", "dicode", "envgen", "plr", "sfl", "xland")),
        *((name, "frozenlake", "of arrays") for name in ("a2c", "c51")),
        *((name, "cartpole", "in words") for name in ("dpo", "grpo")),
    ],
)
def test_worlds_that_an_algorithm_cannot_take_are_refused(algorithm, world, kind, tmp_path):
    require_fitting_world(compose(CONFIGS, f"world={FITS[algorithm][0]}", f"algorithm={algorithm}"), CONFIGS)
    config = compose(CONFIGS, f"world={world}", f"algorithm={algorithm}")
    with pytest.raises(ValueError, match=f"must be {kind} for algorithm={algorithm}, got {world}; {algorithm} fits "):
        require_fitting_world(config, CONFIGS)
    require_fitting_world(config, tmp_path)  # A world of the user's own, of which nobody else knows.


def test_other_worlds_may_be_tried():
    assert "asterix" not in FITS["c51"] and "household" not in FITS["gspo"]
    require_fitting_world(compose(CONFIGS, "world=asterix", "algorithm=c51"), CONFIGS)
    require_fitting_world(compose(CONFIGS, "world=household", "algorithm=gspo"), CONFIGS)
