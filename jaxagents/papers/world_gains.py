"""What reinforcement adds in worlds in words: held-out success of the base agent of each, and after GRPO from it."""

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
    """Trains `world=<name> algorithm=grpo` for every world and seed: the first stage once, what follows from its end.

    Both are judged by sampled actions on the same held-out tasks, which neither stage has seen. What is there, of the
    same settings, is not trained again; a call that was killed goes on with the world and seed that it was at.

    Args:
        config_folder: `configs`.
        folder: where a file of every world and seed is kept.
        cache: where base agents are kept.
        names: option files of `world`.
        seeds: of GRPO.
        choices: by world, in place of `world=<name> algorithm=grpo`.
        base_seed: of the first stage, whose end all seeds of a world start from.
        num_episodes: of an evaluation, each on a task of its own.
        task_seed: of these tasks.
        overrides: further ones, for trials.
        say: reports what is trained.

    Yields:
        A row per world and seed: `world`, `seed`, `num_episodes`, digest of the `base_params`, the metrics of `base`
        and `grpo` by name, and `minutes` and `base_minutes`, of the clock and of all processors together, compilation
        included; the latter are None where the base was there.

    Raises:
        ValueError: a world has no episodes in words by which it is judged.
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
    """Trains the row of a world and seed; `own` is what it begins with."""
    first, *others = recipe.stages
    heard: list[str] = []  # Where there is nothing to say, the base was there.

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
