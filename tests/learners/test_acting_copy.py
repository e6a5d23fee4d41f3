"""A rounded copy acts; what is learned, evaluated and saved keeps its precision."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.learners.acting_copy import with_acting_copy
from jaxagents.learners.combinators import params_to_act
from jaxagents.training.build import build, resolve
from jaxagents.training.composition import compose
from jaxagents.types import Learner
from tests import ROOT


def test_the_copy_is_rounded_and_the_parameters_are_not():
    third = jnp.float32(1.0 / 3.0)
    inner = Learner(init=lambda key: {"x": third, "steps": jnp.int32(257)}, update=None, acting=lambda state: state)
    learner = with_acting_copy(inner)
    state = learner.init(jax.random.key(0))
    copy = params_to_act(learner, state)
    assert copy["x"].dtype == jnp.bfloat16 and float(copy["x"]) == 0.333984375  # 171 / 512: eight bits.
    assert int(copy["steps"]) == 257 and float(state["x"]) == float(third)
    with pytest.raises(ValueError, match="`dtype` must be of floating-point numbers, got int32; try bfloat16."):
        with_acting_copy(inner, dtype="int32")


@pytest.mark.exhaustive
def test_ppo_acts_with_the_copy_and_learns_in_float32():
    overrides = ("world=tmaze", "algorithm=ppo", "policy=mlp", "learner=acting_copy", "quick=true")
    sizes = ("collector.num_envs=2", "collector.num_steps=4", "devices.compilation_cache=null")
    stage = build(resolve(compose(ROOT / "configs", *overrides, *sizes))).stages[0]
    state, metrics = stage.runner.run(stage.runner.init(0), 1)
    assert {leaf.dtype for leaf in jax.tree.leaves(stage.runner.params(state))} == {jnp.dtype(np.float32)}
    assert np.isfinite(metrics["train/loss"])
