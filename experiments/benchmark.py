"""Measures speed: `python experiments/benchmark.py suite=lm`; settings of the suites are in configs/benchmark.yaml."""

import json
from pathlib import Path

from jaxagents.training.interrupts import interrupts_at_once

with interrupts_at_once():
    from omegaconf import DictConfig

    from jaxagents.training.command import command


@command("benchmark")
def main(config: DictConfig) -> None:
    """Prints a table and, as the last line on stdout, one JSON object `{name: value}`."""
    # Imported here: help and mistakes in names come without jax.
    from jaxagents.benchmarks import suites
    from jaxagents.reporting.tables import print_speeds

    rows, values = suites.run_suite(config, Path(__file__).parents[1] / "configs")
    if rows:
        print_speeds(f"suite={config.suite}", rows)
    print(json.dumps(values))


if __name__ == "__main__":
    main()
