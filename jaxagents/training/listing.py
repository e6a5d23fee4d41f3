"""What can be run: worlds, algorithms and experiments, with the first sentence of their files."""

from pathlib import Path

SECTIONS = {
    "world/*.yaml": "Worlds, `world=<name>` with an algorithm:",
    "algorithm/*.yaml": "Algorithms, `algorithm=<name>` with a world that it fits:",
    "experiment/*.yaml": "Experiments, `experiment=<name>`:",
    "paper/*/*.yaml": "Papers, `python experiments/reproduce.py paper=<name>`:",
}


def list_choices(folder: str | Path, *own: str | Path, width: int = 120) -> str:
    """Lists the option files of `SECTIONS`, a line each.

    Args:
        folder: `configs`.
        *own: further folders, of `--config-dir`.
        width: most characters of a line.

    Returns:
        The text.
    """
    parts = []
    for pattern, title in SECTIONS.items():
        found = [path for one in (folder, *own) for path in Path(one).glob(pattern)]
        files = sorted(found, key=lambda path: path.stem)
        described = {path.stem: sentence for path in files if (sentence := _first_comment(path))}
        indent = max(map(len, described), default=0) + 4
        lines = [f"  {name:<{indent - 2}}{_cut(sentence, width - indent)}" for name, sentence in described.items()]
        parts.append("\n".join([title, *lines]))
    return "\n\n".join(parts)


def _first_comment(path: Path) -> str:
    """Returns the first line of the header that is no directive of Hydra's."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            if not line.startswith("#"):
                break
            if text := line.removeprefix("#").strip().removeprefix("@package _global_").strip():
                return text
    return ""


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 3].rstrip() + "..."
