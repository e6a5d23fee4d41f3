"""Trains an agent: `python experiments/train.py experiment=ppo_cartpole seeds=10`; `--list` says what there is."""

import json
import sys
import time
from pathlib import Path

STARTED = time.time()  # Before the other imports, which count in the time to the first update.

from hydra.core.hydra_config import HydraConfig  # noqa: E402
from omegaconf import DictConfig  # noqa: E402

from jaxagents.training.command import command  # noqa: E402
from jaxagents.training.explicit import honour_overrides, leave_out_unknown, require_rewards_on_arrays  # noqa: E402
from jaxagents.training.listing import list_choices  # noqa: E402


@command("train", options=("--list",), trains=True)
def main(config: DictConfig) -> None:
    """Runs the composed experiment; the last line on stdout is one JSON object."""
    from jaxagents.training.launch import run  # Imports jax: help and mistakes in names come without it.

    hydra = HydraConfig.get()
    leave_out_unknown(config, hydra.overrides.task)
    honour_overrides(config, hydra.overrides.task)
    require_rewards_on_arrays(config)
    result = run(config, Path(hydra.runtime.output_dir), started=STARTED)
    print(json.dumps(result))
    sys.stdout.flush()


def start() -> None:
    """Lists what there is where nothing else was asked for, or trains."""
    if len(sys.argv) == 1 or "--list" in sys.argv:
        print(list_choices(Path(__file__).resolve().parents[1] / "configs"))
    else:
        main()


if __name__ == "__main__":
    start()
