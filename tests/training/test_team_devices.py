"""One seed gives the same run on one device and on two, mapped or sharded: of teams, with memory, with noise."""

import numpy as np
import pytest

from jaxagents.training.build import build, resolve
from jaxagents.training.composition import compose
from tests import CONFIGS

QUICK = ("quick=true", "devices.compilation_cache=null")
SHARDS = "learner.buffer.num_shards=2"
DATA_SHARDS = "collector.num_shards=2"


# Few updates: rounding that flips an action in a battle makes another battle of it.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("choices", "num_updates", "overrides"),
    [
        (("experiment=ippo_spread",), 2, ()),
        (("experiment=mappo_smax_3m",), 2, ()),
        (("experiment=qmix_two_step_game",), 128, (SHARDS,)),
        (("experiment=mansa_two_step_game",), 40, (SHARDS, "learner.buffer.min_size=512")),
        (("experiment=r2d2_tmaze",), 12, (SHARDS, "learner.buffer.min_size=512")),
        (("experiment=rainbow_cartpole",), 16, (SHARDS,)),
        (("experiment=iql_pendulum",), 4, (DATA_SHARDS, "learner.normalize_observations=true")),
        (("experiment=rlpd_pendulum",), 24, (SHARDS, "learner.buffer.min_size=64")),
    ],
)
def test_the_run_does_not_depend_on_devices(choices, num_updates, overrides):
    result = {}
    for mode in ("jit", "pmap", "sharded"):
        size = () if DATA_SHARDS in overrides else ("collector.num_envs=8",)
        devices = (f"devices={mode}", *(() if mode == "jit" else ("devices.num_devices=2",)))
        config = compose(CONFIGS, *choices, *QUICK, *size, *overrides, *devices)
        runner = build(resolve(config)).stages[0].runner
        _, metrics = runner.run(runner.init(3), num_updates)
        result[mode] = {name: np.asarray(value) for name, value in metrics.items()}
    one = result.pop("jit")
    losses = [value for name, value in one.items() if name.startswith("train/") and name.endswith("loss")]
    assert losses and np.all(np.isfinite(losses))
    for mode, two in result.items():
        assert two.keys() == one.keys()
        for name, value in one.items():
            np.testing.assert_allclose(two[name], value, rtol=1e-2, atol=1e-4, err_msg=f"{mode}: {name}")
