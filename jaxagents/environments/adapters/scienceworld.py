"""Elementary-school experiments of ScienceWorld (Wang et al., 2022), a simulator in Java."""

import shutil
from typing import Any

from jaxagents.environments.adapters.commands import CommandGame, Scene, Sizes, make_command_environment
from jaxagents.environments.adapters.importing import import_suite, require_name
from jaxagents.environments.host import HostEnvironment


def make_environment(
    task: str, *, simplification: str = "easy", max_steps: int = 50, processes: bool = False, **sizes: Any
) -> HostEnvironment:
    """Makes an environment of ScienceWorld; the reward is the increase of the score, with a total of 1.

    Every episode is a variation of the task from its training set.

    Args:
        task: ScienceWorld's name, for example "find-living-thing".
        simplification: simplification of the simulator: "easy", or "" for none.
        max_steps: maximum steps after which episodes are truncated.
        processes: whether every simulator runs in a separate process.
        **sizes: arguments of `commands.Sizes`.

    Returns:
        The environment.

    Raises:
        ModuleNotFoundError: ScienceWorld is not installed.
        FileNotFoundError: Java is missing.
        ValueError: `task` is unknown.
    """
    suite = import_suite("scienceworld", extra="host")
    if shutil.which("java") is None:
        raise FileNotFoundError(
            "`java` must be installed for ScienceWorld, got none; run apt-get install default-jre-headless."
        )
    require_name(task, map(suite.utils.infer_task, suite.constants.ID2TASK), "ScienceWorld")

    def make_game() -> CommandGame:
        game = suite.ScienceWorldEnv("", envStepLimit=max_steps)
        score = 0.0

        def scene(text: str, info: dict[str, Any]) -> Scene:
            nonlocal score
            gained, score = max(info["score"], 0) / 100.0 - score, max(info["score"], 0) / 100.0
            text = f"{info['taskDesc']} {text} {info['inv']} {info['look']}"
            # A wrong last step ends a game with a score below zero.
            return Scene(text, info["valid"], gained, over=bool(info["ended"]), success=info["score"] >= 100)

        def start(seed: int) -> Scene:
            nonlocal score
            game.load(task, 0, simplification)
            variations = game.get_variations_train()
            game.load(task, variations[seed % len(variations)], simplification)
            score = 0.0
            text, info = game.reset()
            return scene(text, info | {"ended": False})._replace(reward=0.0)

        def send(command: str) -> Scene:
            text, _, _, info = game.step(command)
            return scene(text, info | {"ended": info["score"] >= 100 or info["score"] < 0})

        return CommandGame(start=start, send=send, close=game.close)

    name = f"ScienceWorld {task}"
    return make_command_environment(name, make_game, sizes=Sizes(**sizes), max_steps=max_steps, processes=processes)
