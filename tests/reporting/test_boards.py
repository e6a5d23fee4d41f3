"""Boards: found in text frames, and drawn with a stone per character."""

import matplotlib
import pytest

from jaxagents.environments.adapters.rendering import render_cartpole
from jaxagents.reporting.boards import draw_board, find_board
from jaxagents.reporting.frames import Frame, draw_pictures

FONT = f"{matplotlib.get_data_path()}/fonts/ttf/DejaVuSansMono.ttf"
CELL, WALL, FIRST, SECOND = (35, 42, 50), (94, 107, 121), (124, 196, 232), (245, 200, 80)


@pytest.mark.parametrize(
    ("text", "header", "rows"),
    [
        ("X . .\n. O .\n. . X", "", ["X..", ".O.", "..X"]),
        ("+---+\n|X..|\n|.O.|\n|...|\n+---+", "", ["X..", ".O.", "..."]),
        ("player 1\n_ _ _\n_ X _\n_ _ O", "player 1", ["___", "_X_", "__O"]),
        ("####\n#@G#\n####", "", ["####", "#@G#", "####"]),
    ],
)
def test_boards_are_found(text, header, rows):
    board = find_board(text)
    assert board.header == header and ["".join(row) for row in board.rows] == rows


@pytest.mark.parametrize(
    "text",
    [
        render_cartpole(0.1, 0.02, 2.4),
        "     G\n@.....\n     .",  # A maze whose rows are not as long.
        "observation float32[4]\n   0.1  0.2",
        "> red 0.50\n  blue 0.25\n  green 0.75",
        "X .\n. O",
        "",
    ],
)
def test_other_frames_are_no_boards(text):
    assert find_board(text) is None


def test_stones_walls_and_empty_cells_have_their_colors():
    picture = draw_board([list("X.#"), list("O.."), list("...")], FONT)
    assert picture.size == (168, 168)

    def near_the_edge(column, row):  # Inside of the disc, beside its letter.
        return picture.getpixel((56 * column + 10, 56 * row + 28))

    assert [near_the_edge(column, 0) for column in range(3)] == [FIRST, CELL, WALL]
    assert near_the_edge(0, 1) == SECOND and near_the_edge(1, 1) == CELL


def test_a_film_of_a_game_shows_its_board():
    frames = [Frame("step 0", "player 0\n_ _ _\n_ _ _\n_ _ _", None, False)]
    frames.append(Frame("step 1", "player 1\n_ _ _\n_ X _\n_ _ _", None, True))
    empty, played = draw_pictures(frames)
    colors = [{color: count for count, color in picture.getcolors(1 << 16)} for picture in (empty, played)]
    assert FIRST not in colors[0] and colors[1][FIRST] > 500 and empty.size == played.size
