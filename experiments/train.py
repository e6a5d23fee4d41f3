"""Trains an agent: `python experiments/train.py experiment=ppo_cartpole seed=1 seeds=10`."""

import json
import sys
import time
from pathlib import Path

STARTED = time.time()

import hydra  # noqa: E402
from omegaconf import DictConfig  # noqa: E402

from jaxagents.training.launch import run  # noqa: E402


@hydra.main(version_base="1.3", config_path="../configs", config_name="train")
def main(config: DictConfig) -> None:
    """Runs the composed experiment; the last line on stdout is one JSON object."""
    result = run(config, Path(hydra.core.hydra_config.HydraConfig.get().runtime.output_dir), started=STARTED)
    print(json.dumps(result))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
