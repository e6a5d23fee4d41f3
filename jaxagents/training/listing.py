"""Lists what can be run: worlds, algorithms and experiments, with the first sentence of their files."""

from collections.abc import Container
from pathlib import Path

import yaml

SECTIONS = {
    "world/*.yaml": "Worlds{}, `world=<name>`; what fits one: `--list world=<name>`:",
    "algorithm/*.yaml": "Algorithms{}, `algorithm=<name>` with a world that it fits:",
    "experiment/*.yaml": "Experiments, `experiment=<name>`; `<algorithm>_<world>`: tuned for the pair:",
    "method/*.yaml": "Methods of papers, `+method=<id>` with a world and an algorithm that it fits:",
    "papers/*/*.yaml": "Papers{}, `python experiments/reproduce.py paper=<name>`:",
}


def worlds_in_words(folder: str | Path) -> list[str]:
    """Returns the worlds for language models."""
    files = sorted(Path(folder).glob("world/*.yaml"))
    lines = ("- /base: ", "override /policy: chat")
    return [path.stem for path in files if any(line in path.read_text(encoding="utf-8") for line in lines)]


def fitting_worlds(folder: str | Path) -> dict[str, list[str]]:
    """Returns the worlds that each algorithm fits, by `fits` in its file, where `words` stands for all text worlds."""
    in_words = worlds_in_words(folder)
    algorithms = sorted(Path(folder).glob("algorithm/*.yaml"))
    fits = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8"))["fits"] for path in algorithms}
    return {name: in_words if worlds == ["words"] else worlds for name, worlds in fits.items()}


def list_choices(folder: str | Path, *own: str | Path, world: str | None = None, width: int = 120) -> str:
    """Lists the option files of `SECTIONS` by family, one line each.

    Args:
        folder: folder `configs`.
        *own: further folders: `experiments`, which holds papers, and those of `--config-dir`.
        world: name of a world, to list only algorithms that fit it, and options named after it.
        width: maximum number of characters of a line.

    Returns:
        The text.
    """
    fits, in_words = fitting_worlds(folder), worlds_in_words(folder)
    fitting = [name for name, worlds in fits.items() if world in worlds]
    of_language = {*in_words, *(name for name, worlds in fits.items() if {*worlds} <= {*in_words})}
    parts = []
    for pattern, title in SECTIONS.items():
        found = [path for one in (folder, *own) for path in Path(one).glob(pattern)]
        files = sorted(found, key=lambda path: path.stem)
        if world is not None:
            files = [path for path in files if path.stem in fitting or path.stem.endswith(f"_{world}")]
        for family in sorted({_family(path, of_language) for path in files}):
            members = [path for path in files if _family(path, of_language) == family]
            described = {path.stem: sentence for path in members if (sentence := _first_comment(path))}
            indent = max(map(len, described), default=0) + 4
            lines = [f"  {name:<{indent - 2}}{_cut(sentence, width - indent)}" for name, sentence in described.items()]
            parts += ["\n".join([title.format(family), *lines])] if lines else []
    return "\n\n".join(parts)


def _family(path: Path, of_language: Container[str]) -> str:
    """Returns what a file adds to the heading of its section."""
    if path.parent.name in ("world", "algorithm"):
        return " of language models" if path.stem in of_language else " of arrays"
    return f" of {path.parent.name}" if path.parent.parent.name == "papers" else ""


def _first_comment(path: Path) -> str:
    """Returns the first line of the header that is not a directive of Hydra."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            if not line.startswith("#"):
                break
            if text := line.removeprefix("#").strip().removeprefix("@package _global_").strip():
                return text
    return ""


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 3].rstrip() + "..."
