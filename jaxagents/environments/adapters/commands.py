"""Text games on the host, in which an agent picks one of the commands that the game offers."""

import re
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxagents.environments.adapters import gymnasium as adapter
from jaxagents.environments.adapters.importing import import_suite
from jaxagents.environments.host import HostEnvironment

_WORD = re.compile(r"[a-z0-9]+")


class Scene(NamedTuple):
    """State of a game as shown to a player.

    Attributes:
        text: text to read.
        commands: possible commands, in any order.
        reward: reward of the previous command.
        over: whether the game is over.
        success: whether the goal has been reached.
    """

    text: str
    commands: Sequence[str]
    reward: float = 0.0
    over: bool = False
    success: bool = False


class CommandGame(NamedTuple):
    """One simulator of a game.

    Attributes:
        start: `(seed) -> Scene`: starts a new game.
        send: `(command) -> Scene`: sends a command.
        close: closes the simulator.
    """

    start: Callable[[int], Scene]
    send: Callable[[str], Scene]
    close: Callable[[], None]


class Sizes(NamedTuple):
    """How much of a game an agent reads; longer texts are truncated.

    Attributes:
        vocab_size: number of word ids, assigned by hash; 0 is no word.
        text_words: maximum words of the text.
        num_commands: maximum number of offered commands; of more, the first in alphabetical order are kept.
        command_words: maximum words of a command.
    """

    vocab_size: int = 4096
    text_words: int = 128
    num_commands: int = 64
    command_words: int = 8


def make_command_environment(
    name: str, make_game: Callable[[], CommandGame], *, sizes: Sizes, max_steps: int, processes: bool
) -> HostEnvironment:
    """Makes an environment of a text game.

    Observations are the word ids of the text, `text` int32 `[K]`, and of the commands, `commands` int32 `[A, M]`;
    actions are indices of commands, and the action mask tells which of them exist.

    Args:
        name: name for logs and messages.
        make_game: function that makes a simulator.
        sizes: sizes of observations and actions.
        max_steps: maximum steps after which episodes are truncated.
        processes: see `adapters.gymnasium.make_environment`.

    Returns:
        The environment.
    """
    return adapter.make_environment(
        name, max_steps=max_steps, processes=processes, make=lambda: _make_gymnasium(make_game, sizes)
    )


def encode_words(text: str, *, vocab_size: int, length: int) -> np.ndarray:
    """Computes ids of the words of a text, int32 `[length]`: a checksum of each, in 1 to `vocab_size - 1`; 0 pads."""
    ids = np.zeros(length, np.int32)
    words = _WORD.findall(text.lower())[:length]
    ids[: len(words)] = [zlib.crc32(word.encode()) % (vocab_size - 1) + 1 for word in words]
    return ids


def _make_gymnasium(make_game: Callable[[], CommandGame], sizes: Sizes) -> Any:
    gymnasium = import_suite("gymnasium", extra="host")
    spaces = gymnasium.spaces

    class Game(gymnasium.Env):  # type: ignore[name-defined]
        """The game as a `gymnasium.Env`; the simulator is started with the first episode."""

        observation_space = spaces.Dict(
            {
                "text": spaces.Box(0, sizes.vocab_size - 1, (sizes.text_words,), np.int32),
                "commands": spaces.Box(0, sizes.vocab_size - 1, (sizes.num_commands, sizes.command_words), np.int32),
                "action_mask": spaces.Box(0, 1, (sizes.num_commands,), np.int8),
            }
        )
        action_space = spaces.Discrete(sizes.num_commands)
        game: CommandGame | None = None
        scene: Scene | None = None

        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict, dict]:
            super().reset(seed=seed)
            self.game = self.game or make_game()
            return self._show(self.game.start(int(self.np_random.integers(2**31)))), {"success": False}

        def step(self, action: Any) -> tuple[dict, float, bool, bool, dict]:
            self._show(self.game.send(self.scene.commands[int(action)]))
            scene = self.scene
            return self._observation, float(scene.reward), bool(scene.over), False, {"success": bool(scene.success)}

        def close(self) -> None:
            if self.game is not None:
                self.game.close()
                self.game = None

        def _show(self, scene: Scene) -> dict[str, np.ndarray]:
            commands = sorted(set(scene.commands))[: sizes.num_commands] or ["wait"]
            self.scene = scene._replace(commands=commands)
            rows = np.zeros((sizes.num_commands, sizes.command_words), np.int32)
            options = {"vocab_size": sizes.vocab_size, "length": sizes.command_words}
            rows[: len(commands)] = [encode_words(command, **options) for command in commands]
            self._observation = {
                "text": encode_words(scene.text, vocab_size=sizes.vocab_size, length=sizes.text_words),
                "commands": rows,
                "action_mask": (np.arange(sizes.num_commands) < len(commands)).astype(np.int8),
            }
            return self._observation

    return Game()
