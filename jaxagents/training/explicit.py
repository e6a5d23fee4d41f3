"""What a user writes on the command line wins, or is refused where nothing would come of it."""

import inspect
import re
from collections.abc import Iterator, Sequence
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.utils import get_object
from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict


def honour_overrides(config: DictConfig, overrides: Sequence[str]) -> None:
    """Lets values of the command line count in quick runs, and refuses what is no number or has no effect.

    Args:
        config: composed; `when_quick` of it is changed where the command line names a key that it sets, and whole
            floats, as in `collector.num_envs=1e3`, become integers where a function takes these.
        overrides: arguments, such as "training.total_steps=4096" or "collector=transcripts".

    Raises:
        ValueError: a list or a fraction stands where a function takes one number or a whole one, or a value has no
            effect, since all stages have one of their own in its place, or since no stage refers to its option.
    """
    stages = list(_stages(config, config.stages))
    for key, text in _keys_of(overrides):
        _require_number(config, key, text)
        if config.quick and OmegaConf.select(config.when_quick, key) is not None:
            OmegaConf.update(config.when_quick, key, OmegaConf.select(config, key), merge=False)
        if stages and all(_replaces(config, stage, key) for stage in stages):
            raise ValueError(_without_effect(key, text, [stage["name"] for stage in stages]))
        if key == "policy" and _names_values():
            continue
        if not any(_reads(config, stage, key.partition(".")[0]) for stage in stages or [{}]):
            raise ValueError(_without_reader(key, text, stages))


def leave_out_unknown(config: DictConfig, overrides: Sequence[str]) -> None:
    """Takes out what was set for another option, where the command line chooses the option of a stage.

    With `collector@warm_start.collector=transcripts`, files replace demonstrations, whose noise and number the
    world and quick runs have set. What the command line itself sets stays, to be refused. Where it chooses an option
    for the whole run, as in `collector=preferences stages=[]`, what quick runs set for another one is left out.

    Args:
        config: composed, is changed.
        overrides: arguments.

    Raises:
        ValueError: the option has a setting without a default, which nothing gives.
    """
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    written = {override.key_or_group for override in parsed if override.package is None}
    for override in parsed:
        place = override.package or override.key_or_group
        node = None if override.is_delete() else OmegaConf.select(config, place)
        if not isinstance(node, DictConfig) or "_target_" not in node:
            continue
        for key in node if override.package else ():
            if OmegaConf.is_missing(node, key):
                raise ValueError(f"`{place}.{key!s}` must be given, got nothing; try {place}.{key!s}=...")
        parameters = inspect.signature(get_object(node._target_)).parameters
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            continue
        sections = (node if override.package else None, OmegaConf.select(config.when_quick, place))
        for section in filter(None, sections):
            unknown = [key for key in section if not key.startswith("_") and key not in parameters]
            with open_dict(section):
                for key in [key for key in unknown if f"{place}.{key}" not in written]:
                    del section[key]


def require_rewards_on_arrays(config: DictConfig) -> None:
    """Refuses functions of texts among rewards that are compiled.

    Args:
        config: composed.

    Raises:
        ValueError: a function of `learner.rewards` takes prompts or completions, as TRL's do.
    """
    rewards = OmegaConf.select(config, "learner.rewards")
    for name in map(str, rewards if isinstance(rewards, DictConfig) else ()):
        target = rewards[name].get("_target_") if isinstance(rewards[name], DictConfig) else None
        signature = None if target is None else inspect.signature(get_object(target))
        if signature and {"prompts", "completions"} & set(signature.parameters):
            raise ValueError(
                f"`learner.rewards.{name}` must be a function of (view, *, axis_name), which reads arrays, got {target}"
                f"{signature}; try collector=rewarded 'collector.reward={{_target_: {target}, _partial_: true}}'."
            )


# Sections that a stage is built of; options in other places count where these refer to them.
_BUILT = ("environment", "learner", "collector", "training", "evaluation")


def _stages(config: DictConfig, nodes: Any) -> Iterator[dict[str, Any]]:
    """Yields the stages of a list as they are written, those of its rounds once."""
    for index in range(len(nodes)):
        if "stages" in nodes[index]:
            yield from _stages(config, nodes[index].stages)
        else:
            stage: Any = OmegaConf.to_container(nodes[index])
            yield stage


def _keys_of(overrides: Sequence[str]) -> Iterator[tuple[str, str]]:
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        if not override.is_delete() and override.package is None:
            yield override.key_or_group.replace("/", "."), str(override.input_line).lstrip("+")


def _replaces(config: DictConfig, stage: dict[str, Any], key: str) -> bool:
    """Tells whether a stage says something else in the place of a key, or of the group that it belongs to."""
    group = key.partition(".")[0]
    own, shared = stage.get(group), OmegaConf.select(config, group)
    if isinstance(own, dict) and "_target_" in own and own["_target_"] != shared.get("_target_"):
        return True
    return key != group and OmegaConf.select(OmegaConf.create(stage), key) is not None


def _require_number(config: DictConfig, key: str, text: str) -> None:
    """Refuses a list of values where the function of an option takes one number, and fractions of whole ones."""
    section, _, name = key.rpartition(".")
    options: Any = OmegaConf.select(config, section) if section else None
    target = options.get("_target_") if isinstance(options, DictConfig) else None
    value = options.get(name) if target else None
    if target is None or not isinstance(value, ListConfig | float | str):
        return
    parameter = inspect.signature(get_object(target)).parameters.get(name)
    taken = "" if parameter is None else str(parameter.annotation)
    if not isinstance(value, ListConfig):
        if isinstance(value, str) and taken.endswith("Sequence[int]"):
            raise ValueError(f"`{key}` must be a list of whole numbers, got {value}; try {key}=[64,64].")
        if taken in ("<class 'int'>", "int", "int | None"):
            if isinstance(value, str) or not value.is_integer():
                raise ValueError(f"`{key}` must be a whole number, got {value}.")
            options[name] = int(value)
        return
    if "float" in taken and not any(word in taken.lower() for word in ("sequence", "tuple", "list", "mapping")):
        values = ",".join(map(str, options[name]))
        raise ValueError(
            f"`{key}` must be one number, got {text.partition('=')[2]}; try -m {key}={values} for a run each."
        )


def _names_values() -> bool:
    """Tells whether the policy that was chosen says which Q-function there is, `value=q_${policy}`."""
    choices: Any = HydraConfig.get().runtime.choices if HydraConfig.initialized() else {}
    return choices.get("value") == f"q_{choices.get('policy')}"


def _reads(config: DictConfig, stage: dict[str, Any], group: str) -> bool:
    """Tells whether a stage is built of an option, or refers to it; what is no option counts in any case."""
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
