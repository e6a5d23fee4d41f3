"""One process of `benchmark.py suite=scale`: compiles an experiment, then trains a turn for every line it reads."""

import json
import resource
import sys
from collections.abc import Sequence
from functools import partial

import jax

from jaxagents.benchmarks.scale import MIB, ROOT, bytes_on_a_device
from jaxagents.benchmarks.timing import timed
from jaxagents.training.build import build, resolve
from jaxagents.training.composition import compose
from jaxagents.training.config import DevicesConfig, make_section
from jaxagents.training.launch import prepare_backend


def main(num_updates: int, overrides: Sequence[str]) -> None:
    """Writes a JSON object with compile time and bytes after compilation, and one with steps and seconds per turn."""
    resolved = resolve(compose(ROOT / "configs", *overrides))
    prepare_backend(make_section(DevicesConfig, "devices", resolved["devices"]))
    stage = build(resolved).stages[-1]
    state, compile_seconds = timed(lambda: stage.runner.run(stage.runner.init(resolved["seed"]), 1)[0])
    learner = stage.runner.to_global(state).learner
    facts = {"compile_seconds": compile_seconds, "params_bytes": bytes_on_a_device(learner.params)}
    _write(facts | {"opt_state_bytes": bytes_on_a_device(learner.opt_state)})
    for _ in sys.stdin:
        (state, _), seconds = timed(partial(stage.runner.run, state, num_updates))
        kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        steps = num_updates * stage.steps_per_update
        _write({"steps": steps, "seconds": seconds, "peak_mib": kib * 1024 / MIB})
    jax.clear_caches()


def _write(facts: dict[str, float]) -> None:
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
