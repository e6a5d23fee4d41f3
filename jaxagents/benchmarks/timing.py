"""Speed, measured: medians over repeats, compile time apart, rivals in the same process in alternation."""

import contextlib
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
from omegaconf import DictConfig

from jaxagents.environments.vectorized import vectorize
from jaxagents.training.build import build, resolve
from jaxagents.types import Environment

ROOT = Path(__file__).parents[2]

PPO_BASELINE = {
    "LR": 2.5e-4,
    "UPDATE_EPOCHS": 4,
    "NUM_MINIBATCHES": 4,
    "GAMMA": 0.99,
    "GAE_LAMBDA": 0.95,
    "CLIP_EPS": 0.2,
    "ENT_COEF": 0.01,
    "VF_COEF": 0.5,
    "MAX_GRAD_NORM": 0.5,
    "ACTIVATION": "tanh",
    "ANNEAL_LR": True,
}
"""What the configs of PureJaxRL's `ppo.py` and of JaxMARL's `ippo_ff_mpe.py` have in common."""


class Subject(NamedTuple):
    """Something to time.

    Attributes:
        name: row of the table.
        run: runs once and waits for the result; returns how many units of work were done.
        compile_seconds: time to trace and compile.
    """

    name: str
    run: Callable[[], float]
    compile_seconds: float


def measure(subjects: list[Subject], repeats: int) -> dict[str, dict[str, float]]:
    """Times subjects in turns, so that a busy moment of the machine meets all of them.

    Returns:
        For every subject: `per_second` (median over the repeats), `spread` (interquartile range over the median) and
        `compile_seconds`.
    """
    rates: dict[str, list[float]] = {subject.name: [] for subject in subjects}
    for _ in range(repeats):
        for subject in subjects:
            begin = time.perf_counter()
            work = subject.run()
            rates[subject.name].append(work / (time.perf_counter() - begin))
    return {
        subject.name: {
            "per_second": statistics.median(rates[subject.name]),
            "spread": _spread(rates[subject.name]),
            "compile_seconds": subject.compile_seconds,
        }
        for subject in subjects
    }


def compiled_subject(name: str, function: Callable[..., Any], *inputs: Any, work: float) -> Subject:
    """Compiles a function of arrays and times its calls.

    Args:
        name: row of the table.
        function: to compile.
        *inputs: of every call.
        work: units of work of a call.

    Returns:
        The subject; `compile_seconds` are of tracing and compiling alone.
    """
    begin = time.perf_counter()
    compiled = jax.jit(function).lower(*inputs).compile()
    compile_seconds = time.perf_counter() - begin
    jax.block_until_ready(compiled(*inputs))

    def run() -> float:
        jax.block_until_ready(compiled(*inputs))
        return work

    return Subject(name=name, run=run, compile_seconds=compile_seconds)


def training_subject(config: DictConfig, name: str) -> Subject:
    """Times training of an experiment from a fresh state, without evaluation and logs; unit: environment steps."""
    stage = build(resolve(config)).stages[0]
    seeds = max(config.seeds, 1)

    def run() -> float:
        state, metrics = stage.runner.run(stage.runner.init(config.seed), stage.num_updates)
        jax.block_until_ready((state, metrics))
        return stage.num_updates * stage.steps_per_update * seeds

    begin = time.perf_counter()
    jax.block_until_ready(stage.runner.run(stage.runner.init(config.seed), 1))
    return Subject(name=name, run=run, compile_seconds=time.perf_counter() - begin)


def environment_subject(environment: Environment, *, num_envs: int = 256, num_steps: int = 1000) -> Subject:
    """Times random actions with automatic resets; unit: environment steps."""
    batch = vectorize(environment, reset_pool=64)
    actions = environment.action_space.num_values

    @jax.jit
    def rollout(key: jax.Array) -> jax.Array:
        reset_key, draw_key, action_key = jax.random.split(key, 3)
        index = jnp.arange(num_envs)
        state, _ = batch.reset(reset_key, index)
        draws, shared = batch.draw(draw_key, index, num_steps)
        action = jax.random.randint(action_key, (num_steps, num_envs), 0, actions)

        def step(state, inputs):
            state, timestep = batch.step(state, inputs[0], inputs[1], shared)
            return state, (timestep.reward, timestep.observation)

        return jax.lax.scan(step, state, (action, draws))[1]

    begin = time.perf_counter()
    jax.block_until_ready(rollout(jax.random.key(0)))
    compile_seconds = time.perf_counter() - begin

    def run() -> float:
        jax.block_until_ready(rollout(jax.random.key(1)))
        return num_envs * num_steps

    return Subject(name=f"random_actions/{environment.name}", run=run, compile_seconds=compile_seconds)


