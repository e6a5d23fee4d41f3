"""Methods of papers, `configs/method/<id>.yaml`: options of Hydra with a header, `+method=<id>` or `+method=[a,b]`.

The header is the comment before the first key. Its first line is `Name: what it does (authors, year, source).`, the
others are fields of `FIELDS`; a line that begins with none of them continues the field above.
"""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from jaxagents.training.arguments import parse_overrides

FOLDER = "method"
FIELDS = ("Equation", "Code", "Paper", "Differs", "Study", "Claim", "Needs")
REQUIRED = FIELDS[:5]


class Method(NamedTuple):
    """Contents of the file of a method.

    Attributes:
        id: name of the file.
        name: name of the method.
        summary: what the method does, with its source.
        fields: fields of the header, see `FIELDS`: the equation, the authors' code, the paper's values, deviations, the
            study that measures it, the paper's claim as `<metric> above|below|equal to <arm>`, and requirements.
        groups: options that the method chooses, by their group, such as `{"advantage": "gigpo"}`.
        settings: settings that the method changes, by their dotted names.
        function: config node with a `_target_`, for a method that does not change training but is called by its study.
    """

    id: str
    name: str
    summary: str
    fields: Mapping[str, str]
    groups: Mapping[str, str]
    settings: Mapping[str, Any]
    function: Mapping[str, Any] | None = None


class NotChosen(ValueError):
    """Error: something refers to an option that is not chosen.

    Attributes:
        what: description that names both.
    """

    def __init__(self, what: str, advice: str) -> None:
        super().__init__(f"{what}; {advice}.")
        self.what = what


def method_files(*folders: str | Path) -> dict[str, Path]:
    """Returns the file of every method by its id; of two with one name, that of the first folder counts.

    Args:
        *folders: folders of configs, those of a user first.
    """
    found = {path.stem: path for folder in reversed(folders) for path in Path(folder).glob(f"{FOLDER}/*.yaml")}
    return dict(sorted(found.items()))


def read_methods(*folders: str | Path) -> dict[str, Method]:
    """Reads all methods of `method_files`, by id."""
    return {name: read_method(path) for name, path in method_files(*folders).items()}


def read_method(path: str | Path) -> Method:
    """Reads a method.

    Raises:
        ValueError: the header lacks a field, or the file holds something other than options and settings.
    """
    path = Path(path)
    text = path.read_text(encoding="utf-8")
    title, fields = _read_header(text)
    missing = [name for name in REQUIRED if not fields.get(name)]
    name, colon, summary = title.partition(": ")
    if missing or not colon:
        wanted = f"the field {missing[0]}" if missing else "a first line `Name: what it does (authors, year).`"
        raise ValueError(
            f"{path} must have a header with {', '.join(REQUIRED)}, which lacks {wanted}; see "
            "configs/method/gigpo.yaml."
        )
    content = yaml.safe_load(text) or {}
    function = content.pop("function", None)
    groups = dict(_chosen(path, content.pop("defaults", [])))
    settings = dict(_dotted(content))
    if function is not None and (groups or settings):
        raise ValueError(
            f"{path} must have a `function` or settings, got both: {', '.join([*groups, *settings])}; a function is "
            "called by its study, and trains nothing that settings could change."
        )
    return Method(path.stem, name, summary, fields, groups, settings, function)


def chosen_methods(overrides: Sequence[str]) -> list[str]:
    """Returns the methods that overrides switch on, such as "+method=[gigpo,chord]"."""
    texts = [text for text in overrides if text.lstrip("+").startswith(f"{FOLDER}=")]
    values = [override.value() for override in parse_overrides(texts)]
    return [str(name) for value in values for name in (value if isinstance(value, list) else [value])]


def require_methods(overrides: Sequence[str], *folders: str | Path) -> None:
    """Refuses methods that do not exist, that training cannot switch on, or of which two set the same.

    Args:
        overrides: overrides of the composition.
        *folders: folders of configs, those of a user first.

    Raises:
        ValueError: a method is refused; names the methods.
    """
    names = chosen_methods(overrides)
    if not names:
        return
    files = method_files(*folders)
    for name in names:
        if name not in files:
            near = " or ".join(difflib.get_close_matches(name, files, n=3, cutoff=0.5) or [*files][:12])
            raise ValueError(f"`+method` must be a file of configs/method, got {name!r}; try {near}.")
    methods = [read_method(files[name]) for name in names]
    if called := [method.id for method in methods if method.function is not None]:
        study = next(method.fields["Study"] for method in methods if method.id == called[0])
        raise ValueError(
            f"`+method={called[0]}` must be called by its study, since it is a function and changes no training; try "
            f"python experiments/reproduce.py study={study}."
        )
    for index, second in enumerate(methods):
        for first in methods[:index]:
            if both := shared_settings(first, second):
                raise ValueError(
                    f"`+method` must be methods that set different things, got {first.id} and {second.id}, which both "
                    f"set {both[0]}; leave one of them out."
                )


