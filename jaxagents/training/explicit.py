"""Settings of the command line: they win over others, or are refused if they would have no effect."""

import inspect
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict

from jaxagents.training.arguments import parse_overrides
from jaxagents.training.listing import worlds_in_words
from jaxagents.training.methods import chosen_methods, method_files, read_method
from jaxagents.training.setting_types import find_function, takes_numbers
from jaxagents.training.signatures import Taken, settings_of

_LEVEL_COLLECTOR = "jaxagents.rollouts.levels.make_level_collector"
_MOST_WORLDS = 6  # Number of worlds that an error lists.


def honour_overrides(config: DictConfig, overrides: Sequence[str]) -> None:
    """Lets settings of the command line win in quick runs, and refuses those without effect.

    Args:
        config: composed config; its `when_quick` is changed if the command line names a key that it sets.
        overrides: arguments, such as "training.total_steps=4096" or "collector=transcripts".

    Raises:
        ValueError: a value has no effect, since all stages override it with their own, or since no stage refers to its
            option.
    """
    _require_kept(config, overrides)
    stages = list(_stages(config, config.stages))
    for key, text in [*_keys_of(overrides), *_groups_of_methods(overrides)]:
        if config.quick and _has(config.when_quick, key):
            OmegaConf.update(config.when_quick, key, OmegaConf.select(config, key), merge=False)
        if stages and all(_replaces(config, stage, key) for stage in stages):
            raise ValueError(_without_effect(key, text, [stage["name"] for stage in stages]))
        if key == "policy" and _names_values():
            continue
        if not any(_reads(config, stage, key.partition(".")[0]) for stage in stages or [{}]):
            raise ValueError(_without_reader(key, text, stages))


def leave_out_unknown(config: DictConfig, overrides: Sequence[str]) -> None:
    """Removes settings of a replaced option, if the command line chooses the option of a stage.

    With `collector@warm_start.collector=transcripts`, files replace demonstrations, whose noise and number the world
    and quick runs have set. Settings of the command line itself are kept, and refused later. If it chooses an option
    for the whole run, as in `collector=preferences stages=[]`, the settings of quick runs for another option are
    removed.

    Args:
        config: composed config, which is changed.
        overrides: arguments of the command line.
    """
    parsed = parse_overrides(overrides)
    written = {override.key_or_group for override in parsed if override.package is None}
    for override in parsed:
        place = override.package or override.key_or_group
        node = None if override.is_delete() else OmegaConf.select(config, place)
        if not isinstance(node, DictConfig) or "_target_" not in node:
            continue
        taken = _settings_of(node, place)
        if taken.is_open:
            continue
        sections = (node if override.package else None, OmegaConf.select(config.when_quick, place))
        for section in filter(None, sections):
            unknown = [key for key in section if not key.startswith("_") and key not in taken.annotations]
            with open_dict(section):
                for key in [key for key in unknown if f"{place}.{key}" not in written]:
                    del section[key]


def require_rewards_on_arrays(config: DictConfig) -> None:
    """Refuses functions of texts among compiled rewards.

    Args:
        config: composed config.

    Raises:
        ValueError: a function of `learner.rewards` takes prompts or completions, as those of TRL do.
    """
    rewards = OmegaConf.select(config, "learner.rewards")
    for name in map(str, rewards if isinstance(rewards, DictConfig) else ()):
        target = rewards[name].get("_target_") if isinstance(rewards[name], DictConfig) else None
        signature = target and inspect.signature(find_function(target, f"learner.rewards.{name}._target_"))
        if signature and {"prompts", "completions"} & set(signature.parameters):
            raise ValueError(
                f"`learner.rewards.{name}` must be a function of (view, *, axis_name), which reads arrays, got {target}"
                f"{signature}; try collector=rewarded 'collector.reward={{_target_: {target}, _partial_: true}}'."
            )


def require_fitting_world(config: DictConfig, folder: str | Path) -> None:
    """Refuses a world that the algorithm cannot train on: of the wrong kind, or without levels for a curriculum.

    Other worlds that the algorithm's `fits` does not name may be tried, and a user's own worlds always.

    Args:
        config: composed config.
        folder: folder `configs`, whose worlds and algorithms are compared.

    Raises:
        ValueError: the world does not fit; says which worlds do.
    """
    chosen: Any = HydraConfig.get().runtime.choices
    algorithm = chosen.get("algorithm@_global_") or chosen.get("algorithm")  # The first is chosen by a method.
    world, fits = chosen.get("world"), config.get("fits")
    if not fits or world in fits or not Path(folder, "world", f"{world}.yaml").is_file():
        return
    in_words = worlds_in_words(folder)
    speaks, is_in_words = {*fits} <= {*in_words, "words"}, world in in_words
    kind = None
    if speaks != is_in_words:
        kind = "in words" if speaks else "of arrays"
    elif config.collector.get("_target_") == _LEVEL_COLLECTOR:
        kind = "one with levels"
    if kind is not None:
        known = [*fits] if fits != ["words"] else in_words
        named = ", ".join(known[:_MOST_WORLDS]) + (", ..." if len(known) > _MOST_WORLDS else "")
        raise ValueError(f"`world` must be {kind} for algorithm={algorithm}, got {world}; {algorithm} fits {named}.")


