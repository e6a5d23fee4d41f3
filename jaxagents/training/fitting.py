"""Whether what was composed fits together: worlds of words and language models, worlds of arrays and their learners."""

from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationKeyError

from jaxagents.types import Environment

_LANGUAGE_POLICY = "jaxagents.language.policy.make_language_policy"
_SLOTS = ("advantage", "loss", "aggregation", "preference")  # That algorithms of language models choose.


def to_plain(config: DictConfig) -> dict[str, Any]:
    """Resolves a config to plain data.

    Raises:
        ValueError: something refers to an option that nothing has chosen.
    """
    try:
        plain: Any = OmegaConf.to_container(config, resolve=True)
        return plain
    except InterpolationKeyError as error:
        missing = str(error).split("'")[1]
        raise ValueError(
            f"`{missing}` must be chosen for `{error.full_key}`, got nothing; worlds of words and algorithms of "
            "language models need each other, as in world=frozenlake algorithm=grpo."
        ) from error


def require_fit(config: Mapping[str, Any], environment: Environment) -> None:
    """Refuses learners without their Q-functions, learners of language models in worlds of arrays, and the opposite.

    Args:
        config: of a stage, resolved.
        environment: that it names.

    Raises:
        ValueError: says what does not fit, and what would.
    """
    learner = config["learner"]
    policy = learner.get("policy") or learner.get("inner", {}).get("policy") or {}
    speaks = policy.get("_target_") == _LANGUAGE_POLICY
    if environment.text is not None and not speaks:
        raise ValueError(
            f"`environment` must be of arrays for this policy and learner, got {environment.name}, which is in words; "
            "try algorithm=grpo with a world of words, or environment=frozenlake_symbolic policy=embedding_mlp."
        )
    if learner.get("value") == {}:
        raise ValueError(
            "`value` must be chosen for this learner, got none; try value=q_mlp, or value=twin_q_mlp for continuous "
            "actions."
        )
    if environment.text is None and (speaks or any(slot in config and slot not in learner for slot in _SLOTS)):
        raise ValueError(
            f"`environment` must be in words for an algorithm of language models, got {environment.name}; try "
            "world=frozenlake, or algorithm=ppo."
        )
