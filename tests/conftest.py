"""Settings of every test: eight virtual CPU devices, strict rank promotion, compilations kept between runs."""

import os
import pathlib

_CACHE = pathlib.Path(__file__).resolve().parent.parent / ".cache" / "jax"

# XLA reads these when its backend starts, so they are set before jax is imported; subprocesses of tests inherit them.
os.environ["JAX_PLATFORMS"] = "cpu"
# Tests compile much and compute little: machine code without optimisation is a third faster to have.
_FLAGS = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_FLAGS}".strip()
# Collectives between virtual devices can hang when the thread pool has fewer threads than devices.
os.environ["PJRT_NPROC"] = "32"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(_CACHE))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")  # Tests compile many small things.

from functools import partial  # noqa: E402

import jax  # noqa: E402
import pytest  # noqa: E402

jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture(scope="session")
def lake():
    """Returns a 4x4 lake with short episodes."""
    from jaxagents.environments.text.frozenlake import make_environment

    return make_environment((4,), (0.2,), max_steps=6)


@pytest.fixture(scope="session")
def speak():
    """Returns `(environment, value_head=False, **options) -> LanguagePolicy` of a tiny model."""
    from jaxagents.language.policy import make_language_policy
    from jaxagents.language.tokenizers import word_level
    from jaxagents.networks.transformer import Transformer
    from jaxagents.policies.language_model import make_language_model

    def make(environment, value_head=False, **options):
        network = partial(Transformer, num_layers=1, features=16, num_heads=2, value_head=value_head)
        defaults = {"tokenizer": word_level, "model": partial(make_language_model, network=network)}
        return make_language_policy(environment, **defaults | options)

    return make


@pytest.fixture(scope="session")
def params_of():
    """Returns `(policy) -> params` that are far from uniform, so that mistakes in contexts show."""

    def make(policy):
        return jax.tree.map(lambda leaf: leaf * 3.0, policy.init(jax.random.key(7)))

    return make