def purejaxrl_subject(folder: str | Path, total_steps: int) -> Subject:
    """Times `ppo.py` of PureJaxRL (Lu et al., 2022) from a checkout of its package folder; unit: environment steps.

    Its code runs unchanged; gymnax 1.0 tells termination from truncation, so `step` is narrowed to the five values that
    it expects, and the suites that its wrappers import but CartPole does not use are stubbed.

    Raises:
        ValueError: the folder has no `ppo.py`.
    """
    folder = Path(folder)
    if not (folder / "ppo.py").exists():
        raise ValueError(f"`reference` must be PureJaxRL's folder with ppo.py, got {folder}.")
    config = PPO_BASELINE | {
        "NUM_ENVS": 4,
        "NUM_STEPS": 128,
        "TOTAL_TIMESTEPS": total_steps,
        "ENV_NAME": "CartPole-v1",
        "DEBUG": False,
    }
    begin = time.perf_counter()
    with _purejaxrl(folder) as module:
        compiled = jax.jit(module.make_train(config)).lower(jax.random.PRNGKey(0)).compile()
    compile_seconds = time.perf_counter() - begin

    def run() -> float:
        jax.block_until_ready(compiled(jax.random.PRNGKey(1)))
        return total_steps // 512 * 512

    return Subject(name="purejaxrl_cartpole", run=run, compile_seconds=compile_seconds)


@contextlib.contextmanager
def _purejaxrl(folder: Path) -> Iterator[Any]:
    import gymnax

    original = gymnax.make

    def make(name: str):
        environment, params = original(name)

        def step(key, state, action, params=None):
            observation, state, reward, terminated, truncated, info = environment.step(key, state, action, params)
            return observation, state, reward, terminated | truncated, info

        adapted = SimpleNamespace(
            step=step,
            reset=environment.reset,
            action_space=environment.action_space,
            observation_space=environment.observation_space,
        )
        return adapted, params

    unused = {name: mock.MagicMock() for name in ("navix", "brax", "brax.envs", "brax.envs.wrappers")}
    unused["brax.envs.wrappers.training"] = mock.MagicMock()
    with mock.patch.dict(sys.modules, unused), mock.patch.object(gymnax, "make", make):
        sys.path.insert(0, str(folder))
        try:
            yield importlib.import_module("ppo")
        finally:
            sys.path.remove(str(folder))


def matmul_peak(size: int = 1024, repeats: int = 5) -> float:
    """Measures float32 matrix products of `size` x `size`, in GFLOP/s (best of the repeats)."""
    matrix = jnp.ones((size, size), jnp.float32)
    product = jax.jit(lambda a: a @ a)
    product(matrix).block_until_ready()
    best = 0.0
    for _ in range(repeats):
        begin = time.perf_counter()
        product(matrix).block_until_ready()
        best = max(best, 2 * size**3 / (time.perf_counter() - begin) / 1e9)
    return best


def matmul_subject(size: int = 1024, repeats: int = 20) -> Subject:
    """Times float32 matrix products of `size` x `size` in turns with other subjects; unit: GFLOP."""

    def products(matrix: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, repeats, lambda _, left: left @ matrix, matrix)

    matrix = jnp.eye(size, dtype=jnp.float32)
    return compiled_subject("matmul_gflops", products, matrix, work=repeats * 2 * size**3 / 1e9)


def startup_seconds(overrides: list[str]) -> Mapping[str, float]:
    """Measures the time from the command to the first update, with an empty and with a filled compilation cache."""
    seconds = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in ("cold", "warm"):
            command = [sys.executable, "experiments/train.py", "quick=true", *overrides, f"run_dir={folder}/{name}"]
            result = subprocess.run(
                command,
                cwd=ROOT,
                env={**os.environ, "JAXAGENTS_CACHE": f"{folder}/cache"},
                capture_output=True,
                text=True,
                check=True,
            )
            seconds[name] = _last_json(result.stdout)["seconds_to_first_update"]
    return seconds


def _last_json(text: str) -> dict[str, Any]:
    return json.loads(text.strip().splitlines()[-1])


def _spread(values: list[float]) -> float:
    if len(values) < 2:
        return 0.0
    low, _, high = statistics.quantiles(values, n=4)
    return (high - low) / statistics.median(values)
