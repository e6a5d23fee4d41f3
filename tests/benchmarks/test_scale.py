"""Tests of what the benchmark of scale counts, and that shards are shares."""

import jax
import numpy as np
import pytest
from hydra import compose as hydra_compose
from hydra import initialize_config_dir

from jaxagents.benchmarks.scale import Contest, bytes_on_a_device, scale_values, train_in_turns
from jaxagents.benchmarks.suites import run_suite
from jaxagents.benchmarks.timing import cpu_ticks, describe_machine
from jaxagents.training.build import build, resolve
from jaxagents.training.composition import compose
from tests import CONFIGS

TINY = ("world=cartpole", "algorithm=ppo", "collector.num_envs=8", "optimizer.flatten=false", "devices=fsdp")


def test_parameters_and_moments_of_a_device_fall_as_one_over_their_number():
    held = {}
    for n in (1, 2, 4, 8):
        experiment = build(resolve(compose(CONFIGS, *TINY, f"devices.num_devices={n}")))
        learner = experiment.stages[-1].runner.abstract.learner
        held[n] = [bytes_on_a_device(learner.params), bytes_on_a_device(learner.opt_state)]
        whole = [sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(learner.params))]
    assert held[1][0] == whole[0] > 4 * 64 * 64
    for n in (2, 4, 8):  # Biases that do not divide, and the count of Adam's steps, are whole everywhere.
        np.testing.assert_allclose(n * np.array(held[n]), held[1], rtol=0.02)


def test_ratios_by_hand():
    row = {"per_second": 10.0, "peak_mib": 5.0, "params_bytes": 8.0, "opt_state_bytes": 16.0}
    two = {"per_second": 15.0, "peak_mib": 6.0, "params_bytes": 4.0, "opt_state_bytes": 9.0}
    rows = {"strong/1": row, "weak/1": row, "strong/2": two, "weak/2": two}
    values = scale_values(rows, (1, 2))
    assert values["strong/2/speed_to_one_device"] == 1.5 and values["weak/2/efficiency"] == 0.75
    assert values["params/2/share_of_a_device"] == 0.5 and values["opt_state/2/share_of_a_device"] == 9 / 16
    assert values["weak/2/peak_mib"] == 6.0 and values["weak/1/efficiency"] == 1.0


def test_the_machine_is_described():
    steal, total = cpu_ticks()
    assert 0 <= steal <= total
    described = describe_machine((steal, total - 100))
    assert 0.0 <= described["machine/steal"] <= 1.0 and described["machine/cores"] >= 1.0


@pytest.mark.slow
def test_a_process_that_fails_says_why():
    with pytest.raises(RuntimeError, match="nothing_like_it"):
        train_in_turns({"strong/1": Contest(1, ("world=nothing_like_it",), 1)}, 1)


@pytest.mark.exhaustive
def test_the_suite_runs():
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        config = hydra_compose("benchmark", ["suite=scale", "quick=true"])
    rows, values = run_suite(config, CONFIGS)
    assert set(rows) == {f"{kind}/{n}" for kind in ("strong", "weak") for n in (1, 2)}
    assert all(row["per_second"] > 0.0 and row["peak_mib"] > 50.0 for row in rows.values())
    assert values["params/2/share_of_a_device"] == pytest.approx(0.5, rel=0.02)
    assert values["context/256/in_blocks_mib"] < values["context/256/at_once_mib"]
    assert values["loss/ratio"] >= 1.0
