"""Settings of every test: eight virtual CPU devices, strict rank promotion, compilations kept between runs."""

import os
import pathlib

_CACHE = pathlib.Path(__file__).resolve().parent.parent / ".cache" / "jax"

# XLA reads these when its backend starts, so they are set before jax is imported; subprocesses of tests inherit them.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = (os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8").strip()
# Collectives between virtual devices can hang when the thread pool has fewer threads than devices.
os.environ["PJRT_NPROC"] = "32"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(_CACHE))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")  # Tests compile many small things.

import jax  # noqa: E402

jax.config.update("jax_numpy_rank_promotion", "raise")
