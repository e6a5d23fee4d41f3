"""Evaluates a trained agent: `python experiments/evaluate.py path=runs/ppo_cartpole/... num_episodes=256`."""

import json
import sys
from functools import partial

from omegaconf import DictConfig

from jaxagents.training.command import command


@command("evaluate")
def main(config: DictConfig) -> None:
    """Prints a table; the last line on stdout is one JSON object."""
    # Imported here: help and mistakes in names come without jax.
    from jaxagents.training.config import DevicesConfig, make_section
    from jaxagents.training.evaluate import evaluate_run, print_evaluation
    from jaxagents.training.launch import prepare_backend

    prepare_backend(make_section(DevicesConfig, "devices", config.devices))
    evaluation = evaluate_run(
        config.path,
        num_episodes=4 if config.quick else config.num_episodes,
        seed=config.seed,
        greedy=config.greedy,
        level=config.level,
        held_out=config.held_out,
        which=config.which,
        step=config.step,
        stage=config.stage,
        on_fallback=partial(print, file=sys.stderr),
    )
    print_evaluation(evaluation)
    print(json.dumps(evaluation))


if __name__ == "__main__":
    main()
