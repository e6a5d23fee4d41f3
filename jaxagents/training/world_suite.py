"""All text worlds, level by level: success of the expert, of random actions and of trained agents."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import hydra.utils
import jax
import jax.numpy as jnp
import numpy as np
from omegaconf import OmegaConf

from jaxagents.language.demonstrations import draw_action
from jaxagents.reporting.statistics import describe
from jaxagents.reporting.tables import describe_interval, print_table
from jaxagents.training.composition import compose
from jaxagents.training.config import config_hash
from jaxagents.training.evaluate import evaluate_run
from jaxagents.training.run_directory import CONFIG_FILE, load_config
from jaxagents.training.store import holds, kept
from jaxagents.types import Array, Environment, State, TimeStep

SCRIPTED = ("expert", "random")


def evaluate_worlds(
    config_folder: str | Path,
    *,
    names: Sequence[str] | None = None,
    agents: Mapping[str, str] | None = None,
    num_episodes: int = 256,
    seed: int = 2_000_003,
    greedy: bool | None = None,
    held_out: bool | None = None,
    folder: str | Path | None = None,
) -> Iterator[dict[str, Any]]:
    """Plays whole episodes in every world with the settings of `world=<name>`, at each of its levels.

    Args:
        config_folder: folder `configs`.
        names: option files of `world`; None: all text worlds with one seat.
        agents: run directories by column, or folders whose newest run counts; "{world}" stands for the option file.
        num_episodes: number of episodes of every cell, each with its own task.
        seed: seed of the tasks.
        greedy: applies to agents, see `evaluate_run`.
        held_out: False: tasks of the training split; None: True, and for agents as in their run's own evaluations.
        folder: folder that stores the rows of a world once it is complete; a world whose rows are stored, with the same
            settings and runs, is not played again. None: nothing is stored.

    Yields:
        A row per world and level: `world`, `level`, and the success of "expert", "random" and the agents as `mean`,
            `low` and `high`; None if there is no run of that world.

    Raises:
        ValueError: a world is not a text world, or has several seats.
    """
    settings = {"num_episodes": num_episodes, "seed": seed, "greedy": greedy, "held_out": held_out}
    for name in names or sorted(path.stem for path in Path(config_folder).glob("world/*.yaml")):
        config = compose(config_folder, f"world={name}").environment
        own: Any = OmegaConf.to_container(config, resolve=True)
        runs = {column: _run_of(place.replace("{world}", name), own) for column, place in (agents or {}).items()}
        asked = {"environment": own, "runs": {column: str(run) for column, run in runs.items()}, **settings}
        path, digest = Path(folder or "") / f"{name}.json", config_hash(asked)
        environment = None
        if folder is None or not holds(path, digest):
            spoken = str(config.get("_target_")).startswith("jaxagents.environments.text.")
            environment = hydra.utils.instantiate(config) if spoken else None
            if environment is None or environment.num_players != 1:
                if names:
                    raise ValueError(f"`names` must be worlds in words with one seat, got {name}; try frozenlake.")
                continue
        play = partial(_play_levels, name, environment, runs, settings)
        if folder is None:
            yield from play()
        else:
            yield from kept(path, digest, partial(_collect, play))["rows"]


def _collect(play: Callable[[], Iterator[dict[str, Any]]]) -> dict[str, Any]:
    return {"rows": [*play()]}


def _play_levels(
    name: str, environment: Environment, runs: Mapping[str, Path | None], settings: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    chosen: dict[str, Any] = {"num_episodes": settings["num_episodes"], "held_out": settings["held_out"] is not False}
    play = jax.jit(make_scripted(environment, **chosen))
    for level in range(environment.text.num_levels):
        key = jax.random.fold_in(jax.random.key(settings["seed"]), level)
        scripted = np.asarray(play(key, level), np.float64)
        row = {"world": name, "level": level} | dict(zip(SCRIPTED, map(describe, scripted), strict=True))
        for column, run in runs.items():
            played = None if run is None else evaluate_run(run, level=level, **settings)
            row[column] = played and played["metrics"]["success"]
        yield row


def make_scripted(environment: Environment, *, num_episodes: int, held_out: bool) -> Callable[[Array, Array], Array]:
    """Makes `(key, level int32 []) -> bool [2, num_episodes]`: the success of the expert, and of random actions."""
    interface = environment.text
    sample = interface.sample_held_out_task if held_out else environment.sample_task

    def play_one(key: Array, level: Array, by_expert: Array) -> Array:
        task_key, reset_key, turn_key = jax.random.split(key, 3)

        def act(carry: tuple[State, TimeStep], key: Array) -> tuple[tuple[State, TimeStep], Array]:
            (state, timestep), (expert_key, draw_key, step_key) = carry, jax.random.split(key, 3)
            drawn = draw_action(interface, draw_key, state, timestep.action_mask)
            action = jnp.where(by_expert, interface.expert(expert_key, state)[0], drawn)
            state, timestep = environment.step(step_key, state, action)
            return (state, timestep), timestep.info["success"] & timestep.terminated

        start = environment.reset(reset_key, sample(task_key, level))
        return jax.lax.scan(act, start, jax.random.split(turn_key, environment.max_steps))[1].any()

    def play(key: Array, level: Array) -> Array:
        keys, by_expert = jax.random.split(key, num_episodes), jnp.asarray([True, False])
        play_all = jax.vmap(jax.vmap(play_one, in_axes=(0, None, None)), in_axes=(None, None, 0))
        return play_all(keys, jnp.asarray(level, jnp.int32), by_expert)

    return play


def newest_run(place: str | Path) -> Path | None:
    """Returns a run directory itself, or the newest one in a folder; None if there is none."""
    files = [Path(place) / CONFIG_FILE, *Path(place).glob(f"*/{CONFIG_FILE}")]
    newest = max(filter(Path.is_file, files), key=lambda path: path.stat().st_mtime, default=None)
    return newest and newest.parent


def _run_of(place: str, environment: Mapping[str, Any]) -> Path | None:
    """Returns the newest run in a place if it was trained in this environment."""
    run = newest_run(place)
    return run if run is not None and load_config(run / CONFIG_FILE)["environment"] == environment else None


def print_worlds(rows: Sequence[Mapping[str, Any]]) -> None:
    """Prints the rows of `evaluate_worlds` as a table."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    cells = [(row["world"], str(row["level"]), *(describe_interval(row[name]) for name in columns[2:])) for row in rows]
    print_table("success on tasks of every world and level (95 % interval over episodes)", columns, cells)
