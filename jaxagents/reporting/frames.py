"""Frames of episodes: text for a terminal, and pictures for a GIF."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import jax
import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont
from rich.console import Console
from rich.live import Live
from rich.text import Text

from jaxagents.environments.checks import require_level
from jaxagents.environments.host import HostEnvironment
from jaxagents.environments.wrappers import episode_statistics
from jaxagents.ops.checks import require_positive
from jaxagents.reporting.boards import draw_board, find_board
from jaxagents.rollouts.evaluate import play_episode
from jaxagents.rollouts.host import play_host_episode
from jaxagents.types import Array, Environment, Params, Policy, State, TimeStep

_BACKGROUND, _CELL, _INK, _QUIET = (20, 24, 29), (35, 42, 50), (228, 231, 235), (154, 165, 177)
_CHANNELS = np.array(  # One colour per channel, repeated if there are more channels.
    [
        *((124, 196, 232), (245, 200, 80), (120, 134, 150), (226, 109, 92), (126, 200, 140)),
        *((182, 140, 224), (240, 150, 190), (160, 120, 90), (235, 235, 235), (90, 160, 160)),
    ],
    np.float64,
)
_SIDE = 320  # Approximate pixels of the longer side of a grid.
_FONT_SIZE, _MARGIN = 15, 12  # In pixels.
_SHOWN = 64  # Maximum numbers shown of an observation.
_MOST_PRINTED, _FIRST_PRINTED = 40, 20  # Frames outside of a terminal: of more than so many, the first and the last.
_HOLD = 1.0  # Seconds for which the last frame of an episode is shown.


class Frame(NamedTuple):
    """One moment of an episode.

    Attributes:
        caption: step, reward and return.
        text: text frame of the environment, or the numbers of the observation.
        grid: uint8 `[H, W, 3]`, one colour per cell, if the observation is a grid; else None.
        last: whether the episode is over, or was cut.
    """

    caption: str
    text: str
    grid: np.ndarray | None
    last: bool


class PlayedEpisode(NamedTuple):
    """Frames of an episode, its return (a list for games with several players) and its length."""

    frames: list[Frame]
    episode_return: float | list[float]
    episode_length: int


def play(
    environment: Environment,
    policy: Policy,
    params: Params | None,
    *,
    seed: int,
    num_episodes: int = 1,
    greedy: bool = True,
    max_steps: int | None = None,
    level: int | None = None,
    title: str = "",
) -> list[PlayedEpisode]:
    """Plays episodes and draws them.

    Args:
        environment: see `play_episode`.
        policy: see `play_episode`.
        params: parameters of the policy; None: those before training.
        seed: seed of tasks and randomness; episode i folds in i.
        num_episodes: number of episodes, played one after the other.
        greedy: see `play_episode`.
        max_steps: maximum number of steps after which episodes are cut; None: no limit.
        level: difficulty of the tasks.
        title: text before every caption.

    Returns:
        The episodes.

    Raises:
        ValueError: `num_episodes` is not positive.
    """
    require_positive("num_episodes", num_episodes)
    require_level(environment, level)
    on_host = isinstance(environment, HostEnvironment)
    tracked = environment if on_host else episode_statistics(environment)
    play_one: Any = play_host_episode if on_host else play_episode
    params = policy.init(jax.random.key(seed)) if params is None else params
    played = []
    for index in range(num_episodes):
        key = jax.random.fold_in(jax.random.key(seed), index)
        episode = play_one(tracked, policy, params, key, greedy=greedy, max_steps=max_steps, level=level)
        info = episode[-1][1].info
        number = f"episode {index + 1}" if num_episodes > 1 else ""
        played.append(
            PlayedEpisode(
                frames=draw_episode(tracked, episode, title="  ".join(filter(None, [title, number]))),
                episode_return=np.asarray(info["episode_return"]).tolist(),
                episode_length=int(info["episode_length"]),
            )
        )
    return played


def draw_episode(environment: Environment, episode: Sequence[tuple[State, TimeStep]], title: str = "") -> list[Frame]:
    """Draws every time step of an episode.

    Args:
        environment: environment with `episode_statistics`.
        episode: result of `play_episode`.
        title: text before every caption.

    Returns:
        The frames. Observations `[H, W, C]` with all values in [0, 1], of a single agent with a single view, are drawn
        as a grid of cells in the colour of their lowest channel that is set.
    """
    episode = [(state, jax.device_get(timestep)) for state, timestep in episode]
    grids: list[np.ndarray | None] = [None] * len(episode)
    if all(_is_grid(environment, timestep) for _, timestep in episode):
        grids = [color_cells(timestep.observation) for _, timestep in episode]
    frames = []
    for step, ((state, timestep), grid) in enumerate(zip(episode, grids)):
        reward = "" if step == 0 else f"reward {_number(timestep.reward)}"
        parts = [title, f"step {step}", f"return {_number(timestep.info['episode_return'])}", reward]
        text = environment.render(state) if environment.render else describe_observation(timestep.observation)
        frames.append(Frame("  ".join(filter(None, parts)), text, grid, last=step == len(episode) - 1))
    return frames


def color_cells(observation: np.ndarray) -> np.ndarray:
    """Colours each cell of a grid by its lowest channel that is set.

    Args:
        observation: `[H, W, C]` in [0, 1]; a value between 0 and 1 is the opacity of the channel over what lies below.

    Returns:
        uint8 `[H, W, 3]`.
    """
    observation = np.asarray(observation, np.float64)
    cells = np.broadcast_to(np.array(_CELL, np.float64), (*observation.shape[:2], 3))
    for channel in reversed(range(observation.shape[2])):
        strength = observation[..., channel, None]
        cells = cells + strength * (_CHANNELS[channel % len(_CHANNELS)] - cells)
    return np.round(cells).astype(np.uint8)


def describe_observation(observation: Any) -> str:
    """Lists the numbers of an observation, eight per line, for worlds that do not draw themselves."""
    lines = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(observation):
        values = np.asarray(leaf)
        name = f"observation{jax.tree_util.keystr(path)}"
        lines.append(f"{name} {values.dtype}{list(values.shape)}")
        numbers = values.ravel()[:_SHOWN].astype(np.float64)
        lines += ["".join(f"{value:10.4g}" for value in numbers[i : i + 8]) for i in range(0, numbers.size, 8)]
        if values.size > _SHOWN:
            lines.append(f"  and {values.size - _SHOWN} more")
    return "\n".join(lines)


def show_frames(frames: Sequence[Frame], *, delay: float, stream: TextIO | None = None) -> None:
    """Shows frames in place in a terminal; elsewhere prints them one below the other, of many the first and the last.

    Args:
        frames: frames in order.
        delay: seconds per frame.
        stream: stream to write to; None for stdout.
    """
    console = Console(file=stream)
    if not console.is_terminal:
        cut = len(frames) > _MOST_PRINTED
        for frame in frames[:_FIRST_PRINTED] if cut else frames:
            print(f"{frame.caption}\n{frame.text}\n", file=console.file)
        if cut:
            print(f"... {len(frames) - _FIRST_PRINTED - 1} more frames, and at the end\n", file=console.file)
            print(f"{frames[-1].caption}\n{frames[-1].text}\n", file=console.file)
        return
    with Live(console=console, auto_refresh=False) as live:
        for frame in frames:
            live.update(Text(f"{frame.caption}\n{frame.text}"), refresh=True)
            time.sleep(delay)


def write_gif(path: str | Path, frames: Sequence[Frame], *, fps: float, beside: Sequence[Frame] = ()) -> Path:
    """Writes frames as an animated GIF that loops.

    Args:
        path: path of the file; its folder is created if missing.
        frames: frames in order; those with a grid or a board show it, the others their text.
        fps: frames per second, up to 50, the highest rate that viewers support.
        beside: frames of another film, shown on the left; the shorter one stays at its last frame.

    Returns:
        Absolute path of the file.

    Raises:
        ValueError: `fps` is out of range, or there are no frames.
    """
    if not 0 < fps <= 50:
        raise ValueError(f"`fps` must be above 0 and at most 50, got {fps}; try 15.")
    if not frames:
        raise ValueError("`frames` must not be empty, got none.")
    path = Path(path).resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    pictures = draw_pictures(frames)
    milliseconds = [round(1000 * _HOLD if frame.last else 1000 / fps) for frame in frames]
    if beside:
        pictures = join_pictures(draw_pictures(beside), pictures)
        milliseconds = [round(1000 / fps)] * (len(pictures) - 1) + [round(1000 * _HOLD)]
    pictures[0].save(path, format="GIF", save_all=True, append_images=pictures[1:], duration=milliseconds, loop=0)
    return path


def draw_pictures(frames: Sequence[Frame]) -> list[Image.Image]:
    """Draws frames as pictures of one size, the caption on top: grids and boards as cells, others as text."""
    font = ImageFont.truetype(f"{matplotlib.get_data_path()}/fonts/ttf/DejaVuSansMono.ttf", _FONT_SIZE)
    contents = [_draw_content(frame, font) for frame in frames]
    caption_width = max(int(font.getlength(frame.caption)) for frame in frames)
    width = max(caption_width, *(content.width for content in contents)) + 2 * _MARGIN
    top = _FONT_SIZE + 2 * _MARGIN
    height = top + max(content.height for content in contents) + _MARGIN
    pictures = []
    for frame, content in zip(frames, contents):
        picture = Image.new("RGB", (width, height), _BACKGROUND)
        ImageDraw.Draw(picture).text((_MARGIN, _MARGIN), frame.caption, font=font, fill=_QUIET)
        picture.paste(content, ((width - content.width) // 2, top))
        pictures.append(picture)
    return pictures


def join_pictures(left: Sequence[Image.Image], right: Sequence[Image.Image]) -> list[Image.Image]:
    """Puts two films side by side; the shorter one stays at its last picture."""
    width, height = left[0].width + right[0].width, max(left[0].height, right[0].height)
    joined = []
    for index in range(max(len(left), len(right))):
        picture = Image.new("RGB", (width, height), _BACKGROUND)
        picture.paste(left[min(index, len(left) - 1)], (0, 0))
        picture.paste(right[min(index, len(right) - 1)], (left[0].width, 0))
        joined.append(picture)
    return joined


def _is_grid(environment: Environment, timestep: TimeStep) -> bool:
    observation = timestep.observation
    several_views = environment.num_agents or timestep.player is not None or "perspective" in timestep.info
    if several_views or not isinstance(observation, np.ndarray) or observation.ndim != 3:
        return False
    values = observation.astype(np.float32)
    return min(observation.shape[:2]) > 1 and bool(np.all((values >= 0) & (values <= 1)))


def _enlarge(grid: np.ndarray) -> Image.Image:
    """Draws cells as squares with a line of background between them."""
    size = max(_SIDE // max(grid.shape[:2]), 3)
    pixels = grid.repeat(size, axis=0).repeat(size, axis=1)
    pixels[size - 1 :: size] = _BACKGROUND
    pixels[:, size - 1 :: size] = _BACKGROUND
    return Image.fromarray(pixels)


def _draw_content(frame: Frame, font: ImageFont.FreeTypeFont) -> Image.Image:
    if frame.grid is not None:
        return _enlarge(frame.grid)
    board = find_board(frame.text)
    if board is None:
        return _draw_text(frame.text, font)
    cells = draw_board(board.rows, str(font.path))
    if not board.header:
        return cells
    header = _draw_text(board.header, font)
    both = Image.new("RGB", (max(header.width, cells.width), header.height + _MARGIN + cells.height), _BACKGROUND)
    both.paste(header, (0, 0))
    both.paste(cells, ((both.width - cells.width) // 2, header.height + _MARGIN))
    return both


def _draw_text(text: str, font: ImageFont.FreeTypeFont) -> Image.Image:
    blank = ImageDraw.Draw(Image.new("RGB", (1, 1)))
    _, _, right, bottom = blank.multiline_textbbox((0, 0), text, font=font, spacing=1)
    picture = Image.new("RGB", (int(right) + 1, int(bottom) + 1), _BACKGROUND)
    ImageDraw.Draw(picture).multiline_text((0, 0), text, font=font, fill=_INK, spacing=1)
    return picture


def _number(value: Array) -> str:
    return " ".join(f"{number:.4g}" for number in np.atleast_1d(value))
