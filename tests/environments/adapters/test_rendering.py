"""Text frames, character by character."""

import numpy as np
import pytest

from jaxagents.environments.adapters.rendering import render_cartpole, render_channels, render_grid, render_points


def test_render_grid():
    assert render_grid(["ab", "cd"]) == "+--+\n|ab|\n|cd|\n+--+"


def test_render_channels_draws_the_lowest_channel():
    grid = np.zeros((2, 3, 4))
    grid[0, 0, 0] = grid[0, 1, 1] = grid[1, 2, 3] = 1
    grid[0, 1, 2] = 1
    assert render_channels(grid) == "+---+\n|A*.|\n|..#|\n+---+"
    assert render_channels(grid, "xo") == "+---+\n|xo.|\n|..o|\n+---+"


@pytest.mark.parametrize(
    ("x", "theta", "pole", "cart"),
    [
        (0.0, 0.0, "|    |    |", "|  =====  |"),
        (2.4, 0.0, "|        ||", "|      ===|"),
        (0.0, 0.3, "|     /   |", "|  =====  |"),
        (0.0, -0.3, "|   \\     |", "|  =====  |"),
    ],
)
def test_render_cartpole(x, theta, pole, cart):
    lines = render_cartpole(x, theta, 2.4, width=9, height=1).splitlines()
    assert lines[1:3] == [pole, cart]
    assert lines[-1] == f"x {x:+.2f} m, angle {np.degrees(theta):+.1f} degrees"


def test_render_points():
    points = [("o", np.array([[0.0, 0.0], [1.0, 1.0]])), ("A", np.array([[1.0, 1.0], [0.5, -9.0]]))]
    frame = render_points(points, (0.0, 0.0), (1.0, 1.0), width=5, height=3)
    # y points upwards, later points lie on top, and what is outside stands at the edge.
    assert frame.splitlines()[1:4] == ["|    A|", "|     |", "|o A  |"]
