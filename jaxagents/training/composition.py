"""Composing experiments outside of their script."""

from pathlib import Path

import hydra
from omegaconf import DictConfig


def compose(config_folder: str | Path, *overrides: str) -> DictConfig:
    """Composes `configs/train.yaml`, as `experiments/train.py` would with the same arguments.

    Args:
        config_folder: holds `train.yaml`.
        *overrides: such as "experiment=grpo_bandit".

    Returns:
        The config.
    """
    hydra.core.global_hydra.GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(str(Path(config_folder).resolve()), version_base="1.3"):
        return hydra.compose("train", list(overrides))


def merge_overrides(*lists: list[str]) -> list[str]:
    """Joins lists of overrides; a later one takes the place of an earlier one of the same key.

    Hydra itself refuses to hear the option of a group twice.
    """
    merged: dict[str, str] = {}
    for override in (override for overrides in lists for override in overrides):
        key = override.partition("=")[0].lstrip("+")
        merged.pop(key, None)
        merged[key] = override
    return list(merged.values())
