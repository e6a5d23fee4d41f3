"""Gains from reinforcement in text worlds: held-out success of each world's base agent, and after GRPO from it."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from jaxagents.papers.arms import TRAINED, Recipe, build_stages
from jaxagents.papers.seeds import train_seeds
from jaxagents.papers.starts import prepare_starts
from jaxagents.training.build import resolve
from jaxagents.training.composition import compose
from jaxagents.training.config import config_hash
from jaxagents.training.stages import stage_configs
from jaxagents.training.store import kept
from jaxagents.training.world_pages import GAINS_FOLDER

_BY_EPISODES = "jaxagents.language.collect.make_dialogue_evaluator"


def measure_gains(
    config_folder: str | Path,
    folder: str | Path,
    cache: str | Path,
    *,
    names: Sequence[str],
    seeds: Sequence[int],
    choices: Mapping[str, str] = {},
    base_seed: int = 0,
    num_episodes: int = 512,
    task_seed: int = 2_000_003,
    overrides: Sequence[str] = (),
    say: Callable[[str], Any] = print,
) -> Iterator[dict[str, Any]]:
    """Trains `world=<name> algorithm=grpo` for every world and seed: the first stage once, the others from its end.

    Both are evaluated by sampled actions on the same held-out tasks, which neither stage has seen. Stored results of
    the same settings are not trained again; a call that was killed resumes with the world and seed where it stopped.

    Args:
        config_folder: `configs`.
        folder: folder with one file for every world and seed.
        cache: folder of base agents.
        names: option files of `world`.
        seeds: seeds of GRPO.
        choices: overrides by world that replace `world=<name> algorithm=grpo`.
        base_seed: seed of the first stage, from whose end all seeds of a world start.
        num_episodes: number of episodes of an evaluation, each on a separate task.
        task_seed: seed of these tasks.
        overrides: further overrides, for trials.
        say: function that reports what is trained.

    Yields:
        A row per world and seed: `world`, `seed`, `num_episodes`, digest of the `base_params`, the metrics of `base`
            and `grpo` by name, and `minutes` and `base_minutes`, each as wall-clock time and as CPU time over all
            cores, compilation included; the latter are None if the base was already stored.

    Raises:
        ValueError: a world has no text episodes on which it could be evaluated.
        FloatingPointError: a stage diverged.
    """
    judged = {"greedy": "false", "num_episodes": num_episodes, "seed": task_seed, "final_episodes": "null"}
    judged |= {"every_steps": 10**9, "evaluator.held_out": "true"}
    further = [*(f"evaluation.{name}={value}" for name, value in judged.items()), *overrides]
    for name in names:
        arguments = choices.get(name, f"world={name} algorithm=grpo").split()
        if compose(config_folder, *arguments).evaluation.evaluator.get("_target_") != _BY_EPISODES:
            raise ValueError(
                f"`names` must be worlds in words whose episodes succeed or fail, got {name}; try frozenlake."
            )
        config = resolve(compose(config_folder, *arguments, *further))
        stages = stage_configs(config)
        content = [{part: node[part] for part in (*TRAINED, "training", "evaluation")} for node in stages.values()]
        digest = config_hash({"stages": content, "base_seed": base_seed})
        for seed in seeds:
            path = Path(folder) / GAINS_FOLDER / f"{name}-{seed}.json"
            own = {"world": name, "seed": seed, "num_episodes": num_episodes}
            yield kept(path, digest, partial(_train, own, Recipe(config, stages), base_seed, cache, say))


def _train(
    own: Mapping[str, Any], recipe: Recipe, base_seed: int, cache: str | Path, say: Callable[[str], Any]
) -> dict[str, Any]:
    """Trains the row of a world and seed; `own` is its initial content."""
    first, *others = recipe.stages
    heard: list[str] = []  # Stays empty if the base was already stored.

    def tell(text: str) -> None:
        heard.append(text)
        say(text)

    began = _now()
    recipe_of_base = recipe._replace(stages={first: recipe.stages[first]})
    base = prepare_starts(recipe_of_base, [base_seed], cache, cache, say=tell)[base_seed]
    based = _now()
    stages = build_stages(recipe._replace(stages={name: recipe.stages[name] for name in others}), 1)
    trained = train_seeds(stages, [own["seed"]], base.params, first_stage=1)
    if trained.diverged[0]:
        raise FloatingPointError(
            f"{recipe.config['name']} diverged with the seed {own['seed']}; try a smaller learning rate."
        )
    ended, curves = _now(), trained.curves[0]
    return {
        **own,
        "base_params": base.digest,
        "base": _plain(base.evaluation),
        "grpo": _plain({name: curve["values"][-1] for name, curve in curves.items()}),
        "minutes": {name: ended[name] - based[name] for name in ended},
        "base_minutes": {name: based[name] - began[name] for name in ended} if heard else None,
    }


def _now() -> dict[str, float]:
    return {"clock": time.monotonic() / 60.0, "processors": time.process_time() / 60.0}


def _plain(metrics: dict[str, float]) -> dict[str, float]:
    return {name.removeprefix("eval/"): value for name, value in metrics.items() if name.startswith("eval/")}
