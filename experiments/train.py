"""Trains an agent: `python experiments/train.py experiment=ppo_cartpole seed=1 seeds=10`."""

import json
import sys
import time
from pathlib import Path

STARTED = time.time()

from hydra.core.hydra_config import HydraConfig  # noqa: E402
from omegaconf import DictConfig  # noqa: E402

from jaxagents.training.command import command  # noqa: E402
from jaxagents.training.launch import run  # noqa: E402


@command("train")
def main(config: DictConfig) -> None:
    """Runs the composed experiment; the last line on stdout is one JSON object."""
    result = run(config, Path(HydraConfig.get().runtime.output_dir), started=STARTED)
    print(json.dumps(result))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
