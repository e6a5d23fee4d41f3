"""Games of text that TextWorld makes up (Cote et al., 2018): rooms, things, doors and a quest."""

import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Any

from jaxagents.environments.adapters.commands import CommandGame, Scene, Sizes, make_command_environment
from jaxagents.environments.adapters.importing import import_suite
from jaxagents.environments.host import HostEnvironment


def make_environment(
    *,
    num_rooms: int = 2,
    num_objects: int = 3,
    quest_length: int = 2,
    num_games: int = 4,
    max_steps: int = 30,
    processes: bool = False,
    **sizes: Any,
) -> HostEnvironment:
    """Makes an environment of TextWorld games, made up and compiled when the first episode starts.

    Args:
        num_rooms: of a game.
        num_objects: of a game.
        quest_length: commands that the quest needs.
        num_games: from which episodes are drawn.
        max_steps: truncates episodes.
        processes: every simulator in a process of its own.
        **sizes: of `commands.Sizes`.

    Returns:
        The environment; the reward is the growth of the score, 1 in all.

    Raises:
        ModuleNotFoundError: TextWorld is not installed.
    """
    suite = import_suite("textworld", extra="host")

    def make_game() -> CommandGame:
        folder = Path(tempfile.mkdtemp(prefix="textworld"))
        env, score = None, 0.0
        wanted = suite.EnvInfos(
            admissible_commands=True, score=True, max_score=True, won=True, inventory=True, objective=True
        )

        def file_of(number: int) -> str:
            path = folder / f"game_{number}.z8"
            if not path.exists():
                options = suite.GameOptions()
                options.nb_rooms, options.nb_objects, options.quest_length = num_rooms, num_objects, quest_length
                options.seeds, options.path = number, str(path)
                suite.make(options)
            return str(path)

        def scene(state: Any, over: bool = False) -> Scene:
            nonlocal score
            gained, score = state["score"] / max(state["max_score"], 1) - score, state["score"] / state["max_score"]
            text = f"{state['objective']} {state['feedback']} {state['inventory']}"
            return Scene(text, state["admissible_commands"], gained, over=over, success=bool(state["won"]))

        def start(seed: int) -> Scene:
            nonlocal env, score
            if env is None:
                env = suite.start(file_of(seed % num_games), wanted)
            else:
                env.load(file_of(seed % num_games))
            score = 0.0
            return scene(env.reset())

        def send(command: str) -> Scene:
            state, _, done = env.step(command)
            return scene(state, done)

        def close() -> None:
            if env is not None:
                env.close()
            shutil.rmtree(folder, ignore_errors=True)

        weakref.finalize(send, shutil.rmtree, folder, ignore_errors=True)
        return CommandGame(start=start, send=send, close=close)

    return make_command_environment(
        "TextWorld", make_game, sizes=Sizes(**sizes), max_steps=max_steps, processes=processes
    )
