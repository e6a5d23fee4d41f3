"""Text episodes for reading in a terminal."""

from collections.abc import Sequence
from typing import Any, TextIO

import jax
import numpy as np
from rich.console import Console
from rich.text import Text

from jaxagents.data.schema import Trajectory, Turn
from jaxagents.data.trajectories import from_episodes
from jaxagents.environments.text.words import sentence
from jaxagents.types import Array, Environment, Episode, LanguagePolicy, Task, TimeStep

_STYLES = {
    "prompt": "magenta",
    "observation": "cyan",
    "thought": "italic yellow",
    "action": "bold green",
    "invalid": "bold red",
    "reward": "blue",
}
_INDENT = 13  # Columns of the names of roles.


def lay_out(text: str) -> str:
    """Breaks the text of an observation into lines: rows of a grid at "/", sentences at ".".

    Args:
        text: words with single spaces between them.

    Returns:
        The lines. Rows are broken if all of them have as many words as the first one; the text after the last row is on
        separate lines.
    """
    rows = [row.split() for row in f" {text} ".split(" / ")]
    width = len(rows[0])
    if len(rows) == 1 or not width or len(rows[-1]) < width or any(len(row) != width for row in rows[:-1]):
        return " ".join(text.split()).replace(" . ", " .\n")
    rest = " ".join(rows[-1][width:])
    lines = [" ".join(row[:width]) for row in rows]
    return "\n".join(lines + ([rest.replace(" . ", " .\n")] if rest else []))


def describe(trajectory: Trajectory) -> str:
    """Describes in a line how an episode ended."""
    end = {True: "success", False: "no success", None: "unfinished"}[trajectory.success]
    count = len(trajectory.turns)
    value = "" if trajectory.episode_return is None else f", return {trajectory.episode_return:.4g}"
    if (by_seat := describe_seats(trajectory)) is not None:
        value = f", {by_seat}"
    level = "" if trajectory.level is None else f", level {trajectory.level}"
    return f"{trajectory.id}: {trajectory.world}{level}, {end}{value}, {count} turn{'s' if count > 1 else ''}"


def describe_seats(trajectory: Trajectory) -> str | None:
    """Describes the total reward of every seat of a game; None for other episodes."""
    returns = trajectory.metadata.get("seat_returns")
    if returns is None:
        return None
    return ", ".join(f"{agent} {value:+.4g}" for agent, value in zip(trajectory.agents, returns))


def fold(turns: Sequence[Turn]) -> list[list[int]]:
    """Groups consecutive turns in which an agent sees the same, such as an unchanged board after a move into a wall.

    Args:
        turns: turns of an episode.

    Returns:
        Indices of the turns, grouped by equal observations.
    """
    runs: list[list[int]] = []
    for index, turn in enumerate(turns):
        before = turns[index - 1] if index else None
        if before is not None and (before.observation, before.agent) == (turn.observation, turn.agent):
            runs[-1].append(index)
        else:
            runs.append([index])
    return runs


def print_transcripts(trajectories: Sequence[Trajectory], stream: TextIO | None = None, title: str = "") -> None:
    """Prints episodes turn by turn, with a colour per role in a terminal.

    Args:
        trajectories: to print.
        stream: stream to write to; None for stdout.
        title: title above the episodes.
    """
    console = Console(file=stream)
    if title:
        console.print(Text(f"{title}\n", style="bold"), soft_wrap=True)
    for trajectory in trajectories:
        console.print(Text(describe(trajectory), style="bold"), soft_wrap=True)
        if trajectory.prompt:
            console.print(_line("prompt", trajectory.prompt), soft_wrap=True)
        for first, *rest in fold(trajectory.turns):
            lines = _turn_lines(trajectory.turns[first], trajectory.agents)
            lines += [line for i in rest for line in _turn_lines(trajectory.turns[i], trajectory.agents, again=True)]
            for line in lines:
                console.print(line, soft_wrap=True)
        console.print()


def answer_lines(turn: Turn) -> list[Text]:
    """Returns the lines of a turn after the observation."""
    lines = [] if turn.thought is None else [_line("thought", turn.thought)]
    action = turn.action or "(nothing)"
    lines.append(_line("action", action) if turn.valid else _line("action", f"{action}  (invalid)", style="invalid"))
    end = " (end)" * turn.terminated + " (cut)" * turn.truncated
    if turn.reward or end:
        lines.append(_line("reward", f"{turn.reward:+.4g}{end}"))
    return lines


def _turn_lines(turn: Turn, agents: Sequence[str], *, again: bool = False) -> list[Text]:
    """Returns the lines of a turn: the observation unless it is repeated, the thought, the action and the reward."""
    name = f"turn {turn.turn}" + (f", {agents[turn.agent]}" if len(agents) > 1 else "")
    if again:
        return [Text(f"{name}, the same observation", style="dim"), *answer_lines(turn)]
    return [Text(name, style="dim"), _line("observation", lay_out(turn.observation)), *answer_lines(turn)]


def _line(role: str, content: str, style: str | None = None) -> Text:
    indented = content.replace("\n", "\n" + " " * (_INDENT + 2))
    return Text.assemble((f"  {role:<{_INDENT}}", "dim"), (indented, _STYLES[style or role]))


def to_trajectories(
    environment: Environment, policy: LanguagePolicy, episode: Episode, **fields: Any
) -> list[Trajectory]:
    """Turns episodes of a policy into trajectories; `fields` as in `data.trajectories.from_episodes`."""
    return from_episodes(
        jax.device_get(episode),
        policy.tokenizer,
        world=environment.name,
        agents=agent_names(environment),
        frames=getattr(policy.lexicon, "frames", None),
        **fields,
    )


def make_turn(
    environment: Environment, number: int, before: TimeStep, action: Array | np.ndarray, after: TimeStep, **fields: Any
) -> Turn:
    """Makes the record of a turn in a text world.

    Args:
        environment: text world.
        number: index of the turn.
        before: time step that the player saw.
        action: word ids of the action.
        after: time step after the action.
        **fields: further fields of `Turn`.

    Returns:
        The turn of the player who acted.
    """
    interface: Any = environment.text
    player = 0 if before.player is None else int(before.player)
    return Turn(
        turn=number,
        observation=sentence(interface.words, before.observation),
        action=sentence(interface.words, action),
        agent=player,
        reward=float(np.atleast_1d(after.reward)[player if environment.num_players > 1 else 0]),
        valid=bool(after.info["valid"]),
        terminated=bool(after.terminated),
        truncated=bool(after.truncated),
        **fields,
    )


def make_trajectory(environment: Environment, turns: Sequence[Turn], task: Task, **fields: Any) -> Trajectory:
    """Makes the record of an episode of a text world from its turns and its task, with further fields."""
    return Trajectory(
        world=environment.name,
        turns=tuple(turns),
        prompt=prompt_of(environment, task),
        agents=agent_names(environment),
        # In a game, every player has a separate return.
        episode_return=sum(turn.reward for turn in turns) if environment.num_players == 1 else None,
        **fields,
    )


def prompt_of(environment: Environment, task: Task) -> str:
    """Returns the words before the first observation of a task; "" if the world has none."""
    interface: Any = environment.text
    return "" if interface.prompt is None else sentence(interface.words, interface.prompt(task))


def agent_names(environment: Environment) -> tuple[str, ...]:
    """Returns the roles of the players of a world."""
    seats = environment.num_players
    return ("agent",) if seats == 1 else tuple(f"player {seat}" for seat in range(seats))
