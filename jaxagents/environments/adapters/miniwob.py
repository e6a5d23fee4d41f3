"""Tasks on small web pages from MiniWoB++ (Liu et al., 2018), in headless Chromium."""

import os
import shutil
from typing import Any

from jaxagents.environments.adapters.commands import CommandGame, Scene, Sizes, make_command_environment
from jaxagents.environments.adapters.importing import import_suite, require_name
from jaxagents.environments.host import HostEnvironment

_PROGRAMS = {"MINIWOB_CHROME_BINARY": "chromium", "MINIWOB_CHROMEDRIVER": "chromedriver"}


def make_environment(task: str, *, max_steps: int = 10, processes: bool = False, **sizes: Any) -> HostEnvironment:
    """Makes an environment of MiniWoB++ in which every element of the page can be clicked; the reward is the suite's.

    Args:
        task: MiniWoB++'s name, for example "click-test-2".
        max_steps: maximum steps after which episodes are truncated.
        processes: whether every browser runs in a separate process.
        **sizes: arguments of `commands.Sizes`.

    Returns:
        The environment.

    Raises:
        ModuleNotFoundError: MiniWoB++ is not installed.
        FileNotFoundError: Chromium or its driver is missing.
        ValueError: `task` is unknown.
    """
    suite = import_suite("miniwob", extra="host")
    gymnasium = import_suite("gymnasium", extra="host")
    gymnasium.register_envs(suite)
    known = [name.removeprefix("miniwob/").removesuffix("-v1") for name in gymnasium.registry if "miniwob/" in name]
    require_name(task, known, "MiniWoB++")
    for variable, program in _PROGRAMS.items():
        path = os.environ.get(variable) or shutil.which(program)
        if path is None:
            raise FileNotFoundError(
                f"`{program}` must be installed for MiniWoB++, got none; run apt-get install chromium chromium-driver."
            )
        os.environ[variable] = path

    def make_game() -> CommandGame:
        env = gymnasium.make(f"miniwob/{task}-v1")
        elements: dict[str, int] = {}

        def scene(observation: dict[str, Any], reward: float = 0.0, over: bool = False) -> Scene:
            elements.clear()
            for element in observation["dom_elements"]:
                if element["ref"] > 0:
                    words = f"{element['tag']} {element['text'] or element['value'] or element['id']}"
                    elements.setdefault(f"click {words}", int(element["ref"]))
            text = " ".join([observation["utterance"], *(e["text"] for e in observation["dom_elements"])])
            return Scene(text, list(elements), float(reward), over=over, success=over and reward > 0)

        def start(seed: int) -> Scene:
            return scene(env.reset(seed=seed)[0])

        def send(command: str) -> Scene:
            if command not in elements:  # The page is empty: nothing can be clicked.
                action = env.unwrapped.create_action(suite.action.ActionTypes.NONE)
            else:
                action = env.unwrapped.create_action(suite.action.ActionTypes.CLICK_ELEMENT, ref=elements[command])
            observation, reward, terminated, truncated, _ = env.step(action)
            return scene(observation, reward, terminated or truncated)

        return CommandGame(start=start, send=send, close=env.close)

    name = f"MiniWoB++ {task}"
    return make_command_environment(name, make_game, sizes=Sizes(**sizes), max_steps=max_steps, processes=processes)
