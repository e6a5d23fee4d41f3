"""Systems of Stoix run unchanged from their folder: here a program of their form that counts what it is given."""

import sys

import pytest

from jaxagents.benchmarks.peers.stoix import stoix_subject

SYSTEM = """
from typing import NamedTuple

import gymnax
import jax
from neptune.utils import stringify_unsupported
from stoix.utils import make_env as environments
from stoix.utils.logger import StoixLogger


class State(NamedTuple):
    params: jax.Array
    environment: tuple


def learner_setup(environment, keys, config):
    key, _ = keys  # One network.
    inner, params = environment
    _, first = inner.reset(key, params)

    @jax.jit
    def learn(state):
        def step(carry, key):
            observation, environment, reward, done, info = inner.step(key, carry.environment, 0, params)
            return State(carry.params + done, environment), reward

        keys = jax.random.split(key, config.arch.num_updates_per_eval)
        state, _ = jax.lax.scan(step, state, keys)
        return Output(state)

    return learn, None, State(jax.numpy.int32(0), first)


class Output(NamedTuple):
    learner_state: State
"""
FILES = {
    "stoa/__init__.py": "",
    "stoix/__init__.py": "",
    "stoix/systems/__init__.py": "",
    "stoix/systems/toy.py": SYSTEM,
    "stoix/utils/__init__.py": "",
    "stoix/utils/make_env.py": """
import gymnax

from stoix.utils.env_factory import EnvFactory


class Factory(EnvFactory):
    pass


def make(config):
    return gymnax.make(config.env.name), None
""",
    "stoix/utils/total_timestep_checker.py": """
def check_total_timesteps(config):
    steps = config.arch.total_num_envs * config.system.rollout_length
    config.arch.num_envs = config.arch.total_num_envs // config.num_devices
    config.arch.num_updates_per_eval = config.arch.total_timesteps // steps // config.arch.num_evaluation
    return config
""",
    "stoix/configs/arch/few.yaml": "total_num_envs: 2\ntotal_timesteps: 240\nnum_evaluation: 4\n",
    "stoix/configs/default/anakin/default_toy.yaml": """
defaults:
  - arch: few
  - _self_
env: {name: CartPole-v1}
network: {actor_network: {}}
system: {rollout_length: 3}
""",
}


@pytest.fixture
def folder(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_system_finds_what_it_was_written_for_and_its_steps_are_counted(folder):
    subject = stoix_subject(folder, "stoix_toy", "toy", ["system.rollout_length=5"])
    assert subject.name == "stoix_toy" and subject.compile_seconds > 0.0
    assert subject.run() == 6 * 5 * 2  # 240 / (2 x 5) updates in four parts, of 5 steps in 2 environments.
    assert not any(name.partition(".")[0] == "stoix" for name in sys.modules)


def test_a_folder_without_the_packages_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"`reference_stoix` must hold the packages stoix and stoa, got .*'stoa'"):
        stoix_subject(tmp_path, "stoix_sac", "sac.ff_sac", [])
