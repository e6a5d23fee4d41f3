"""Markdown pages on text worlds: one of success rates, and one per world, with its sizes and an episode."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import hydra.utils
import jax
import jax.numpy as jnp
import numpy as np
from omegaconf import OmegaConf

from jaxagents.environments.text.words import sentence
from jaxagents.reporting.statistics import describe
from jaxagents.reporting.tables import describe_interval
from jaxagents.training.composition import compose
from jaxagents.training.store import read_fields
from jaxagents.types import Array, Environment

GAINS_FOLDER = "grpo"
_OPENING = """# Worlds in words

Written by `python experiments/evaluate.py suite=worlds worlds.folder=<this folder>`; do not edit. The share of episodes
on held-out tasks in which the world's expert and random admissible actions succeed (95 % interval over episodes), level
by level, in the worlds of one seat that were played so far, as `world=<name>` sets them. A world whose rows are there
is not played again, and one that is missing has several seats or was not played yet.
"""

_OPENING_OF_GAINS = """
## What GRPO adds

Written by `python experiments/evaluate.py suite=grpo grpo.folder=<this folder> grpo.names=[...]`. Every world has one
base agent, the end of the first stage of `world=<name> algorithm=grpo`, and GRPO starts from it with every seed. Both
are judged by sampled actions in the same episodes on held-out tasks, by their success and by their returns, base first.
In worlds of several seats returns count: success may only say that a game came to its end. What follows a base is the
mean over seeds with its 95 % interval, and so is what was gained. Minutes are of the clock, beside other work, those of
GRPO the longest of the seeds, compilation included; the last column is those of all processors together. Which worlds
have no row, or gain less than ten points, and why, is in `experiments/docs/results.md`, Worlds in words.
"""
GAIN_COLUMNS = (
    *("world", "seeds", "episodes", "base", "after GRPO", "gain", "returns", "gain of returns"),
    *("minutes of the base", "minutes of GRPO", "processor minutes"),
)


def write_world_table(folder: str | Path) -> Path:
    """Writes the tables of the rows that `evaluate_worlds` and `measure_gains` stored; returns their path."""
    rows = [row for path in sorted(Path(folder).glob("*.json")) for row in read_fields(path)["rows"]]
    columns = [column for column in dict.fromkeys(column for row in rows for column in row) if column != "level"]
    columns = [column for column in columns if any(row.get(column) is not None for row in rows)]
    cells = [
        [f"`{row['world']}`", str(row["level"]), *(describe_interval(row.get(one)) for one in columns[1:])]
        for row in rows
    ]
    lines = [_OPENING, *_table([*_head([columns[0], "level", *columns[1:]]), *cells])] if rows else []
    gains = [read_fields(path) for path in sorted(Path(folder, GAINS_FOLDER).glob("*.json"))]
    if gains:
        marked = [[f"`{name}`", *others] for name, *others in gain_rows(gains)]
        lines += [_OPENING_OF_GAINS, *_table([*_head(GAIN_COLUMNS), *marked])]
    path = Path(folder) / "README.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*lines, ""]))
    return path


def gain_rows(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Returns the texts of `GAIN_COLUMNS` by world, from the rows that `measure_gains` yields."""
    rows_of_gains = []
    for name in dict.fromkeys(row["world"] for row in rows):
        own = [row for row in rows if row["world"] == name]
        gained, won = (
            describe_interval(describe(np.asarray([row["grpo"][metric] - row["base"][metric] for row in own])))
            for metric in ("success", "episode_return")
        )
        success = [describe(np.asarray([row[stage]["success"] for row in own])) for stage in ("base", "grpo")]
        paid = [np.mean([row[stage]["episode_return"] for row in own]) for stage in ("base", "grpo")]
        minutes = [[row["minutes"][unit] for row in own] for unit in ("clock", "processors")]
        based = [row["base_minutes"]["clock"] for row in own if row["base_minutes"]]
        rows_of_gains.append(
            [
                *(name, ", ".join(str(row["seed"]) for row in own), str(own[0]["num_episodes"])),
                *(*map(describe_interval, success), gained, f"{paid[0]:.3g}, {paid[1]:.3g}", won),
                "-" if not based else f"{max(based):.1f}",
                *(f"{max(values):.1f}" for values in minutes),
            ]
        )
    return rows_of_gains


