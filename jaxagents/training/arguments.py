"""Arguments of commands: checks before Hydra reads them, and how to write values that Hydra reads."""

import argparse
import difflib
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Transformer
from hydra.errors import HydraException

# Options of Hydra.
_FLAGS = (
    *(("--help", "-h"), ("--hydra-help",), ("--version",), ("--resolve",), ("--run", "-r"), ("--multirun", "-m")),
    ("--shell-completion", "-sc"),
)
_WITH_VALUE = (
    *(("--cfg", "-c"), ("--package", "-p"), ("--config-path", "-cp"), ("--config-name", "-cn")),
    *(("--config-dir", "-cd"), ("--info", "-i"), ("--experimental-rerun",)),
)
_EMPTY = re.compile(r"\+{0,2}[\w.@/]+=\s*")
_PLAIN = re.compile(r"[\w./+-]+")  # Values that need no quotes.
_IN_NAMES = re.compile(r"[\w.+-]*")  # Values that can be part of folder names.
_SUBDIR = "hydra.sweep.subdir"
_MOST = 120  # Characters of a name: most systems allow 255 bytes.
_OF_INTERVALS = 24  # Characters of a number that a sweeper suggests.


def is_sweep(arguments: Sequence[str]) -> bool:
    """Tells whether commas in the arguments separate jobs: `-m`."""
    return not {"-m", "--multirun"}.isdisjoint(arguments)


def parse_overrides(settings: Sequence[str]) -> list[Override]:
    """Parses settings as Hydra does."""
    overrides: list[Override] = OverridesParser.create().parse_overrides(list(settings))
    return overrides


def require_options(arguments: Sequence[str], further: Sequence[str] = ()) -> None:
    """Refuses arguments that begin with a dash but are not options of Hydra, without printing its list of all options.

    Args:
        arguments: arguments of the command line.
        further: names of further options of the script.

    Raises:
        ValueError: an option is unknown, has no value, or stands between settings.
    """

    def refuse(message: str) -> NoReturn:
        raise ValueError(f"Options must be as --hydra-help says, got {' '.join(arguments)!r}: {message}.")

    parser = argparse.ArgumentParser(add_help=False)
    for names in _FLAGS:
        parser.add_argument(*names, action="store_true")
    for names in _WITH_VALUE:
        parser.add_argument(*names)
    parser.add_argument("settings", nargs="*")
    parser.error = refuse  # type: ignore[method-assign]
    _, unknown = parser.parse_known_args(arguments)
    dashed = [argument.partition("=")[0] for argument in unknown if argument.startswith("-")]
    if dashed:
        known = [name for names in (*_FLAGS, *_WITH_VALUE, further) for name in names]
        near = difflib.get_close_matches(dashed[0], known, n=1, cutoff=0.7)
        hint = f"try {near[0]}" if near else f"settings have no dashes, as in {dashed[0].lstrip('-')}=..."
        raise ValueError(f"The command has no option {dashed[0]!r}; {hint}.")
    if unknown:
        raise ValueError(f"Options must stand before all settings or after them, got {' '.join(arguments)!r}.")


def require_values(arguments: Sequence[str]) -> None:
    """Refuses arguments without a value, which Hydra reads as empty strings.

    Raises:
        ValueError: an argument has no value; names the argument.
    """
    for argument in arguments:
        if _EMPTY.fullmatch(argument):
            name = argument.lstrip("+").partition("=")[0]
            raise ValueError(
                f"`{name}` must have a value, got nothing; try {name}=null for none, \"{name}=''\" for an empty text."
            )


def require_one_choice(arguments: Sequence[str], configs: Path) -> None:
    """Refuses two options of one group, of which Hydra would use the last.

    Args:
        arguments: arguments of the command line.
        configs: folder of the groups.

    Raises:
        ValueError: a group has two options; names the group.
    """
    chosen: dict[str, str] = {}
    for argument in arguments:
        name, given, value = argument.lstrip("+").partition("=")
        is_group = bool(given) and bool(name) and (configs / name.partition("@")[0]).is_dir()
        if is_group and chosen.setdefault(name, value) != value:
            way_out = f"try +method=[{chosen[name]},{value}]" if name == "method" else "leave one of them out"
            raise ValueError(f"`{name}` must have one option, got {chosen[name]} and {value}; {way_out}.")


def write_argument(name: str, value: object) -> str:
    """Writes `name=value` so that a shell passes it on and Hydra reads it, with any special characters in the value."""
    text = str(value)
    if not _PLAIN.fullmatch(text):
        escaped = text.replace("\\", "\\\\").replace("'", "\\'")
        text = f"'{escaped}'"
    return shlex.quote(f"{name}={text}")


