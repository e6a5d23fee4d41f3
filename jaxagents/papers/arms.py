"""One arm of a paper: composed, and trained from the shared start."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from jaxagents.papers.spec import Arm, Paper, Variant
from jaxagents.training.build import Stage, build_stage, resolve, stage_configs
from jaxagents.training.composition import compose, merge_overrides
from jaxagents.training.config import DevicesConfig, config_hash, make_section
from jaxagents.types import LanguagePolicy


@dataclass(frozen=True)
class Composed:
    """An arm with its resolved config.

    Attributes:
        name: of the arm.
        config: resolved; of an arm with a target its node.
        digest: hash of everything in the config that changes results; seeds do not count.
    """

    name: str
    config: dict[str, Any]
    digest: str


def compose_arm(
    paper: Paper,
    arm: Arm,
    config_folder: Path,
    *,
    overrides: Sequence[str] = (),
    arguments: Mapping[str, Any] | None = None,
    quick: bool = False,
) -> Composed:
    """Composes an arm.

    Args:
        paper: that it belongs to.
        arm: to compose.
        config_folder: of the experiments.
        overrides: further ones, of a variant of the paper.
        arguments: further ones of an arm with a target, of a variant of the paper.
        quick: merges the experiment's `when_quick`.

    Returns:
        The arm with its config.

    Raises:
        ValueError: the arm has no stage that the paper's `start` names first.
    """
    if arm.target is not None:
        node = {**(paper.arguments or {}), **arm.target, **(arguments or {})}
        return Composed(name=arm.name, config=node, digest=config_hash(node))
    wanted = [*arm.overrides, f"quick={str(quick).lower()}"]
    config = resolve(compose(config_folder, *merge_overrides(wanted, list(overrides))))
    first = next(iter(stage_configs(config)))
    if paper.start is not None and first != paper.start:
        raise ValueError(
            f"`start` must be the first stage of the arm {arm.name}, got {paper.start!r}; its stages are "
            f"{', '.join(stage_configs(config))}."
        )
    counted = {key: value for key, value in config.items() if key not in ("name", "seed", "seeds")}
    return Composed(name=arm.name, config=config, digest=config_hash({**counted, "start": paper.start}))


def compose_arms(
    paper: Paper, config_folder: Path, *, quick: bool = False, full: bool = False, overrides: Sequence[str] = ()
) -> dict[str, Composed]:
    """Composes every arm of a paper as it is now.

    Args:
        paper: see `papers.load_paper`.
        config_folder: of the experiments.
        quick: the paper's small variant.
        full: its large one.
        overrides: further ones of all arms.

    Returns:
        The arms by name.
    """
    variant = variant_of(paper, quick=quick, full=full)
    options = {"overrides": (*variant.overrides, *overrides), "arguments": variant.arguments, "quick": quick}
    return {arm.name: compose_arm(paper, arm, config_folder, **options) for arm in paper.arms}


def variant_of(paper: Paper, *, quick: bool, full: bool) -> Variant:
    """Returns what `quick=true` or `full=true` changes."""
    return paper.when_full if full else paper.when_quick if quick else Variant()


def build_stages(composed: Composed, num_seeds: int, *, start: str | None) -> list[Stage]:
    """Builds what an arm trains for every seed: all stages but the shared one.

    Args:
        composed: the arm.
        num_seeds: trained side by side.
        start: name of the shared stage, None without.

    Returns:
        The stages, in order.
    """
    devices = make_section(DevicesConfig, "devices", composed.config["devices"])
    configs = stage_configs({**composed.config, "seeds": num_seeds})
    return [build_stage(name, config, devices) for name, config in configs.items() if name != start]


def budget_of(stages: Sequence[Stage]) -> tuple[str, int]:
    """Returns the unit in which an arm counts, and the length of its training per seed."""
    unit = "episodes" if isinstance(stages[-1].policy, LanguagePolicy) else "env_steps"
    return unit, sum(stage.num_updates * stage.steps_per_update for stage in stages)


def logged_names(stages: Sequence[Stage]) -> list[str]:
    """Returns the names of everything that the stages log, without computing anything."""
    names: set[str] = set()
    for stage in stages:
        abstract = stage.runner.abstract
        evaluated = jax.eval_shape(lambda learner, stage=stage: stage.evaluate(learner.params), abstract.learner)
        names |= {f"eval/{name}" for name in evaluated}
        names |= set(jax.eval_shape(lambda state, stage=stage: stage.runner.run(state, 1)[1], abstract))
    return sorted(names)
