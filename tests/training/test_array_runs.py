"""Array runs of several families: one program, which a pause or a second device changes nothing of."""

import jax
import numpy as np
import pytest

from jaxagents.training import devices
from jaxagents.training.build import build, resolve
from jaxagents.training.composition import compose
from tests import CONFIGS

SHARDS = "learner.buffer.num_shards=2"
FILLED = (SHARDS, "when_quick.learner.buffer.min_size=32")
PLAYED = {
    **dict.fromkeys(("a2c", "appo", "impala", "meta_gradients", "ppg", "ppo", "pqn", "vmpo"), ("world=cartpole",)),
    **dict.fromkeys(("awr", "c51", "dqn", "iqn", "munchausen_dqn", "noisy_dqn"), ("world=cartpole", *FILLED)),
    **dict.fromkeys(("plain_dqn", "qr_dqn", "rainbow"), ("world=cartpole", *FILLED)),
    **dict.fromkeys(("count_bonus", "count_product", "count_product_normalized"), ("world=cartpole",)),
    **dict.fromkeys(("e3b", "e3b_noveld", "icm", "noveld", "rnd"), ("world=cartpole",)),
    **dict.fromkeys(("alphazero", "gumbel_alphazero"), ("world=tic_tac_toe",)),
    **dict.fromkeys(
        ("airl", "gail"), ("world=cartpole", "learner.demonstrations.num_shards=2", "collector.num_steps=16")
    ),
    **dict.fromkeys(("crossq", "ddpg", "droq", "mbpo", "mpo", "td3"), ("world=pendulum", *FILLED)),
    **dict.fromkeys(("qmix", "vdn"), ("world=two_step_game", *FILLED)),
    "dagger": ("world=cartpole", SHARDS),
    "diayn": ("world=cartpole_skills",),
    "dreamer": (
        *("world=cartpole", SHARDS, "when_quick.learner.buffer.min_size=128"),
        "learner.free_nats=0.0",  # At first, the divergence is below: the prior would not move.
    ),
    **dict.fromkeys(("hg_dagger", "pvp"), ("world=quest", SHARDS, "learner.buffer.min_size=32")),
    "q_shaping": ("world=quest", *FILLED),
    "mansa": ("world=two_step_game", "environment=two_step_game_calls", *FILLED),
    "muzero": ("world=cartpole", "learner.buffer={min_size: 128, batch_size: 8, num_shards: 2}"),
    "pets": ("world=pendulum", "learner.buffer={min_size: 128, num_shards: 2}", "collector.num_steps=16"),
    "r2d2": ("world=tmaze", *FILLED, "learner.buffer.sequence_length=14", "learner.burn_in=4"),
    **dict.fromkeys(("redq", "rlpd"), ("world=pendulum", *FILLED, "value.num_critics=3")),
    "rl2": ("world=bernoulli_bandit",),
    "sac": ("world=pendulum", "policy=mixture_actor", *FILLED),
    "sampled_muzero": ("world=pendulum", "learner.buffer={min_size: 128, batch_size: 8, num_shards: 2}"),
}
# Of as many environments as their levels or members ask for.
OF_LEVELS = {
    **dict.fromkeys(("accel", "plr", "robust_plr", "sfl"), ("world=gridworld",)),
    **dict.fromkeys(("dicode", "xland"), ("world=quest_levels",)),
    "envgen": ("world=craft_lands",),
}
OF_MEMBERS = dict.fromkeys(("cma_es", "open_es", "pgpe"), ("world=cartpole",))
OF_FIXED_DATA = {
    "awac": ("world=pendulum", "collector.num_shards=2"),
    "bc": ("world=cartpole", "collector.num_shards=2"),
    "cql": ("world=pendulum", "collector.num_shards=2"),
    "discrete_cql": ("world=cartpole", "collector.num_shards=2"),
    "decision_transformer": ("world=cartpole", "collector.num_shards=2"),
    "diffusion_policy": ("world=pendulum", "collector.num_shards=2"),
    "iql": ("world=pendulum", "collector.num_shards=2"),
    "co_rft": ("world=tabletop", "environment=tabletop_chunks", "collector.num_shards=2"),
    # Its practice, of eight environments.
    "robofume": ("world=tabletop", "stages=['${practice}']", "+practice.learner.buffer.num_shards=2"),
    "td3_bc": ("world=pendulum", "collector.num_shards=2"),
}
OF_TEXT = "dapo dpo grpo ipo kto orpo raft reinforce rest_em rloo rpo sft simpo spin"  # See test_language_devices.
# What these do not learn: one of the words is in the path.
STILL = {
    **dict.fromkeys(("bc", "dagger", "hg_dagger"), {"critic"}),
    # Their shares of random actions are fixed.
    **dict.fromkeys(("discrete_cql", "mansa", "noisy_dqn", "pvp", "qmix", "rainbow", "vdn"), {"epsilon"}),
    **dict.fromkeys(("co_rft", "ddpg", "td3", "td3_bc"), {"raw_scale"}),
}
PLAYED = {name: (*choices, "collector.num_envs=8") for name, choices in PLAYED.items()}
OF_EACH_KIND = ("dqn", "ppo")
RUNS = PLAYED | OF_LEVELS | OF_MEMBERS | OF_FIXED_DATA


def test_every_algorithm_of_arrays_is_here():
    assert {path.stem for path in (CONFIGS / "algorithm").glob("*.yaml")} == {*RUNS, *OF_TEXT.split()}


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