# Sections that a stage is built from; options elsewhere count if these sections refer to them.
_BUILT = ("environment", "learner", "collector", "training", "evaluation")


def _stages(config: DictConfig, nodes: Any) -> Iterator[dict[str, Any]]:
    """Yields the stages of a list as they are written; rounds of a stage are yielded once."""
    if not isinstance(nodes, ListConfig) or not all(isinstance(node, DictConfig) for node in nodes):
        raise ValueError(f"`stages` must be a list of {{name: ..., and what is changed}}, got {nodes}; try stages=[].")
    for index in range(len(nodes)):
        if "stages" in nodes[index]:
            yield from _stages(config, nodes[index].stages)
        else:
            stage: Any = OmegaConf.to_container(nodes[index])
            yield stage


def _keys_of(overrides: Sequence[str]) -> Iterator[tuple[str, str]]:
    for override in parse_overrides(overrides):
        if not override.is_delete() and override.package is None:
            yield override.key_or_group.replace("/", "."), str(override.input_line).lstrip("+")


def _groups_of_methods(overrides: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields the groups whose options are chosen by methods, each with its method."""
    names = chosen_methods(overrides)
    sources = HydraConfig.get().runtime.config_sources if names else []
    files = method_files(*[source.path for source in reversed(sources) if source.schema == "file"])
    for name in names:
        yield from ((group, f"+method={name}") for group in read_method(files[name]).groups if "@" not in group)


def _replaces(config: DictConfig, stage: dict[str, Any], key: str) -> bool:
    """Tells whether a stage overrides a key, or the group that it belongs to."""
    group = key.partition(".")[0]
    own, shared = stage.get(group), OmegaConf.select(config, group)
    if isinstance(own, dict) and "_target_" in own and own["_target_"] != shared.get("_target_"):
        return True
    return key != group and OmegaConf.select(OmegaConf.create(stage), key) is not None


def _settings_of(options: DictConfig, key: str) -> Taken:
    """Returns the arguments of an option's function; settings of the option may be missing, or refer to others."""
    plain: Any = OmegaConf.to_container(options)
    return settings_of(find_function(plain["_target_"], f"{key}._target_"), plain)


def _has(config: DictConfig, key: str) -> bool:
    """Tells whether a config has a value for a key, including null."""
    section, _, name = key.rpartition(".")
    options = OmegaConf.select(config, section) if section else config
    return isinstance(options, DictConfig) and name in options


def _require_kept(config: DictConfig, overrides: Sequence[str]) -> None:
    """Refuses to delete a number that a function takes: the function's default would silently replace it."""
    for override in parse_overrides(overrides):
        section, _, name = override.key_or_group.rpartition(".")
        options: Any = OmegaConf.select(config, section) if override.is_delete() and section else None
        if not isinstance(options, DictConfig) or "_target_" not in options:
            continue
        function = find_function(options._target_, f"{section}._target_")
        kind = _settings_of(options, section).annotations.get(name)
        if kind is not None and takes_numbers(kind):
            raise ValueError(
                f"`{section}.{name}` must have a value, got none, for which {function.__name__} has its own; try "
                f"{section}.{name}=..."
            )


def _names_values() -> bool:
    """Tells whether the chosen policy determines the Q-function, `value=q_${policy}`."""
    choices: Any = HydraConfig.get().runtime.choices if HydraConfig.initialized() else {}
    return choices.get("value") == f"q_{choices.get('policy')}"


def _reads(config: DictConfig, stage: dict[str, Any], group: str) -> bool:
    """Tells whether a stage is built from an option or refers to it; True for anything that is not an option."""
    shared: Any = OmegaConf.to_container(config)
    if group in _BUILT or not isinstance(shared.get(group), dict) or "_target_" not in shared[group]:
        return True
    found, queue = set(), list(_BUILT)
    while queue:
        name = queue.pop()
        own, node = stage.get(name), shared.get(name)
        if isinstance(own, dict):
            other = isinstance(node, dict) and "_target_" in own and own["_target_"] != node.get("_target_")
            node = own if other else [own, node]
        found.add(name)
        queue += [root for root in re.findall(r"\$\{(\w+)[.}]", str(node)) if root in shared and root not in found]
    return group in found


def _without_reader(key: str, text: str, stages: Sequence[dict[str, Any]]) -> str:
    group = key.partition(".")[0]
    names = [stage["name"] for stage in stages]
    who = f"{' and '.join(names)}, which" if names else "a learner that"
    hint = f"leave it out, or choose what reads {group}"
    if len(stages) == 1 and group in stages[0].get("learner", {}) and key != group:
        hint = f"try {names[0]}.learner.{text}"
    return f"`{text}` must be used by a stage, got {who} does not refer to {group}; {hint}."


def _without_effect(key: str, text: str, names: Sequence[str]) -> str:
    group, _, rest = key.partition(".")
    hint = "try stages=[]"
    if len(names) == 1:
        own = f"{names[0]}.{key}" if rest else f"{group}@{names[0]}.{group}"
        hint = f"try {own}{text[text.index('=') :]}, or stages=[]"
    return f"`{text}` must be used by a stage, got {' and '.join(names)} with a {group} of its own; {hint}."
