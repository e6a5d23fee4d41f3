"""Checks that a composition fits: text worlds with language models, worlds of arrays with their learners."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationKeyError
from omegaconf.resolvers import oc

from jaxagents.environments.text.checks import require_expert, require_split
from jaxagents.language.checkpoints.families import decoder_settings
from jaxagents.language.checkpoints.tensors import read_json
from jaxagents.language.tokenizers import TOKENIZER_FILES
from jaxagents.training.methods import NotChosen
from jaxagents.training.setting_types import find_function
from jaxagents.types import Environment

_LANGUAGE_POLICIES = (
    "jaxagents.language.policy.make_language_policy",
    "jaxagents.language.chat_world.make_chat_policy",
)
_SLOTS = ("advantage", "loss", "aggregation", "preference")  # Chosen by algorithms of language models.
_DIALOGUE_COLLECTOR = "jaxagents.language.collect.make_dialogue_collector"
_EXPERT_COLLECTORS = (  # Their batches are demonstrations of a world's expert.
    "jaxagents.language.demonstrations.make_demonstration_collector",
    "jaxagents.language.demonstrations.make_demonstrated_collector",
    "jaxagents.language.accompanied.make_accompanied_collector",
)
_TRANSCRIPT_COLLECTOR = "jaxagents.data.transcripts.make_transcript_collector"
_POLICY_GRADIENT = "jaxagents.learners.policy_gradient.make_agent"
_CHECKPOINT = "jaxagents.language.checkpoints.read.load_language_model"
_LABEL_COLLECTOR = "jaxagents.data.preferences.make_label_collector"

_VARIABLE = "${oc.env:"
_PLACES = ("run_dir", "start_from", "devices", "logging")  # Sections that are always resolved at once.


def to_plain(config: DictConfig, fits: Sequence[str] | None = None) -> dict[str, Any]:
    """Resolves a config to plain data; `${oc.env:NAME}` is kept, except where it gives the place of a run.

    Stored configs thus hold no values of environment variables, such as tokens; see `read_variables`.

    Args:
        config: composed config.
        fits: worlds that the algorithm names, for the message.

    Raises:
        NotChosen: something refers to an option that is not chosen.
    """
    try:
        plain: Any = OmegaConf.to_container(config, resolve=True)
        if _VARIABLE not in str(OmegaConf.to_container(config)):
            return plain
        OmegaConf.register_new_resolver("oc.env", _write_variable, replace=True)
        try:
            kept: Any = OmegaConf.to_container(config, resolve=True)
        finally:
            OmegaConf.register_new_resolver("oc.env", oc.env, replace=True)
        return {name: plain[name] if name in _PLACES else kept[name] for name in plain}
    except InterpolationKeyError as error:
        missing = str(error).split("'")[1]
        advice = (
            "worlds of words and algorithms of language models need each other, as in world=frozenlake algorithm=grpo "
            "(PPO is ppo_lm there)"
        )
        if fits is not None and not {*fits} & {"words", "frozenlake"}:
            worlds = " or ".join(f"world={world}" for world in fits[:3])
            advice = f"the algorithm fits {worlds}" if fits else "the algorithm fits its own experiments, see `--list`"
        if str(error.full_key).startswith("evaluation."):
            advice = "an evaluation that plans as the algorithm does needs such a one, as algorithm=muzero"
        raise NotChosen(f"`{missing}` must be chosen for `{error.full_key}`, got nothing", advice) from error


def read_variables(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a resolved config with the values of the environment variables that it names."""
    if _VARIABLE not in str(config):
        return dict(config)
    read: Any = OmegaConf.to_container(OmegaConf.create(dict(config)), resolve=True)
    return read


def _write_variable(name: str, *default: Any) -> str:
    """Writes the reference to an environment variable in place of its value."""
    return f"{_VARIABLE}{','.join([name, *map(_write_default, default)])}}}"


def _write_default(value: Any) -> str:
    if value is None or _VARIABLE in str(value):  # References cannot be quoted together with other text.
        return "null" if value is None else str(value)
    escaped = str(value).replace("'", "\\'")
    return f"'{escaped}'"


def require_fit(config: Mapping[str, Any], environment: Environment) -> None:
    """Refuses learners of language models in worlds of arrays, and vice versa.

    Args:
        config: resolved config of a stage.
        environment: environment that the config names.

    Raises:
        ValueError: they do not fit; says what does not fit, and what would.
    """
    speaks = require_kin(config, environment)
    learner = config["learner"]
    if (
        speaks
        and environment.text is not None
        and (policy := _policy_of(learner))["model"].get("_target_") == _CHECKPOINT
        and "source" not in learner
        and "tokenizer" in policy
    ):
        _require_tokens(policy["model"]["path"], policy["tokenizer"], environment.text.words)
    _require_groups(learner, config["collector"])
    _require_imitation(learner, config["collector"])


def explain_misfit(config: Mapping[str, Any]) -> None:
    """Refuses a learner for another kind of worlds or batches; used when its settings fail.

    Args:
        config: resolved config of a stage.

    Raises:
        ValueError: the learner does not fit; says what would.
    """
    try:
        environment = instantiate(OmegaConf.create(dict(config["environment"])))
    except Exception:  # Reported where it is built.
        return
    if isinstance(environment, Environment) and isinstance(config.get("learner"), Mapping):
        require_kin(config, environment)
        _require_imitation(config["learner"], config.get("collector") or {})


