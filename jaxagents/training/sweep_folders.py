"""Names of the folders of a sweep: the values that vary, as `2_learner.clip_epsilon=0.1_seed=0`."""

import re
from collections.abc import Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Transformer
from hydra.errors import HydraException

_SUBDIR = "hydra.sweep.subdir"
_MOST = 120  # Characters of a name: most systems take 255 bytes.
_OF_INTERVALS = 24  # Characters of a number that a sweeper proposes.
_PLAIN = re.compile(r"[\w.+-]*")


def name_folders(arguments: Sequence[str]) -> list[str]:
    """Names the folders of a sweep by its number and by what varies, where that can stand in a name.

    Values with slashes or other marks, such as paths and lists, are left out, and so is what would make names too long:
    the numbers tell such combinations apart, and the last line of a sweep says what each of them is.

    Args:
        arguments: of the command line.

    Returns:
        The arguments, with the settings of Hydra that name folders; as they are where there is no sweep, or
        `hydra.sweep.subdir` is among them.
    """
    settings = [argument for argument in arguments if not argument.startswith("-")]
    is_sweep = any(argument in ("-m", "--multirun") for argument in arguments)
    if not is_sweep or any(setting.startswith(f"{_SUBDIR}=") for setting in settings):
        return list(arguments)
    try:
        overrides = OverridesParser.create().parse_overrides(settings)
    except HydraException:  # Hydra says what is wrong with them.
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


def quote_names(arguments: Sequence[str]) -> list[str]:
    """Puts quotes around paths with equality signs, such as the folders of sweeps, which Hydra does not read otherwise.

    Args:
        arguments: of the command line; in a sweep (`-m`), commas separate its jobs.

    Returns:
        The arguments.
    """
    sweeps = any(argument in ("-m", "--multirun") for argument in arguments)
    written = []
    for argument in arguments:
        name, _, value = argument.partition("=")
        if "=" in value and not argument.startswith("-") and not re.search(r"['\"\[{(\\]", value):
            parts = value.split(",") if sweeps else [value]
            argument = f"{name}={','.join(repr(part) if '=' in part else part for part in parts)}"
        written.append(argument)
    return written


def _longest_name(override: Override) -> int | None:
    """Returns the characters of the longest "key=value" of an option that varies; None where one is no name."""
    if not override.is_discrete_sweep():
        return len(override.get_key_element()) + 1 + _OF_INTERVALS
    try:
        values = [str(value) for value in override.sweep_iterator(transformer=Transformer.encode)]
    except HydraException:  # glob(...), whose names Hydra looks up.
        return None
    if not all(_PLAIN.fullmatch(value) for value in values):
        return None
    return len(override.get_key_element()) + 1 + max(map(len, values))
