"""Pictures of boards: the text frame of a board game or a maze, with a coloured stone for every character."""

from typing import NamedTuple

from PIL import Image, ImageDraw, ImageFont

_BACKGROUND, _CELL, _WALL, _LETTER = (20, 24, 29), (35, 42, 50), (94, 107, 121), (20, 24, 29)
_STONES = {  # Colors of the agent, its opponent, and goals; other characters take the remaining colors in turn.
    **{"X": (124, 196, 232), "O": (245, 200, 80), "@": (126, 200, 140), "A": (126, 200, 140), "P": (126, 200, 140)},
    **{"G": (226, 109, 92), "F": (226, 109, 92)},
}
_OTHERS = ((182, 140, 224), (240, 150, 190), (160, 120, 90), (90, 160, 160), (235, 235, 235))
_EMPTY, _WALLS = "._-", "#"
_LEAST = 3  # Minimum number of rows and of columns.
_SIDE, _LARGEST = 320, 56  # Pixels of the longer side, and maximum pixels of a cell.
_SMOOTH = 3  # Factor by which pictures are drawn larger at first, to smooth the edges of discs.


class Board(NamedTuple):
    """A board and the lines above it.

    Attributes:
        header: lines before the board.
        rows: rows of characters, all of the same length.
    """

    header: str
    rows: list[list[str]]


def find_board(text: str) -> Board | None:
    """Finds the board at the end of a text frame: lines with equally many characters, with or without a border.

    Args:
        text: text frame such as "player 0\\nX . .\\n. O .\\n. . .".

    Returns:
        The board; None if there is none with at least three rows and columns.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip() and not set(line.strip()) <= set("+-")]
    cells = [_cells(line) for line in lines]
    first = next((index for index, row in enumerate(cells) if row is not None), len(lines))
    rows = [row for row in cells[first:] if row is not None]
    is_cut = len(rows) < len(cells[first:])
    if is_cut or len(rows) < _LEAST or any(len(row) != len(rows[0]) for row in rows) or len(rows[0]) < _LEAST:
        return None
    return Board("\n".join(lines[:first]), rows)


def draw_board(rows: list[list[str]], font_path: str) -> Image.Image:
    """Draws a board: walls are full cells, every other character is a coloured stone with the character on it.

    Args:
        rows: rows of characters.
        font_path: path of the font of the characters.

    Returns:
        The picture.
    """
    size = _SMOOTH * min(_SIDE // max(len(rows), len(rows[0])), _LARGEST)
    font = ImageFont.truetype(font_path, max(size // 2, 1))
    picture = Image.new("RGB", (size * len(rows[0]), size * len(rows)), _BACKGROUND)
    draw = ImageDraw.Draw(picture)
    for row, line in enumerate(rows):
        for column, glyph in enumerate(line):
            left, top = column * size, row * size
            inner = (left, top, left + size - _SMOOTH - 1, top + size - _SMOOTH - 1)
            draw.rectangle(inner, fill=_WALL if glyph in _WALLS else _CELL)
            if glyph not in _EMPTY + _WALLS:
                margin = size // 9
                draw.ellipse((left + margin, top + margin, inner[2] - margin, inner[3] - margin), fill=_color(glyph))
                draw.text((left + size / 2, top + size / 2), glyph, font=font, fill=_LETTER, anchor="mm")
    return picture.resize((picture.width // _SMOOTH, picture.height // _SMOOTH), Image.Resampling.LANCZOS)


def _cells(line: str) -> list[str] | None:
    """Returns the characters of a row of a board; None for other lines."""
    inner = line[1:-1] if len(line) > 2 and line[0] == line[-1] == "|" else line
    parts = inner.split(" ")
    if all(len(part) == 1 for part in parts) and len(parts) > 1:
        return parts
    return list(inner) if len(parts) == 1 else None


def _color(glyph: str) -> tuple[int, int, int]:
    return _STONES.get(glyph, _OTHERS[ord(glyph) % len(_OTHERS)])