def write_world_pages(folder: str | Path, config_folder: str | Path, rows: Sequence[Mapping[str, Any]]) -> list[Path]:
    """Writes `<name>.md` for each world of a table, with the settings of `world=<name>`.

    Args:
        folder: folder of the pages; it is created.
        config_folder: folder `configs`.
        rows: rows that `evaluate_worlds` yields.

    Returns:
        Paths of the files.
    """
    names, files = dict.fromkeys(row["world"] for row in rows), []
    Path(folder).mkdir(parents=True, exist_ok=True)
    for name in names:
        files.append(Path(folder) / f"{name}.md")
        files[-1].write_text(world_page(config_folder, name, [row for row in rows if row["world"] == name]))
    return files


def world_page(config_folder: str | Path, name: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Writes the page of a world, with its rows of a table, as Markdown."""
    config = compose(config_folder, f"world={name}").environment
    environment = hydra.utils.instantiate(config)
    comments = [
        line.removeprefix("#").strip()
        for line in (Path(config_folder) / "world" / f"{name}.yaml").read_text().splitlines()
        if line.startswith("#") and "@package" not in line
    ]
    plain: Any = OmegaConf.to_container(config, resolve=True)
    settings = {key: value for key, value in plain.items() if key != "_target_"}
    lines = [f"# {name}", "", *comments, "", *_sizes(environment, settings)]
    columns = [column for column in rows[0] if column != "world"]
    cells = [[str(row[one]) if one == "level" else describe_interval(row[one]) for one in columns] for row in rows]
    lines += ["", "## Success", "", *_table([columns, ["---"] * len(columns), *cells])]
    lines += ["", "## An episode of the expert, on a held-out task", "", "```", *_transcript(environment), "```", ""]
    return "\n".join(lines)


def _head(columns: Sequence[str]) -> list[Sequence[str]]:
    return [columns, ["---"] * len(columns)]


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in rows]


def _sizes(environment: Environment, settings: Mapping[str, Any]) -> list[str]:
    interface = environment.text
    listed = "cannot be listed" if interface.actions is None else str(len(interface.actions))
    sizes = {
        "words": len(interface.words),
        "longest observation": f"{environment.observation_space.shape[0]} words",
        "longest action": f"{environment.action_space.shape[0]} words",
        "actions": listed,
        "turns": environment.max_steps,
        "seats": environment.num_players,
        "levels": interface.num_levels,
        "held out": settings.get("held_out_fraction", "as its parts say"),
        "settings": ", ".join(f"{key}={value}" for key, value in settings.items()),
    }
    return _table([("", ""), ("---", "---"), *((key, str(value)) for key, value in sizes.items())])


def _transcript(environment: Environment) -> list[str]:
    """Plays an episode of the expert on a held-out task; returns lines of observations, thoughts and actions."""
    interface, words = environment.text, partial(sentence, environment.text.words)
    task_key, reset_key, key = jax.random.split(jax.random.key(0), 3)
    task = jax.jit(interface.sample_held_out_task)(task_key, jnp.int32(0))
    state, timestep = jax.jit(environment.reset)(reset_key, task)
    act = jax.jit(_make_act(environment))
    lines = [] if interface.prompt is None else [f"prompt: {words(interface.prompt(task))}"]
    for turn in range(environment.max_steps):
        seat = "" if timestep.player is None else f" {int(timestep.player)}"
        lines.append(f"world{seat}: {words(timestep.observation)}")
        (state, timestep), action, thought = act(jax.random.fold_in(key, turn), state)
        lines += [] if thought is None else [f"thought{seat}: {words(thought)}"]
        lines.append(f"agent{seat}: {words(action)}")
        if timestep.terminated | timestep.truncated:
            break
    return [*lines, f"reward of the last turn: {timestep.reward.tolist()}"]


def _make_act(environment: Environment) -> Callable[[Array, Any], Any]:
    def act(key: Array, state: Any) -> Any:
        expert_key, step_key = jax.random.split(key)
        action, thought = environment.text.expert(expert_key, state)
        return environment.step(step_key, state, action), action, thought

    return act
