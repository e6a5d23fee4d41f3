"""Docstrings and settings as Markdown."""

import re
import textwrap
from collections.abc import Iterable, Sequence

from jaxagents.documentation.sources import Function, Setting

_SECTIONS = ("Args:", "Attributes:", "Returns:", "Yields:", "Raises:", "References:")


def escape(text: str) -> str:
    """Escapes what Markdown and HTML would read as theirs, outside of code between backticks."""
    parts = re.split(r"(``.+?``|`[^`]*`)", text)
    return "".join(
        part if index % 2 else re.sub(r"([*|\[\]])", r"\\\1", part.replace("&", "&amp;").replace("<", "&lt;"))
        for index, part in enumerate(parts)
    )


def cell(text: str) -> str:
    """Writes a text into a cell of a table."""
    return escape(" ".join(text.split()))


def code(text: str) -> str:
    """Writes a text as code into a cell of a table; an empty one stays empty."""
    return f"`{text.replace('|', chr(92) + '|')}`" if text else ""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Writes a table; cells are Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def settings_table(settings: Sequence[Setting], others: Sequence[Setting] = ()) -> str:
    """Writes settings with their meaning.

    Args:
        settings: of one file.
        others: of files of the same group; a setting without a comment takes that of the same name.

    Returns:
        The table, "" without settings.
    """
    known = {other.name: other.comment for other in others if other.comment}
    rows = [(code(one.name), code(one.value), cell(one.comment or known.get(one.name, ""))) for one in settings]
    return table(("setting", "value", "meaning"), rows) if rows else ""


def function_text(function: Function) -> str:
    """Writes a function with its heading, signature, and docstring."""
    heading = f"### {function.name} {{ #{function.module}.{function.name} }}"
    signature = "\n".join(textwrap.wrap(function.signature, 100, subsequent_indent="    ", break_long_words=False))
    return f"{heading}\n\n```python\n{signature}\n```\n\n{docstring_text(function.docstring)}\n"


def docstring_text(docstring: str) -> str:
    """Turns a docstring with sections (`Args:`, `Returns:`, ...) into Markdown."""
    blocks, section = [], ""
    for block in re.split(r"\n\s*\n", docstring):
        head, _, body = block.partition("\n")
        if head.strip() in _SECTIONS:
            section = head.strip()
            blocks += [f"**{section.rstrip(':')}**", _items(body)]
        elif block.startswith("    "):
            blocks.append(_items(block) if section else f"```\n{textwrap.dedent(block)}\n```")
        else:
            blocks.append(escape(block))
    return "\n\n".join(block for block in blocks if block)


def _items(body: str) -> str:
    """Writes the entries of a section as a list; deeper lines belong to the entry above them."""
    items: list[str] = []
    for line in textwrap.dedent(body).splitlines():
        if line.startswith(" ") and items:
            items[-1] += f" {line.strip()}"
        elif line.strip():
            items.append(line.strip())
    named = [re.fullmatch(r"(\*{0,2}\w[\w, *]*): (.*)", item) for item in items]
    if not all(named):
        return escape(" ".join(items))
    return "\n".join(f"- `{match.group(1)}`: {escape(match.group(2))}" for match in named if match)
