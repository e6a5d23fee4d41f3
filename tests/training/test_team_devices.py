"""One seed gives the same run on one device and on two, mapped or sharded: of teams, with memory, with noise."""

from pathlib import Path

import numpy as np
import pytest

from jaxagents.training.build import build, resolve
from jaxagents.training.composition import compose

CONFIGS = Path(__file__).parents[2] / "configs"
QUICK = ("quick=true", "devices.compilation_cache=null", "collector.num_envs=8")
SHARDS = "learner.buffer.num_shards=2"
pytestmark = pytest.mark.slow


# Few updates: rounding that flips an action in a battle makes another battle of it.
@pytest.mark.parametrize("mode", ["pmap", "sharded"])
@pytest.mark.parametrize(
    ("choices", "num_updates", "overrides"),
    [
        (("experiment=ippo_spread",), 2, ()),
        (("experiment=mappo_smax_3m",), 2, ()),
        (("world=two_step_game", "algorithm=qmix"), 128, (SHARDS,)),
        (("experiment=mansa_two_step_game",), 40, (SHARDS, "learner.buffer.min_size=512")),
        (("experiment=r2d2_tmaze",), 12, (SHARDS, "learner.buffer.min_size=512")),
        (("world=cartpole", "algorithm=rainbow"), 16, (SHARDS,)),
    ],
)
def test_the_run_does_not_depend_on_devices(choices, num_updates, overrides, mode):
    told = []
    for choice in (["devices=jit"], [f"devices={mode}", "devices.num_devices=2"]):
        config = compose(CONFIGS, *choices, *QUICK, *overrides, *choice)
        runner = build(resolve(config)).stages[0].runner
        _, metrics = runner.run(runner.init(3), num_updates)
        told.append({name: np.asarray(value) for name, value in metrics.items()})
    losses = [value for name, value in told[0].items() if name.startswith("train/") and name.endswith("loss")]
    assert told[0].keys() == told[1].keys() and losses and np.all(np.isfinite(losses))
    for name, value in told[0].items():
        np.testing.assert_allclose(told[1][name], value, rtol=1e-2, atol=1e-4, err_msg=name)
