"""Runs that start from what an earlier run has learned: `start_from=<run directory>`."""

import sys
from functools import partial
from pathlib import Path

import jax
import numpy as np

from jaxagents.training.build import Experiment, Stage
from jaxagents.training.load import LoadedStage, load_stage
from jaxagents.types import LanguagePolicy, Params


def begin_from(experiment: Experiment, path: str | Path) -> Experiment:
    """Lets the first stage of an experiment start with the parameters of an earlier run.

    Optimisers and separate critics start afresh. If the earlier run has one seed, all seeds of the experiment start
    with the same parameters; if it has several, each seed continues from its own.

    Args:
        experiment: see `build`.
        path: run directory, whose best checkpoint is used.

    Returns:
        The experiment.

    Raises:
        ValueError: there is no checkpoint, or its parameters, tokens or seeds do not match those of the first stage.
    """
    try:
        loaded = load_stage(path, on_fallback=partial(print, file=sys.stderr))
    except ValueError as error:
        raise ValueError(str(error).replace("`path`", "`start_from`", 1)) from error
    stage = experiment.stages[0]
    _require_same_tokens(stage, loaded, path)
    start = _for_seeds(jax.device_get(loaded.params), loaded.num_seeds, experiment.num_seeds, path)
    _require_same_shapes(experiment, start, path)
    init = stage.runner.init

    def init_from(seed: int | np.ndarray, stage: int = 0, earlier: Params | None = None):
        return init(seed, stage, start if earlier is None else earlier)

    started = stage._replace(runner=stage.runner._replace(init=init_from))
    return Experiment(**vars(experiment) | {"stages": (started, *experiment.stages[1:])})


def _for_seeds(params: Params, saved: int, wanted: int, path: str | Path) -> Params:
    """Returns parameters with the seed axis of an experiment; 0 stands for no axis."""
    if saved == wanted:
        return params
    if not saved:
        return jax.tree.map(lambda leaf: np.broadcast_to(leaf, (wanted, *leaf.shape)), params)
    raise ValueError(
        f"`start_from` must be a run with as many seeds as this one, {max(wanted, 1)}, or with one, got {path} with "
        f"{saved}; try seeds={saved}."
    )


def _require_same_tokens(stage: Stage, loaded: LoadedStage, path: str | Path) -> None:
    own, other = stage.policy, loaded.stage.policy
    if not isinstance(own, LanguagePolicy) or not isinstance(other, LanguagePolicy):
        return
    if own.tokenizer.data != other.tokenizer.data:
        raise ValueError(
            f"`start_from` must be a run with the tokens of this one, got {path}, whose tokenizer "
            f"{other.tokenizer.name!r} is another one than {own.tokenizer.name!r}; try its world, or "
            "tokenizer=bytes for both."
        )


def _require_same_shapes(experiment: Experiment, start: Params, path: str | Path) -> None:
    stage, smaller = experiment.stages[0], "quick=false, since quick=true makes models smaller, or "
    wanted, given = (
        {jax.tree_util.keystr(name, simple=True, separator="/"): leaf.shape for name, leaf in leaves}
        for leaves in map(jax.tree_util.tree_leaves_with_path, (stage.runner.abstract.learner.params, start))
    )
    for name in sorted({*wanted, *given}):
        if wanted.get(name) != given.get(name):
            shapes = [str(list(shapes[name])) if name in shapes else "none" for shapes in (wanted, given)]
            raise ValueError(
                f"`start_from` must be a run of the same policy, got {path}, where {name} is {shapes[1]} and not "
                f"{shapes[0]}; try {smaller if experiment.config['quick'] else ''}its policy, model and learner."
            )