def quote_lists(arguments: Sequence[str], names: Sequence[str]) -> list[str]:
    """Rewrites `paper=gigpo,nft` and `overrides=[loss=plain]` as lists that Hydra reads.

    Args:
        arguments: arguments of the command line; in a sweep (`-m`), commas separate its jobs.
        names: names of options that are always lists.

    Returns:
        The arguments.
    """
    sweeps = is_sweep(arguments)
    written = []
    for argument in arguments:
        name, is_option, value = argument.partition("=")
        if is_option and name in names and value.startswith("["):
            value = ",".join(map(_quote_settings, _split(value)))
        elif is_option and name in names and value not in ("", "null"):
            quoted = list(map(_quote, _split(value)))
            value = ",".join(f"[{part}]" for part in quoted) if sweeps else f"[{','.join(quoted)}]"
        written.append(f"{name}{is_option}{value}")
    return written


def _quote_settings(text: str) -> str:
    """Quotes list items that are settings, such as those of [loss=plain,~critic], which Hydra reads only in quotes."""
    if not (text.startswith("[") and text.endswith("]")):
        return text
    items = [item.strip() for item in _split(text[1:-1])]
    settings = [("=" in item or item.startswith("~")) and not item.startswith(("[", "{")) for item in items]
    return f"[{','.join(_quote(item) if is_setting else item for item, is_setting in zip(items, settings))}]"


def _quote(item: str) -> str:
    if len(item) > 1 and item[0] == item[-1] and item[0] in "'\"":
        return item
    escaped = item.replace("'", "\\'")
    return f"'{escaped}'"


def _split(text: str) -> list[str]:
    """Splits a text at the commas outside brackets and quotes."""
    items, depth, quote = [""], 0, ""
    for mark in text:
        if mark == "," and not depth and not quote:
            items.append("")
            continue
        items[-1] += mark
        if mark in "'\"" and quote in ("", mark):
            quote = "" if quote else mark
        elif not quote:
            depth += (mark in "[({") - (mark in "])}")
    return items


def quote_names(arguments: Sequence[str]) -> list[str]:
    """Puts quotes around paths with equality signs, such as folders of sweeps, which Hydra cannot read otherwise.

    Args:
        arguments: arguments of the command line; in a sweep (`-m`), commas separate its jobs.

    Returns:
        The arguments.
    """
    sweeps = is_sweep(arguments)
    written = []
    for argument in arguments:
        name, _, value = argument.partition("=")
        if "=" in value and not argument.startswith("-") and not re.search(r"['\"\[{(\\]", value):
            parts = value.split(",") if sweeps else [value]
            argument = f"{name}={','.join(repr(part) if '=' in part else part for part in parts)}"
        written.append(argument)
    return written


def name_folders(arguments: Sequence[str]) -> list[str]:
    """Names the folders of a sweep by job number and by the varied options, if these can be part of a name.

    Values with slashes or other special characters, such as paths and lists, are left out, and so are options that
    would make names too long: the numbers distinguish such combinations, and the last line of a sweep lists them.

    Args:
        arguments: arguments of the command line.

    Returns:
        The arguments, with the settings of Hydra that name folders; unchanged if there is no sweep, or if
        `hydra.sweep.subdir` is among them.
    """
    settings = [argument for argument in arguments if not argument.startswith("-")]
    if not is_sweep(arguments) or any(setting.startswith(f"{_SUBDIR}=") for setting in settings):
        return list(arguments)
    try:
        overrides = parse_overrides(settings)
    except HydraException:  # Hydra explains what is wrong with them.
        return list(arguments)
    room = _MOST
    named = set()
    for override in overrides:
        size = _longest_name(override) if override.is_sweep_override() else None
        if size is not None and size < room:
            named.add(override.key_or_group)
            room -= size + 1
    if not named:
        return list(arguments)
    left_out = ",".join(f"'{key}'" for key in dict.fromkeys(o.key_or_group for o in overrides) if key not in named)
    return [
        *arguments,
        f"{_SUBDIR}=${{hydra.job.num}}_${{hydra.job.override_dirname}}",
        "hydra.job.config.override_dirname.item_sep=_",
        f"hydra.job.config.override_dirname.exclude_keys=[{left_out}]",
    ]


def _longest_name(override: Override) -> int | None:
    """Returns the length of the longest "key=value" of an option that varies; None if one cannot be in a name."""
    if not override.is_discrete_sweep():
        return len(override.get_key_element()) + 1 + _OF_INTERVALS
    try:
        values = [str(value) for value in override.sweep_iterator(transformer=Transformer.encode)]
    except HydraException:  # glob(...), whose names Hydra looks up.
        return None
    if not all(_IN_NAMES.fullmatch(value) for value in values):
        return None
    return len(override.get_key_element()) + 1 + max(map(len, values))
