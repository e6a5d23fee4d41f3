"""Every method of `configs/method`: its header, its composition, and that switching it on changes the program."""

import re
from itertools import chain

import jax
import pytest
from hydra.errors import HydraException

from jaxagents.papers.arms import build_stages, compose_arm
from jaxagents.papers.batch import check_batch, compose_batch
from jaxagents.papers.library import load_batch, study_files
from jaxagents.training.methods import chosen_methods, method_files, read_method
from tests import CONFIGS
from tests.papers.requests import request

EXPERIMENTS = CONFIGS.parent / "experiments"
METHODS = {name: read_method(path) for name, path in method_files(CONFIGS).items()}
STUDIES = {name.partition("/")[2]: name for name in study_files(EXPERIMENTS)}
# Methods of studies that are there and train, by the first arm that switches them on.
ARMS = {}
for _name in STUDIES.values():
    _batch = load_batch(EXPERIMENTS, _name, (100,))
    for _arm in _batch.arms:
        for _method in chosen_methods(_arm.overrides):
            if METHODS[_method].function is None:
                ARMS.setdefault(_method, (_batch.study, _arm))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", STUDIES)
def test_every_arm_of_a_study_and_its_start_are_built_and_traced(name, tmp_path):
    assert check_batch(load_batch(EXPERIMENTS, STUDIES[name], (100,)), request(tmp_path)) == {}


@pytest.mark.parametrize("name", STUDIES)
def test_what_the_arms_of_a_study_share_is_composed(name, tmp_path):
    """With the last one, which is a method where there is one."""
    batch = load_batch(EXPERIMENTS, STUDIES[name], (100,))
    last = batch.arms[-1].name
    composed, failures = compose_batch(batch, request(tmp_path, arms=(last,)))
    assert failures == {} and [*composed] == [last]


def test_every_method_is_switched_on_in_its_study():
    absent = {name: method.fields["Study"] for name, method in METHODS.items() if method.fields["Study"] in STUDIES}
    called = {name for name, method in METHODS.items() if method.function is not None}
    assert {name: study for name, study in absent.items() if name not in ARMS and name not in called} == {}


def _traced(study, arm, evaluated=False):
    """Returns the texts of the programs that initialise, update and evaluate every stage, without addresses."""
    recipe = compose_arm(study, arm, CONFIGS, quick=True).recipe
    texts = []
    for stage in build_stages(recipe, 1):
        runner, index = stage.runner, recipe.first
        update = jax.make_jaxpr(lambda state, runner=runner: runner.run(state, 1))(runner.abstract)
        start = runner.abstract.learner.params if stage.start is not None or index else None
        init = jax.make_jaxpr(lambda start, runner=runner, index=index: runner.init(0, index, start))(start)
        params = runner.abstract.learner.params
        evaluation = jax.make_jaxpr(stage.evaluate)(params) if evaluated else ""
        texts.append(re.sub(r"0x[0-9a-f]+", "", f"{init}\n{update}\n{evaluation}"))
    return texts


def _shared(study):
    """Returns the overrides of the study's first baseline that trains, without its own."""
    return ((f"experiment={study.experiment}",) if study.experiment else ()) + study.overrides


def _without(arm, name):
    """Returns an arm with one method less."""
    texts = []
    for text in arm.overrides:
        named = chosen_methods([text])
        others = [one for one in named if one != name]
        texts += [text] if name not in named else [f"+method=[{','.join(others)}]"] if others else []
    return arm._replace(overrides=tuple(texts))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ARMS)
def test_switching_a_method_on_changes_the_program(name):
    study, arm = ARMS[name]
    evaluated = "evaluation" in METHODS[name].groups  # Others change what is trained.
    with_it = _traced(study, arm, evaluated)
    without = [*_composed(study, [_without(arm, name)], evaluated)]
    # An experiment may have the method already: baselines take it away. What an arm sets besides may need it.
    others = study.arms[:1] if without else (arm._replace(overrides=_shared(study)), *study.arms)
    assert any(with_it != text for text in chain(without, _composed(study, others, evaluated)))


def _composed(study, arms, evaluated):
    """Yields what `_traced` gives of those arms that can be composed."""
    for arm in arms:
        try:
            yield _traced(study, arm, evaluated)
        except (ValueError, HydraException):
            continue
