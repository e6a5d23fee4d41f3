"""Runs on fixed data and of searches that stopped halfway end in the bits of those that did not."""

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from jaxagents.training.composition import compose
from jaxagents.training.launch import run

CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.mark.slow
@pytest.mark.parametrize(
    "choices",
    [("world=pendulum", "algorithm=iql")],
    ids=lambda choices: choices[1],
)
def test_a_resumed_run_ends_in_the_same_bits(choices, tmp_path, last_state, bits):
    def train(folder, total_steps):
        quiet = [f"logging.{name}=false" for name in ("progress", "tensorboard", "curves", "report")]
        config = compose(CONFIGS, *choices, "quick=true", "devices.compilation_cache=null", *quiet)
        OmegaConf.update(config, "when_quick.training.total_steps", total_steps)
        run(config, tmp_path / folder)
        return last_state(tmp_path / folder, config)

    whole = train("whole", 2048)
    train("parts", 1024)
    resumed = train("parts", 2048)
    assert (whole.step, bits(whole.state)) == (resumed.step, bits(resumed.state))
