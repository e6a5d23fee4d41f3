"""The pages of the notebooks: what they say, their code, and what is stored of what came out."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxagents.documentation.markdown import cell, table

_MAX_LINES = 30  # Of an output.


def notebook_pages(root: Path) -> dict[str, str]:
    """Makes a page for every notebook, and an overview with the first sentence of each.

    Args:
        root: of the repository.

    Returns:
        Markdown by the path of a page.
    """
    pages, rows = {}, []
    for file in sorted((root / "notebooks").glob("*.ipynb")):
        cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
        parts = [part for one in cells for part in _parts_of(one)]
        title, _, rest = _text(cells[0]["source"]).partition("\n")
        note = f"*This page is `notebooks/{file.name}`, which runs as it stands.*"
        pages[f"notebooks/{file.stem}.md"] = "\n\n".join([title, note, rest.strip(), *parts[1:]]) + "\n"
        about = " ".join(rest.split()).partition(". ")[0]
        rows.append((f"[{title.removeprefix('# ')}]({file.stem}.md)", cell(f"{about}.")))
    head = "# Notebooks\n\nOpen them with `pip install -e '.[gymnax,notebooks]' && jupyter lab notebooks`.\n\n"
    pages["notebooks/index.md"] = head + table(("notebook", "what you will see"), rows)
    return pages


def _parts_of(one: Mapping[str, Any]) -> list[str]:
    source = _text(one["source"])
    if one["cell_type"] == "markdown":
        return [source]
    return [f"```python\n{source}\n```", *filter(None, map(_shown, one["outputs"]))]


def _shown(output: Mapping[str, Any]) -> str:
    """Returns an output as Markdown: a picture where there is one, else its text; pages within pages are left out."""
    data = output.get("data", {})
    for kind in ("image/png", "image/gif"):
        if kind in data:
            return (
                f'<img alt="what the code above draws" src="data:{kind};base64,{"".join(_text(data[kind]).split())}">'
            )
    text = _text(output.get("text") or ("" if "text/html" in data else data.get("text/plain", "")))
    lines = re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()  # Without the colours of a terminal.
    more = [f"... {len(lines) - _MAX_LINES} more lines"] if len(lines) > _MAX_LINES else []
    return "\n".join(["```text", *lines[:_MAX_LINES], *more, "```"]) if lines else ""


def _text(source: str | Sequence[str]) -> str:
    return source if isinstance(source, str) else "".join(source)