def shared_settings(first: Method, second: Method) -> list[str]:
    """Returns what two methods both set: a group, a setting, or a setting within a group that the other chooses."""
    mine, others = [*first.groups, *first.settings], [*second.groups, *second.settings]
    return sorted({max(a, b, key=len) for a in mine for b in others if _is_within(a, b) or _is_within(b, a)})


def require_free(method: Method, overrides: Sequence[str], where: str) -> None:
    """Refuses settings of a study that its method also sets, since those of the command line would win.

    A study may set numbers within a method's choices, such as a coefficient, for all of its arms.

    Args:
        method: method that an arm switches on.
        overrides: overrides of the study.
        where: place of the overrides, for the error.

    Raises:
        ValueError: a setting is refused; names the setting.
    """
    chosen = {**method.groups, **method.settings}
    for override in parse_overrides(overrides):
        key = override.get_key_element().lstrip("+~")
        others = {name: value for name, value in chosen.items() if _is_within(name, key)}
        if method.groups.get(key) != override.value() and others and others != {key: override.value()}:
            raise ValueError(
                f"`{where}` must not set {key}, which the method {method.id} sets; try it in the arms that need it."
            )


def missing_groups(overrides: Sequence[str], choices: Mapping[str, Any], *folders: str | Path) -> str | None:
    """Returns a message about groups that a method needs and the rest of a composition lacks; None if none is missing.

    Args:
        overrides: overrides of the composition.
        choices: choices of the composition without the methods, by group.
        *folders: folders of configs, those of a user first.
    """
    files = method_files(*folders)
    for method in [read_method(files[name]) for name in chosen_methods(overrides) if name in files]:
        for group in method.groups:
            if group not in choices:
                named = [f"{name}={choices[name]}" for name in ("algorithm", "learner") if choices.get(name)]
                having = [path.stem for path in algorithms_with(group, *folders)]
                hint = f"; try algorithm={' or '.join(having[:3])}" if having else ""
                return (
                    f"`+method={method.id}` must be with an algorithm that has the group `{group}`, got "
                    f"{' and '.join(named)}, which has none{hint}."
                )
    return None


@contextmanager
def needs_explained(overrides: Sequence[str], *folders: str | Path) -> Iterator[None]:
    """Explains what the switched-on methods need, if something refers to an option that is missing.

    Args:
        overrides: overrides of the composition.
        *folders: folders of configs, those of a user first.

    Raises:
        ValueError: raised in place of `NotChosen`.
    """
    try:
        yield
    except NotChosen as error:
        files = method_files(*folders)
        methods = [read_method(files[name]) for name in chosen_methods(overrides) if name in files]
        needs = [f"`+method={one.id}` needs {one.fields['Needs']}" for one in methods if "Needs" in one.fields]
        if not needs:
            raise
        raise ValueError(f"{error.what}; {'; '.join(needs)}.") from error


def algorithms_with(group: str, *folders: str | Path) -> list[Path]:
    """Returns the files of algorithms that choose an option of a group themselves."""
    paths = [path for folder in folders for path in sorted(Path(folder).glob("algorithm/*.yaml"))]
    return [path for path in paths if re.search(rf"^\s*- /{group}: ", path.read_text(encoding="utf-8"), re.M)]


def _read_header(text: str) -> tuple[str, dict[str, str]]:
    lines: list[tuple[str, str]] = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        words = line.lstrip("#").strip()
        if words.startswith("@package"):
            continue
        key, colon, value = words.partition(":")
        if lines and not (colon and key in FIELDS):
            lines[-1] = (lines[-1][0], f"{lines[-1][1]} {words}".strip())
        else:
            lines.append((key, value.strip()) if lines else ("", words))
    title, *fields = lines or [("", "")]
    return title[1], dict(fields)


def _chosen(path: Path, defaults: Sequence[Any]) -> Iterator[tuple[str, str]]:
    for entry in defaults:
        if entry == "_self_":
            continue
        (name, option), *_ = entry.items() if isinstance(entry, Mapping) else [("", entry)]
        group = str(name).removeprefix("override ").strip().lstrip("/")
        if not group:
            raise ValueError(
                f"{path} must choose options of groups, as in `override /advantage: gigpo`, got {entry!r}."
            )
        yield group, str(option)


def _dotted(node: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields settings by their dotted names; a node that is a function with a `_target_` counts as one setting."""
    for key, value in node.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value and "_target_" not in value:
            yield from _dotted(value, f"{name}.")
        else:
            yield name, value


def _is_within(name: str, whole: str) -> bool:
    return name == whole or name.startswith(f"{whole}.")
