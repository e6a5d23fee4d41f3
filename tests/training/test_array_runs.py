"""Array runs of several families: one program, which a pause or a second device changes nothing of."""

import jax
import numpy as np
import pytest

from jaxagents.training import devices
from jaxagents.training.build import build, resolve
from jaxagents.training.composition import compose
from jaxagents.training.listing import fitting_worlds
from tests import CONFIGS

SHARDS = "learner.buffer.num_shards=2"
FILLED = (SHARDS, "when_quick.learner.buffer.min_size=32")
# Beside the first world that an algorithm fits.
OPTIONS = {
    **dict.fromkeys(("awr", "c51", "dqn", "iqn", "munchausen_dqn", "noisy_dqn", "plain_dqn", "qr_dqn"), FILLED),
    **dict.fromkeys(("crossq", "ddpg", "droq", "masac", "mbpo", "mpo", "q_shaping"), FILLED),
    **dict.fromkeys(("qmix", "rainbow", "td3", "vdn"), FILLED),
    **dict.fromkeys(("airl", "gail"), ("learner.demonstrations.num_shards=2", "collector.num_steps=16")),
    **dict.fromkeys(("hg_dagger", "pvp"), (SHARDS, "learner.buffer.min_size=32")),
    **dict.fromkeys(("muzero", "sampled_muzero"), ("learner.buffer={min_size: 128, batch_size: 8, num_shards: 2}",)),
    **dict.fromkeys(("redq", "rlpd"), (*FILLED, "value.num_critics=3")),
    "dagger": (SHARDS,),
    "dreamer": (
        *(SHARDS, "when_quick.learner.buffer.min_size=128"),
        "learner.free_nats=0.0",  # At first, the divergence is below: the prior would not move.
    ),
    "mansa": ("world=two_step_game", "environment=two_step_game_calls", *FILLED),
    "pets": ("learner.buffer={min_size: 128, num_shards: 2}", "collector.num_steps=16"),
    "r2d2": (*FILLED, "learner.buffer.sequence_length=14", "learner.burn_in=4"),
    "recurrent_qmix": (*FILLED, "learner.buffer.sequence_length=8"),
    "sac": ("policy=mixture_actor", *FILLED),
}
# Of as many environments as their levels or members ask for.
OPTIONS_OF_OTHERS = {
    **dict.fromkeys(("accel", "plr", "robust_plr", "sfl", "dicode", "xland", "envgen"), ()),
    **dict.fromkeys(("cma_es", "open_es", "pgpe"), ()),
    **dict.fromkeys(("awac", "bc", "cql", "discrete_cql"), ("collector.num_shards=2",)),
    "decision_transformer": ("collector.num_shards=2", "policy.target_return=500.0"),
    **dict.fromkeys(("diffusion_policy", "iql", "td3_bc"), ("collector.num_shards=2",)),
    "co_rft": ("world=tabletop", "environment=tabletop_chunks", "collector.num_shards=2"),
    # Its practice, of eight environments.
    "robofume": ("stages=['${practice}']", "+practice.learner.buffer.num_shards=2"),
}


def _runs():
    """Returns the choices of every algorithm of arrays; those of language models are in test_language_devices."""
    fits = fitting_worlds(CONFIGS)
    runs = {}
    for name, worlds in fits.items():
        if not worlds or not {*worlds} <= {*fits["grpo"]}:
            options = OPTIONS_OF_OTHERS.get(name, (*OPTIONS.get(name, ()), "collector.num_envs=8"))
            runs[name] = (*(f"world={world}" for world in worlds[:1]), *options)
    return runs


RUNS = _runs()
OF_EACH_KIND = ("dqn", "ppo")
# What these do not learn: one of the words is in the path.
STILL = {
    **dict.fromkeys(("bc", "dagger", "hg_dagger"), {"critic"}),
    # Their shares of random actions are fixed.
    **dict.fromkeys(
        ("discrete_cql", "mansa", "noisy_dqn", "pvp", "qmix", "rainbow", "recurrent_qmix", "vdn"), {"epsilon"}
    ),
    **dict.fromkeys(("co_rft", "ddpg", "td3", "td3_bc"), {"raw_scale"}),
}


@pytest.mark.parametrize(
    "algorithm",
    [pytest.param(name, marks=pytest.mark.slow if name in OF_EACH_KIND else pytest.mark.exhaustive) for name in RUNS],
)
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
        return build(resolve(config)).stages[0]

    stage = make()
    one, two = stage.runner, make("devices=sharded", "devices.num_devices=2").runner
    before = jax.device_get(one.params(one.init(3)))
    whole, metrics = one.run(one.init(3), 4)
    halfway, _ = one.run(one.init(3), 2)
    resumed, _ = one.run(halfway, 2)
    assert traced == [algorithm] and bits(resumed) == bits(whole)
    moved = jax.tree.map(lambda old, new: bool(np.any(old != new)), before, jax.device_get(one.params(whole)))
    still = [jax.tree_util.keystr(path) for path, each in jax.tree.leaves_with_path(moved) if not each]
    assert all(any(word in path for word in STILL.get(algorithm, ())) for path in still), still
    assert all(np.all(np.isfinite(value)) for value in stage.evaluate(one.params(whole)).values())
    _, metrics_of_two = two.run(two.init(3), 4)
    assert metrics_of_two.keys() == metrics.keys()
    for name, value in metrics.items():
        # A small difference of large numbers, in units of their ratio.
        atol = 2e-3 if name == "train/explained_variance" else 1e-4
        np.testing.assert_allclose(metrics_of_two[name], value, rtol=1e-2, atol=atol, err_msg=name)
