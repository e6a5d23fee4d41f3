"""What the generated pages are made of: settings and comments of option files, functions and docstrings of modules."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import yaml

_HYDRA = ("defaults", "hydra")  # Sections that are no settings.
_BUILT = ("_target_", "_partial_", "_args_", "_convert_", "_recursive_")


class Setting(NamedTuple):
    """A line of an option file: its dotted name, its value as it is written, and the comment beside or above it."""

    name: str
    value: str
    comment: str


class Function(NamedTuple):
    """A public function or class.

    Attributes:
        name: of it.
        module: dotted.
        signature: arguments and result as they are written; of a class its bases.
        docstring: "" without.
    """

    name: str
    module: str
    signature: str
    docstring: str


def read_header(path: Path) -> list[str]:
    """Returns the lines of comment at the top of a YAML file, without the directive of Hydra's."""
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").strip())
    return [line for line in lines if line and not line.startswith("@package")]


def read_settings(path: Path) -> list[Setting]:
    """Reads the settings of an option file with their comments, those of sections by their dotted names."""
    settings: list[Setting] = []
    parents: list[tuple[int, str]] = []
    above = ""
    for line in path.read_text(encoding="utf-8").splitlines():
        alone = re.fullmatch(r"\s*#\s*(\S.*)", line)
        keyed = re.fullmatch(r"(\s*)([A-Za-z_][\w@./]*):(.*)", line)
        if keyed:
            indent, key, rest = keyed.groups()
            parents = [(depth, name) for depth, name in parents if depth < len(indent)]
            names = [*(name for _, name in parents), key]
            value, _, comment = rest.partition(" #")
            parents.append((len(indent), key))
            if names[0] not in _HYDRA and key not in _BUILT and (value.strip() or comment.strip()):
                settings.append(Setting(".".join(names), value.strip(), comment.strip() or above))
        above = alone.group(1) if alone else ""
    return settings


def read_target(path: Path) -> str:
    """Returns the `_target_` of an option file, "" where it has none."""
    loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    return str(loaded.get("_target_", "")) if isinstance(loaded, dict) else ""


def read_module(path: Path, module: str) -> tuple[str, list[Function]]:
    """Reads the docstring of a module, and its public functions and classes."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return ast.get_docstring(tree) or "", list(_functions(tree, module))


def _functions(tree: ast.Module, module: str) -> Iterator[Function]:
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef | ast.ClassDef) or node.name.startswith("_"):
            continue
        if isinstance(node, ast.ClassDef):
            signature = f"class {node.name}({', '.join(map(ast.unparse, node.bases))})"
        else:
            signature = f"{node.name}({ast.unparse(node.args)})"
            signature += f" -> {ast.unparse(node.returns)}" if node.returns else ""
        yield Function(node.name, module, signature, ast.get_docstring(node) or "")
