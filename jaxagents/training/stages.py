"""The config of every stage of a run."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

from omegaconf import MISSING

from jaxagents.ops.checks import require_positive

_FOLDER_NAME = re.compile(r"(?!\.)[\w .-]+")


def stage_configs(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns the config of every stage by its name, in order; without stages the whole config under its name.

    A stage is `{name, overrides ...}`. It starts from the end of the stage before, or of the earlier one that `from`
    names (null: from random parameters); `from` in the config returned is the name, or None. `{rounds: n, name, ...}`
    is n stages, `<name>_1` to `<name>_n`, and `{rounds: n, stages: [...]}` n times the whole block; there, `from` means
    the latest stage of this name.

    Args:
        config: see `resolve`.

    Raises:
        ValueError: two stages have the same name, one has none, or starts from one that is not earlier.
    """
    stages: dict[str, dict[str, Any]] = {}
    latest: dict[str, str] = {}  # The last stage of every name, with and without the number of its round.
    for name, suffix, override in _expand(config["stages"] or [{"name": config["name"]}], ""):
        if config["stages"] and not _FOLDER_NAME.fullmatch(str(name)):  # Its checkpoints lie in a folder of this name.
            raise ValueError(
                f"`stages` must have names of letters, digits and ._-, got {name!r}; try name: warm_start."
            )
        if not name or name + suffix in stages:
            raise ValueError(f"`stages` must have different names, got {[*stages, name and name + suffix]}.")
        start = override.get("from", next(reversed(stages), None))
        if start is not None and start not in latest:
            raise ValueError(
                f"`from` of the stage {name + suffix!r} must name an earlier one, got {start!r}; try "
                f"{' or '.join(latest) or 'null'}."
            )
        stages[name + suffix] = _merge(config, override) | {"from": start and latest[start]}
        latest |= {name: name + suffix, name + suffix: name + suffix}
    return stages


def setting_names(config: Mapping[str, Any], name: str, stage: Mapping[str, Any]) -> Callable[[tuple[str, ...]], str]:
    """Makes the function that says what the user calls a setting of a stage.

    A learner holds the options that its section refers to: `learner.policy.encoder` is `policy.encoder` where it is the
    same as that of the config. What a stage sets itself begins with its name.

    Args:
        config: of the run, resolved.
        name: of the stage.
        stage: its config, see `stage_configs`.

    Returns:
        `(path in the stage) -> dotted key`.
    """

    def name_of(path: tuple[str, ...]) -> str:
        nodes: list[Any] = [stage]
        for part in path:
            parent = nodes[-1]
            nodes.append(parent.get(part) if isinstance(parent, Mapping) else None)
        for index in reversed(range(1, len(path))):
            node = nodes[index + 1]
            if isinstance(node, Mapping) and config.get(path[index]) == node:
                return ".".join(path[index:])
        own = config.get(name)
        return ".".join([name, *path] if isinstance(own, Mapping) and path[:1] and path[0] in own else path)

    return name_of


def _expand(nodes: Sequence[Mapping[str, Any]], suffix: str) -> Iterator[tuple[str | None, str, Mapping[str, Any]]]:
    """Yields name, number of the round, and overrides of every stage."""
    for node in nodes:
        require_positive("stages.rounds", node.get("rounds", 1))
        for number in range(1, node.get("rounds", 1) + 1):
            numbered = f"{suffix}_{number}" if "rounds" in node else suffix
            if "stages" in node:
                yield from _expand(node["stages"], numbered)
            else:
                yield node.get("name"), numbered, {k: v for k, v in node.items() if k not in ("name", "rounds")}


def _merge(config: Mapping[str, Any], override: Mapping[str, Any]) -> dict[str, Any]:
    """Merges what a stage says over a config; a group with another `_target_` takes the place of the whole group."""
    base = dict(config)
    override = {group: node for group, node in override.items() if group != "from"}
    for group, node in override.items():
        before = base.get(group)
        is_group = isinstance(node, Mapping) and isinstance(before, Mapping) and "_target_" in node
        if is_group and node["_target_"] != before.get("_target_"):  # type: ignore[union-attr]
            base.pop(group)
    merged: dict[str, Any] = _merge_nodes(base, override)
    return merged


def _merge_nodes(base: Any, override: Any) -> Any:
    """Returns a copy of an override, merged over the base where both are sections; what it leaves open stays."""
    if not isinstance(override, Mapping):
        return deepcopy(override)
    merged = deepcopy(dict(base)) if isinstance(base, Mapping) else {}
    for name, value in override.items():
        if value != MISSING or name not in merged:
            merged[name] = _merge_nodes(merged.get(name), value)
    return merged
