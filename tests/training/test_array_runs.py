"""Array runs of several families: one program, which a pause or a second device changes nothing of."""

from pathlib import Path

import jax
import numpy as np
import pytest

from jaxagents.training import devices
from jaxagents.training.build import build, resolve
from jaxagents.training.composition import compose

CONFIGS = Path(__file__).parents[2] / "configs"
RUNS = {
    "vmpo": ("world=cartpole",),
    "muzero": ("world=cartpole", "learner.buffer={min_size: 128, batch_size: 8, num_shards: 2}"),
    "sampled_muzero": ("world=pendulum", "learner.buffer={min_size: 128, batch_size: 8, num_shards: 2}"),
    "sac": (
        "world=pendulum",
        "policy=mixture_actor",
        "learner.buffer.num_shards=2",
        "when_quick.learner.buffer.min_size=32",
    ),
    "dreamer": (
        "world=cartpole",
        "learner.buffer.num_shards=2",
        "when_quick.learner.buffer.min_size=128",
        "learner.free_nats=0.0",  # At first, the divergence is below: the prior would not move.
    ),
    "meta_gradients": ("world=cartpole",),
    "rl2": ("world=bernoulli_bandit",),
    "pets": ("world=pendulum", "learner.buffer={min_size: 128, num_shards: 2}", "collector.num_steps=16"),
    "airl": ("world=cartpole", "learner.demonstrations.num_shards=2", "collector.num_steps=16"),
    "gail": ("world=cartpole", "learner.demonstrations.num_shards=2", "collector.num_steps=16"),
    "diayn": ("world=cartpole_skills",),
    "alphazero": ("world=tic_tac_toe",),
    "gumbel_alphazero": ("world=tic_tac_toe",),
    "dagger": ("world=cartpole", "learner.buffer.num_shards=2"),
    "rlpd": ("world=pendulum", "learner.buffer.num_shards=2", "when_quick.learner.buffer.min_size=32"),
}
OF_FIXED_DATA = {
    "awac": ("world=pendulum", "collector.num_shards=2"),
    "bc": ("world=cartpole", "collector.num_shards=2"),
    "cql": ("world=pendulum", "collector.num_shards=2"),
    "discrete_cql": ("world=cartpole", "collector.num_shards=2"),
    "decision_transformer": ("world=cartpole", "collector.num_shards=2"),
    "diffusion_policy": ("world=pendulum", "collector.num_shards=2"),
    "iql": ("world=pendulum", "collector.num_shards=2"),
    # Its practice, of eight environments.
    "robofume": ("world=tabletop", "stages=['${practice}']", "+practice.learner.buffer.num_shards=2"),
    "td3_bc": ("world=pendulum", "collector.num_shards=2"),
}
# What these do not learn: one of the words is in the path.
STILL = {"bc": {"critic"}, "dagger": {"critic"}, "discrete_cql": {"epsilon"}, "td3_bc": {"raw_scale"}}
RUNS = {name: (*choices, "collector.num_envs=8") for name, choices in RUNS.items()} | OF_FIXED_DATA


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", RUNS)
def test_a_pause_changes_no_bit_and_two_devices_learn_as_one(algorithm, bits, monkeypatch):
    traced = []

    def run_updates(*arguments, **options):
        traced.append(algorithm)
        return original(*arguments, **options)

    original = devices.run_updates
    monkeypatch.setattr(devices, "run_updates", run_updates)

    def make(*choices):
        quick = ("quick=true", "devices.compilation_cache=null")
        config = compose(CONFIGS, f"algorithm={algorithm}", *RUNS[algorithm], *quick, *choices)
        return build(resolve(config)).stages[0].runner

    one, two = make(), make("devices=sharded", "devices.num_devices=2")
    before = jax.device_get(one.params(one.init(3)))
    whole, metrics = one.run(one.init(3), 4)
    halfway, _ = one.run(one.init(3), 2)
    resumed, _ = one.run(halfway, 2)
    assert traced == [algorithm] and bits(resumed) == bits(whole)
    moved = jax.tree.map(lambda old, new: bool(np.any(old != new)), before, jax.device_get(one.params(whole)))
    still = [jax.tree_util.keystr(path) for path, each in jax.tree.leaves_with_path(moved) if not each]
    assert all(any(word in path for word in STILL.get(algorithm, ())) for path in still), still
    _, metrics_of_two = two.run(two.init(3), 4)
    assert metrics_of_two.keys() == metrics.keys()
    for name, value in metrics.items():
        # A small difference of large numbers, in units of their ratio.
        atol = 2e-3 if name == "train/explained_variance" else 1e-4
        np.testing.assert_allclose(metrics_of_two[name], value, rtol=1e-2, atol=atol, err_msg=name)
