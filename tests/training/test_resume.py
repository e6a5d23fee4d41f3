"""Runs on fixed data, and of adapters per seat, that stopped halfway end in the bits of those that did not."""

import pytest
from omegaconf import OmegaConf

from jaxagents.training.composition import compose
from jaxagents.training.launch import run
from tests import CONFIGS

pytestmark = pytest.mark.usefixtures("shared_programs")

SEATS = ("learner=seats", "learner.adapter.rank=2", "evaluation=dialogue", "optimizer.anneal=false", "stages=[]")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("choices", "total_steps"),
    [(("experiment=iql_pendulum",), 2048), (("world=text_kuhn", "algorithm=grpo", *SEATS), 64)],
    ids=["iql", "seats"],
)
def test_a_resumed_run_ends_in_the_same_bits(choices, total_steps, tmp_path, last_state, bits):
    def train(folder, total_steps):
        quiet = [f"logging.{name}=false" for name in ("progress", "tensorboard", "curves", "transcripts", "report")]
        config = compose(CONFIGS, *choices, "quick=true", "devices.compilation_cache=null", *quiet)
        OmegaConf.update(config, "when_quick.training.total_steps", total_steps)
        run(config, tmp_path / folder)
        return last_state(tmp_path / folder, config)

    whole = train("whole", total_steps)
    train("parts", total_steps // 2)
    resumed = train("parts", total_steps)
    assert (whole.step, bits(whole.state)) == (resumed.step, bits(resumed.state))
