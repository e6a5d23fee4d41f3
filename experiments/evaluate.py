"""Evaluates trained agents: `python experiments/evaluate.py path=runs/ppo_cartpole/...`, or `suite=worlds`."""

import json
import sys
from functools import partial
from pathlib import Path

from jaxagents.training.interrupts import interrupts_at_once

with interrupts_at_once():
    from omegaconf import DictConfig

    from jaxagents.training.command import command


@command("evaluate")
def main(config: DictConfig) -> None:
    """Prints a table; the last line on stdout is one JSON object."""
    # Imported here: help and mistakes in names come without jax.
    from jaxagents.papers.world_gains import measure_gains
    from jaxagents.reporting.tables import print_table
    from jaxagents.training.baselines import measure_baselines
    from jaxagents.training.config import DevicesConfig, make_section
    from jaxagents.training.cross_play import cross_play_runs, print_cross_play
    from jaxagents.training.evaluate import evaluate_run, print_evaluation
    from jaxagents.training.launch import prepare_backend
    from jaxagents.training.setting_types import require_arguments
    from jaxagents.training.world_pages import GAIN_COLUMNS, gain_rows, write_world_pages, write_world_table
    from jaxagents.training.world_suite import evaluate_worlds, print_worlds

    require_arguments(config, evaluate_run, optional=("path",), positive=("num_episodes",))
    prepare_backend(make_section(DevicesConfig, "devices", config.devices))
    num_episodes = 4 if config.quick else config.num_episodes
    if config.suite is not None:
        if config.suite not in ("worlds", "grpo"):
            raise ValueError(f"`suite` must be worlds, grpo or null, got {config.suite!r}; try suite=worlds.")
        settings = {name: config[name] for name in ("seed", "greedy", "held_out")}
        folder = Path(__file__).resolve().parents[1] / "configs"
        if config.suite == "grpo":
            chosen = {"num_episodes": num_episodes, "task_seed": config.seed, **config.grpo}
            rows = [*measure_gains(folder, **chosen, say=partial(print, file=sys.stderr, flush=True))]
            print_table("held-out success before and after GRPO", GAIN_COLUMNS, gain_rows(rows))
            write_world_table(config.grpo.folder)
            print(json.dumps(rows))
            return
        chosen = {name: config.worlds[name] for name in ("names", "agents", "folder")}
        rows = [*evaluate_worlds(folder, **chosen, num_episodes=num_episodes, **settings)]
        print_worlds(rows)
        if config.worlds.folder is not None:
            write_world_table(config.worlds.folder)
        if config.worlds.pages is not None:
            write_world_pages(config.worlds.pages, folder, rows)
        print(json.dumps(rows))
        return
    if config.baselines:
        settings = {"num_episodes": num_episodes, "seed": config.seed, "stage": config.stage}
        baselines = measure_baselines(config.path, **settings, on_fallback=partial(print, file=sys.stderr))
        print(json.dumps(baselines))
        return
    settings = {name: config[name] for name in ("seed", "greedy", "level", "which")}
    settings |= {"num_episodes": num_episodes, "on_fallback": partial(print, file=sys.stderr)}
    if config.cross_play is not None:
        result = cross_play_runs(config.path, config.cross_play, **settings)
        print_cross_play(result)
        print(json.dumps(result))
        return
    others = {name: config[name] for name in ("held_out", "step", "stage")}
    evaluation = evaluate_run(config.path, settings=config.evaluation, **settings, **others)
    print_evaluation(evaluation)
    print(json.dumps(evaluation))


if __name__ == "__main__":
    main()
