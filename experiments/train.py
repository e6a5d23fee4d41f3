"""Trains an agent: `python experiments/train.py experiment=ppo_cartpole seeds=10`; `--list` says what there is."""

import json
import sys
import time
from pathlib import Path

STARTED = time.monotonic()  # Before the other imports, which count in the time to the first update.

from jaxagents.training.interrupts import interrupts_at_once  # noqa: E402

with interrupts_at_once():
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import DictConfig

    from jaxagents.training.command import command, how_to_go_on
    from jaxagents.training.composition import folders_of, given_arguments
    from jaxagents.training.explicit import (
        honour_overrides,
        leave_out_unknown,
        require_fitting_world,
        require_rewards_on_arrays,
    )
    from jaxagents.training.interrupts import when_interrupted
    from jaxagents.training.listing import list_choices

CONFIGS = Path(__file__).resolve().parents[1] / "configs"


@command("train", options=("--list",), trains=True)
def main(config: DictConfig) -> None:
    """Runs the composed experiment; the last line on stdout is one JSON object."""
    from jaxagents.training.launch import run  # Imports jax: help and mistakes in names come without it.

    leave_out_unknown(config, given_arguments())
    honour_overrides(config, given_arguments())
    require_rewards_on_arrays(config)
    require_fitting_world(config, CONFIGS)
    run_dir = Path(HydraConfig.get().runtime.output_dir)
    with when_interrupted(lambda: how_to_go_on(run_dir)):
        result = run(config, run_dir, started=STARTED)
    print(json.dumps(result))
    sys.stdout.flush()


def start() -> None:
    """Lists what there is where nothing else was asked for, or trains."""
    if len(sys.argv) == 1 or "--list" in sys.argv:
        world = next((text.partition("=")[2] for text in sys.argv if text.startswith("world=")), None)
        print(list_choices(CONFIGS, Path(__file__).parent, *folders_of(sys.argv[1:]), world=world))
    else:
        main()


if __name__ == "__main__":
    start()