def require_kin(config: Mapping[str, Any], environment: Environment) -> bool:
    """Refuses learners of language models in worlds of arrays, and vice versa; tells whether the policy speaks.

    Args:
        config: resolved config of a stage.
        environment: environment that the config names.

    Raises:
        ValueError: they do not fit; says what would.
    """
    learner = config["learner"]
    speaks = _policy_of(learner).get("_target_") in _LANGUAGE_POLICIES
    if environment.text is not None and not speaks:
        raise ValueError(
            f"`environment` must be of arrays for this policy and learner, got {environment.name}, which is in words; "
            "try algorithm=grpo with a world of words, or environment=frozenlake_symbolic policy=embedding_mlp."
        )
    if environment.text is None and (speaks or any(slot in config and slot not in learner for slot in _SLOTS)):
        raise ValueError(
            f"`environment` must be in words for an algorithm of language models, got {environment.name}; try "
            "world=frozenlake, or algorithm=ppo."
        )
    return speaks


def _policy_of(learner: Mapping[str, Any]) -> Mapping[str, Any]:
    policy = learner.get("policy") or (learner.get("inner") or {}).get("policy")
    return policy if isinstance(policy, Mapping) else {}


def require_value(config: Mapping[str, Any]) -> None:
    """Refuses learners that lack the Q-functions they need.

    Args:
        config: resolved config of a stage.

    Raises:
        ValueError: the Q-functions are missing; says what would fit.
    """
    learner = config.get("learner")
    if isinstance(learner, Mapping) and learner.get("value") == {}:
        raise ValueError(
            "`value` must be chosen for this learner, got none; try value=q_mlp, or value=twin_q_mlp for continuous "
            "actions."
        )


def require_tasks(options: Mapping[str, Any] | None, environment: Environment) -> None:
    """Refuses options of a text world without training tasks or held-out tasks, as drawing one would never end.

    Tasks are drawn in a separate program, which takes half a second to compile.

    Args:
        options: resolved options of the environment; None if it has no options of its own.
        environment: environment that they belong to.

    Raises:
        ValueError: a level has no tasks on one side of the split.
    """
    rules = None if environment.text is None else environment.text.rules
    if options is not None and rules is not None and "held_out_fraction" in options:
        require_split(rules, options["held_out_fraction"])


def require_experts(stages: Iterable[tuple[Mapping[str, Any], Environment]]) -> None:
    """Refuses to imitate an expert that solves nothing; each world is played once, which takes seconds.

    Args:
        stages: resolved config of each stage, and its environment.

    Raises:
        ValueError: see `require_expert`.
    """
    played: list[Any] = []
    for config, environment in stages:
        if config["collector"].get("_target_") in _EXPERT_COLLECTORS and config["environment"] not in played:
            require_expert(environment)
            played.append(config["environment"])


def _require_tokens(path: str | Path, tokenizer: Mapping[str, Any], words: Sequence[str]) -> None:
    """Refuses tokens that differ from those of a checkpoint: their ids would select rows with other meanings.

    A checkpoint of a model with a tokenizer of this package has none in its folder, and one row per token.
    """
    folder = Path(path).expanduser()
    if not (folder / "config.json").is_file():
        return  # The code that reads the checkpoint says what is missing.
    rows = decoder_settings(read_json(folder / "config.json"))["vocab_size"]  # An unsupported family is reported here.
    own = instantiate(OmegaConf.create(dict(tokenizer)))(words)
    kind = json.loads(own.data.partition(b"\n")[0])["kind"]
    named = any((folder / name).is_file() for name in TOKENIZER_FILES)
    if kind == "huggingface" or (not named and own.vocab_size == rows):
        return
    instead = "tokenizer=huggingface, or leave it out" if named else f"copying {TOKENIZER_FILES[0]} of the model there"
    raise ValueError(
        f"`tokenizer` must be that of the checkpoint, got {own.name!r} of {own.vocab_size} tokens for {folder} with "
        f"{rows}, whose rows mean other text; try {instead}."
    )


def _require_imitation(learner: Mapping[str, Any], collector: Mapping[str, Any]) -> None:
    """Refuses policy gradients on transcripts, which were not sampled from the policy and have no rewards."""
    while "inner" in learner:
        learner = learner["inner"]
    if collector.get("_target_") == _TRANSCRIPT_COLLECTOR and learner.get("_target_") == _POLICY_GRADIENT:
        raise ValueError(
            "`learner` must imitate transcripts, got policy gradients; try learner=supervised, or where it is wrapped "
            "`learner.inner`, as in learner@warm_start.learner=adapted learner@warm_start.learner.inner=supervised."
        )


def _require_groups(learner: Mapping[str, Any], collector: Mapping[str, Any]) -> None:
    """Refuses methods that compare the episodes of a task if every task has one episode: nothing would be learned."""
    labelled = collector.get("_target_") == _LABEL_COLLECTOR
    alone = labelled or (collector.get("_target_") == _DIALOGUE_COLLECTOR and collector["group_size"] == 1)
    while "inner" in learner:
        learner = learner["inner"]
    if not alone or learner.get("credits"):
        return
    unpaired = learner.get("loss", {}).get("_target_") == "jaxagents.losses.preference.kto"
    for slot, instead in (("advantage", "advantage=reinforce"), ("pairs", "algorithm=kto")):
        target = (learner.get(slot) or {}).get("_target_")
        if target is None or (slot == "pairs" and unpaired):
            continue
        function = find_function(target, f"{slot}._target_")
        if not getattr(function, "within_groups", False):
            continue
        choice = f"{slot}={function.__name__}"
        if labelled:
            raise ValueError(
                f"`collector` must give what {choice} compares, got labels, of single transcripts; try {instead}, or "
                "collector=preferences."
            )
        raise ValueError(
            f"`collector.group_size` must be at least 2 for {choice}, which compares the episodes of a task with each "
            f"other, got 1; try collector.group_size=8, or {instead}."
        )
