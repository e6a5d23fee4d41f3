"""Lists in the arguments of commands, as they are written and as Hydra reads them."""

import re
import shlex
from collections.abc import Sequence

_PLAIN = re.compile(r"[\w./+-]+")


def write_argument(name: str, value: object) -> str:
    """Writes `name=value` as a shell takes it and Hydra reads it, whatever marks the value has."""
    text = str(value)
    if not _PLAIN.fullmatch(text):
        escaped = text.replace("\\", "\\\\").replace("'", "\\'")
        text = f"'{escaped}'"
    return shlex.quote(f"{name}={text}")


def quote_lists(arguments: Sequence[str], names: Sequence[str]) -> list[str]:
    """Writes `paper=gigpo,nft`, and `overrides=[loss=plain]`, as the lists that Hydra reads.

    Args:
        arguments: of the command line; in a sweep (`-m`), commas separate its jobs.
        names: of options that are always lists.

    Returns:
        The arguments.
    """
    sweeps = any(argument in ("-m", "--multirun") for argument in arguments)
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
    """Quotes the items of a list that are settings, such as [loss=plain,~critic], which Hydra reads in quotes alone."""
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
    """Splits a text at the commas that stand in no brackets and in no quotes."""
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
