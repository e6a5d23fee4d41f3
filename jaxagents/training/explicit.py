"""What a user writes on the command line wins, or is refused where nothing would come of it."""

from collections.abc import Iterator, Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf


def honour_overrides(config: DictConfig, overrides: Sequence[str]) -> None:
    """Lets values of the command line count in quick runs, and refuses those that every stage replaces.

    Args:
        config: composed; `when_quick` of it is changed where the command line names a key that it sets.
        overrides: arguments, such as "training.total_steps=4096" or "collector=transcripts".

    Raises:
        ValueError: a value has no effect, since all stages have one of their own in its place.
    """
    stages = list(_stages(config, config.stages))
    for key, text in _keys_of(overrides):
        if config.quick and OmegaConf.select(config.when_quick, key) is not None:
            OmegaConf.update(config.when_quick, key, OmegaConf.select(config, key), merge=False)
        if stages and all(_replaces(config, stage, key) for stage in stages):
            raise ValueError(_without_effect(key, text, [stage["name"] for stage in stages]))


def _stages(config: DictConfig, nodes: Any) -> Iterator[dict[str, Any]]:
    """Yields the stages of a list as they are written, those of its rounds once."""
    for index in range(len(nodes)):
        if "stages" in nodes[index]:
            yield from _stages(config, nodes[index].stages)
        else:
            yield OmegaConf.to_container(nodes[index])


def _keys_of(overrides: Sequence[str]) -> Iterator[tuple[str, str]]:
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        if not override.is_delete() and override.package is None:
            yield override.key_or_group.replace("/", "."), override.input_line.lstrip("+")


def _replaces(config: DictConfig, stage: dict[str, Any], key: str) -> bool:
    """Tells whether a stage says something else in the place of a key, or of the group that it belongs to."""
    group = key.partition(".")[0]
    own, shared = stage.get(group), OmegaConf.select(config, group)
    if isinstance(own, dict) and "_target_" in own and own["_target_"] != shared.get("_target_"):
        return True
    return key != group and OmegaConf.select(OmegaConf.create(stage), key) is not None


def _without_effect(key: str, text: str, names: Sequence[str]) -> str:
    group, _, rest = key.partition(".")
    hint = "try stages=[]"
    if len(names) == 1:
        own = f"{names[0]}.{key}" if rest else f"{group}@{names[0]}.{group}"
        hint = f"try {own}{text[text.index('=') :]}, or stages=[]"
    return f"`{text}` must be used by a stage, got {' and '.join(names)} with a {group} of its own; {hint}."
