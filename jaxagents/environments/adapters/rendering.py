"""Text frames of plain characters, which look the same in a terminal, a log and a notebook."""

import math
from collections.abc import Sequence

import numpy as np

GLYPHS = "A*+#OX%@=&"
"""One character per channel of a grid; the lowest channel wins where several are set."""


def render_grid(rows: list[str]) -> str:
    """Draws rows of characters in a box.

    Args:
        rows: strings of equal length.

    Returns:
        The frame, lines joined by newlines.
    """
    border = "+" + "-" * len(rows[0]) + "+"
    return "\n".join([border, *(f"|{row}|" for row in rows), border])


def render_channels(grid: np.ndarray, glyphs: str = GLYPHS) -> str:
    """Draws a grid of binary channels with one character per channel.

    Args:
        grid: `[H, W, C]`, non-zero where the channel is set.
        glyphs: characters of the channels, repeated if there are more channels.

    Returns:
        The frame; cells without a set channel are dots.
    """
    present = np.asarray(grid) > 0
    lowest = np.where(present.any(-1), present.argmax(-1), -1)
    rows = ["".join("." if channel < 0 else glyphs[channel % len(glyphs)] for channel in row) for row in lowest]
    return render_grid(rows)


def render_cartpole(x: float, theta: float, x_threshold: float, width: int = 41, height: int = 6) -> str:
    """Draws the cart on its track and the pole above it.

    Args:
        x: position of the cart in m.
        theta: angle of the pole in radians, positive to the right.
        x_threshold: bound of the position, at the ends of the track, beyond which the episode ends.
        width: width of the track in characters.
        height: height of the pole in characters.

    Returns:
        The frame, with the numbers in the last line.
    """
    canvas = [[" "] * width for _ in range(height + 1)]
    cart = round((x / x_threshold + 1) / 2 * (width - 1))
    pole = "|" if abs(theta) < 0.04 else ("/" if theta > 0 else "\\")
    # The limit of 12 degrees is too small to see in characters: the drawn angle is three times the true one.
    slope = math.tan(max(-1.2, min(1.2, 3 * theta)))
    for level in range(1, height + 1):
        column = round(cart + slope * level)
        if 0 <= column < width:
            canvas[height - level][column] = pole
    for column in range(max(cart - 2, 0), min(cart + 3, width)):
        canvas[height][column] = "="
    frame = render_grid(["".join(row) for row in canvas])
    return f"{frame}\nx {x:+.2f} m, angle {math.degrees(theta):+.1f} degrees"


def render_points(
    points: Sequence[tuple[str, np.ndarray]],
    low: tuple[float, float],
    high: tuple[float, float],
    *,
    width: int = 45,
    height: int = 21,
) -> str:
    """Draws points in a plane; points outside are drawn at the edge.

    Args:
        points: pairs of a character and the points `[N, 2]` that it stands for, x to the right and y upwards; later
            ones are drawn over earlier ones.
        low: corner at the bottom left.
        high: corner at the top right.
        width: width in characters.
        height: height in characters.

    Returns:
        The frame.
    """
    canvas, sides = [[" "] * width for _ in range(height)], np.array([width, height]) - 1
    for glyph, places in points:
        share = (np.asarray(places, np.float64).reshape(-1, 2) - low) / np.subtract(high, low)
        for column, row in np.rint(np.clip(share, 0.0, 1.0) * sides).astype(int):
            canvas[height - 1 - row][column] = glyph
    return render_grid(["".join(row) for row in canvas])
