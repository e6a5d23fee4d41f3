"""Programs of others, written for older packages, run unchanged from their folders."""

import jax
import pytest

from jaxagents.benchmarks.peers.value_based import purejaxql_subject, purejaxrl_dqn_subject

WRAPPERS = """
class LogWrapper:
    def __init__(self, environment):
        self.environment = environment
"""
PROGRAM = """
import gymnax
import jax
import wandb
from gymnax.wrappers.purerl import LogWrapper


def make_train(config):
    environment, params = gymnax.make(config["ENV_NAME"])
    inner = LogWrapper(environment).environment

    def train(key):
        state = jax.tree_map(lambda leaf: leaf, inner.reset(key, params)[1])
        observation, state, reward, done, info = inner.step(key, state, inner.action_space().sample(key), params)
        return done, config["TOTAL_TIMESTEPS"] // config["NUM_ENVS"]

    return train
"""


@pytest.mark.parametrize(
    ("program", "make", "steps"),
    [
        ("dqn", lambda folder: purejaxrl_dqn_subject(folder, 25), 20),
        ("pqn_gymnax", lambda folder: purejaxql_subject(folder, folder, 5000), 4096),
    ],
)
def test_a_program_finds_what_it_was_written_for(tmp_path, program, make, steps):
    (tmp_path / "wrappers.py").write_text(WRAPPERS)
    (tmp_path / f"{program}.py").write_text(PROGRAM)
    subject = make(tmp_path)
    assert subject.run() == steps and subject.compile_seconds > 0.0  # Whole updates: of 10, and of 32 x 64 steps.
    assert not hasattr(jax, "tree_map")


def test_a_folder_without_the_program_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"`reference` must be PureJaxRL's folder with dqn.py, got "):
        purejaxrl_dqn_subject(tmp_path, 10)
    with pytest.raises(ValueError, match=r"`reference_pqn` must be PureJaxQL's folder with pqn_gymnax.py, got "):
        purejaxql_subject(tmp_path, tmp_path, 10)
