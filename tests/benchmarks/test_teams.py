"""What the benchmark of teams counts and compares."""

import pytest
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from omegaconf import OmegaConf

from jaxagents.benchmarks.peers.ppo import jaxmarl_subject
from jaxagents.benchmarks.suites import run_suite
from jaxagents.benchmarks.teams import compare_returns
from jaxagents.benchmarks.training import train_and_evaluate
from jaxagents.training.composition import compose
from tests import CONFIGS

SPREAD = OmegaConf.create(
    {
        "environment": {"name": "spread"},
        "collector": {"num_envs": 4, "num_steps": 8},
        "training": {"total_steps": 100},
    }
)
# A baseline whose return of update i with seed s is 10 s + i.
BASELINE = """
import jax.numpy as jnp
import wandb

def make_train(config):
    assert (config["ENV_NAME"], config["NUM_ENVS"], config["NUM_STEPS"]) == ("spread", 4, 8)
    wandb.init()

    def train(key):
        returns = 10.0 * key[1] + jnp.arange(config["TOTAL_TIMESTEPS"] // 32)
        return {"metrics": {"returned_episode_returns": returns}}

    return train
"""


def test_the_baseline_runs_unchanged_and_counts_whole_updates(tmp_path):
    (tmp_path / "ippo_ff_mpe.py").write_text(BASELINE)
    subject = jaxmarl_subject(tmp_path, SPREAD, num_final_updates=2)
    assert [subject.run(), subject.run()] == [96, 96]
    assert subject.facts == [{"final_return": 1.5}, {"final_return": 11.5}]


def test_a_folder_without_the_baseline_is_refused(tmp_path):
    with pytest.raises(ValueError, match="`reference` must be the folder of JaxMARL's ippo_ff_mpe.py, got .*; try its"):
        jaxmarl_subject(tmp_path, SPREAD, num_final_updates=2)


def test_returns_are_compared_by_their_standard_errors():
    compared = compare_returns([1.0, 3.0], [2.0, 2.0, 5.0])
    # Variances 2 and 3 of two and three runs: the difference has a variance of 1 + 1.
    assert compared == {
        "final_return": 2.0,
        "final_return_of_jaxmarl": 3.0,
        "difference": -1.0,
        "two_standard_errors": pytest.approx(2.0 * 2.0**0.5),
    }
    assert compare_returns([1.0], [4.0])["two_standard_errors"] == 0.0


@pytest.mark.exhaustive
def test_an_experiment_is_trained_and_evaluated():
    config = compose(CONFIGS, "experiment=vdn_two_step_game", "quick=true", "devices.compilation_cache=null")
    facts = train_and_evaluate(config)
    assert facts["episode_return"] in (0.0, 1.0, 7.0, 8.0) and facts["episode_length"] == 2.0
    assert facts["per_second"] == pytest.approx(2048 / facts["seconds"])


@pytest.mark.exhaustive
def test_the_suite_runs():
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        config = hydra_compose("benchmark", ["suite=marl", "quick=true"])
    rows, values = run_suite(config, CONFIGS)
    assert set(rows) == {"ippo_spread", "qmix_two_step_game"}
    assert values["ippo_spread/steps_per_second"] > 0.0 and values["ippo_spread/final_return"] < 0.0
