"""Runs that diverge stop, and those that merely have not learned yet do not."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments import tmaze
from jaxagents.reporting.loggers import read_metrics
from jaxagents.training import build as build_module
from jaxagents.training import loop
from jaxagents.training.composition import compose as compose_run
from jaxagents.training.launch import run
from jaxagents.training.program import stage_keys
from tests import ROOT


@pytest.mark.slow
def test_a_nan_loss_stops_the_run_and_keeps_the_checkpoint(tmp_path, monkeypatch, compose, last_state):
    config = compose("optimizer.anneal=false")
    with pytest.raises(FloatingPointError, match=r"`train/\w+` must be finite, got NaN or infinity by update"):
        run(compose("optimizer.learning_rate=1e38", "optimizer.max_gradient_norm=null"), tmp_path / "at_once")
    assert not (tmp_path / "at_once/result.json").exists()

    real = loop._log

    def poison(run, stage, chunk, clock):
        if chunk.end >= 8:
            chunk = chunk._replace(metrics=chunk.metrics | {"train/loss": np.float32("inf")})
        return real(run, stage, chunk, clock)

    monkeypatch.setattr(loop, "_log", poison)
    with pytest.raises(FloatingPointError, match=r"`train/loss` must be finite, got NaN or infinity by update 8 \(256"):
        run(config, tmp_path / "later")
    assert last_state(tmp_path / "later", config).step == 6


@pytest.mark.exhaustive
def test_nan_of_a_world_is_not_blamed_on_the_learning_rate(tmp_path, monkeypatch, compose):
    make = tmaze.make_environment

    def broken(**options):
        world = make(**options)

        def step(key, state, action):
            state, timestep = world.step(key, state, action)
            return state, timestep.replace(reward=timestep.reward / 0.0)

        return dataclasses.replace(world, step=step)

    monkeypatch.setattr(tmaze, "make_environment", broken)
    with pytest.raises(FloatingPointError, match="mend the world: played at random, `reward` of .* is not finite"):
        run(compose(), tmp_path)


DIVERGING = {
    "sft": [
        *("world=bandit", "algorithm=sft", "quick=true", "warm_start.learner.optimizer.learning_rate=1e38"),
        "when_quick.training.checkpoint_every_steps=64",  # At the end only.
    ],
    "sac": [
        *("experiment=sac_pendulum", "policy.encoder.hidden_sizes=[8]", "value.encoder.hidden_sizes=[8]"),
        *("learner.buffer.min_size=16", "training.total_steps=96", "training.log_every_steps=16"),
        *("evaluation.num_episodes=2", "learner.q_optimizer.learning_rate=1e38"),
    ],
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", DIVERGING)
def test_a_run_whose_metrics_are_all_nan_has_diverged(tmp_path, tiny, name):
    """As when a replay buffer is not filled yet, no metric of the learner is a number; no checkpoint comes before."""
    config = compose_run(ROOT / "configs", *DIVERGING[name], "devices.compilation_cache=null", *tiny[-4:])
    with pytest.raises(FloatingPointError, match=r"`train/\w+` must be finite, got NaN or infinity by update \d"):
        run(config, tmp_path)
    assert not (tmp_path / "result.json").exists()


def test_parameters_that_are_not_finite_are_never_saved(tmp_path, monkeypatch, compose):
    monkeypatch.setattr(loop, "first_not_finite", lambda params: "['head']")
    with pytest.raises(FloatingPointError, match=r"`params\['head'\]` must be finite"):
        run(compose(), tmp_path)
    assert not any((tmp_path / "checkpoints/last").glob("*.digest.json"))


@pytest.mark.exhaustive
def test_a_learner_that_did_not_update_yet_has_not_diverged(tmp_path, tiny):
    """SAC updates once there are 48 transitions; 16 are collected between two logs."""
    small = ["experiment=sac_pendulum", *(f"{name}.encoder.hidden_sizes=[8]" for name in ("policy", "value"))]
    small += ["learner.buffer.min_size=48", "training.total_steps=96", "training.log_every_steps=16"]
    small += ["evaluation.num_episodes=2", "devices.compilation_cache=null", *tiny[-4:]]
    assert run(compose_run(ROOT / "configs", *small), tmp_path)["status"] == "finished"
    rows = [[row[name] for name in row if name.startswith("train/")] for row in read_metrics(tmp_path)]
    rows = [np.asarray(row) for row in rows if row]
    assert len(rows) == 6 and np.isnan(rows[0]).all() and np.isfinite(rows[-1]).all()


@pytest.mark.slow
def test_one_diverged_seed_stays_as_it_was_and_the_others_go_on(
    tmp_path, monkeypatch, capfd, compose, last_state, bits
):
    """The seed 1 has NaN parameters from its fifth update on."""
    doomed = jax.random.key_data(jax.random.split(stage_keys(1, 0), 3)[2])
    real = build_module.make_program

    def make_program(collector, learner):
        program = real(collector, learner)

        def update(state):
            after, metrics = program.update(state)
            ill = (state.update >= 4) & jnp.all(jax.random.key_data(state.key) == doomed)
            params = jax.tree.map(lambda leaf: jnp.where(ill, jnp.nan, leaf), after.learner.params)
            return after.replace(learner=after.learner.replace(params=params)), metrics

        return program._replace(update=update)

    healthy = run(compose("seeds=3"), tmp_path / "healthy")
    monkeypatch.setattr(build_module, "make_program", make_program)
    result = run(compose("seeds=3"), tmp_path / "run")
    assert healthy["status"] == ["finished"] * 3 and healthy["diverged"] == {}
    assert result["status"] == ["finished", "diverged", "finished"]
    assert result["diverged"] == {"1": {"metric": "train/loss", "stage": "tiny", "update": 6}}
    assert "Seed 1 has diverged: `train/loss` was NaN or infinite by update 6." in capfd.readouterr().err
    wanted, actual = (last_state(tmp_path / name, compose("seeds=3")).state for name in ("healthy", "run"))
    assert np.asarray(actual.diverged).tolist() == [-1, 4, -1]
    for seed in (0, 2):  # Bit for bit what they are without the other one's misfortune.
        one, other = (jax.tree.map(lambda x, seed=seed: x[seed], tree) for tree in (actual, wanted))
        assert bits(one) == bits(other)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(actual.learner.params))
    losses = [row["train/loss"] for row in read_metrics(tmp_path / "run") if "train/loss" in row]
    assert [np.isnan(loss).tolist() for loss in losses] == [[False] * 3] * 3 + [[False, True, False]] * 4
    with pytest.raises(FloatingPointError, match="`train/loss` must be finite, got NaN or infinity by update 6"):
        run(compose("seed=1", "seeds=1"), tmp_path / "alone")
