"""The config of every stage of a run."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

from omegaconf import MISSING

from jaxagents.ops.checks import require_positive

_FOLDER_NAME = re.compile(r"(?!\.)[\w .-]+")


def stage_configs(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns the config of every stage by its name, in order; without stages, the whole config under its name.

    A stage is `{name, overrides ...}`. It starts from the end of the previous stage, or of the earlier one that `from`
    names (null: from random parameters); in the returned config, `from` is the name, or None. `{rounds: n, name, ...}`
    stands for n stages, `<name>_1` to `<name>_n`, and `{rounds: n, stages: [...]}` for n repetitions of the block; in a
    block, `from` means the latest stage of that name.

    Args:
        config: see `resolve`.

    Raises:
        ValueError: two stages have the same name, a stage has none, or starts from a stage that is not earlier.
    """
    stages: dict[str, dict[str, Any]] = {}
    latest: dict[str, str] = {}  # The last stage of every name, with and without its round number.
    for name, suffix, override in _expand(config["stages"] or [{"name": config["name"]}], ""):
        if config["stages"] and not _FOLDER_NAME.fullmatch(str(name)):  # It becomes a folder name.
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
    """Makes the function that returns the user's name of a setting of a stage.

    A learner holds the options that its section refers to: `learner.policy.encoder` is `policy.encoder` if it equals
    that of the config. Names of a stage's own settings begin with the stage's name.

    Args:
        config: resolved config of the run.
        name: name of the stage.
        stage: config of the stage, see `stage_configs`.

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
    """Yields the name, the round number and the overrides of every stage."""
    for node in nodes:
        require_positive("stages.rounds", node.get("rounds", 1))
        for number in range(1, node.get("rounds", 1) + 1):
            numbered = f"{suffix}_{number}" if "rounds" in node else suffix
            if "stages" in node:
                yield from _expand(node["stages"], numbered)
            else:
                yield node.get("name"), numbered, {k: v for k, v in node.items() if k not in ("name", "rounds")}


def _merge(config: Mapping[str, Any], override: Mapping[str, Any]) -> dict[str, Any]:
    """Merges the overrides of a stage into a config; a group with another `_target_` replaces the whole group."""
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
    """Returns a copy of an override, merged into the base if both are sections; missing keys come from the base."""
    if not isinstance(override, Mapping):
        return deepcopy(override)
    merged = deepcopy(dict(base)) if isinstance(base, Mapping) else {}
    for name, value in override.items():
        if value != MISSING or name not in merged:
            merged[name] = _merge_nodes(merged.get(name), value)
    return merged
