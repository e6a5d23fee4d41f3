"""A teacher in place of the frozen start: what is kept, where it is looked for, and what does not fit."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxagents.learners.distilled import with_teacher
from jaxagents.learners.policy_gradient import make_policy_gradient
from jaxagents.losses.aggregation import token_mean
from jaxagents.losses.token_policy_gradient import plain
from jaxagents.ops.reference_credit import distillation
from jaxagents.training.load import load_params

KEY = jax.random.key(0)


def test_the_reference_is_the_teacher_and_other_models_are_refused(lake, speak):
    policy = speak(lake, context_turns=1, prompt=False)
    options = {"advantage": distillation, "loss": plain, "aggregation": token_mean, "reference": True}
    learner = make_policy_gradient(policy.model, policy.layout, optax.sgd(0.1), **options)
    start = jax.tree.map(lambda leaf: jnp.ones(leaf.shape), jax.eval_shape(policy.init, KEY))
    teacher = jax.tree.map(lambda leaf: leaf + 1.0, start)
    state = with_teacher(learner, teacher).init(KEY, start)
    jax.tree.map(np.testing.assert_array_equal, state.reference, teacher)
    jax.tree.map(np.testing.assert_array_equal, state.params, start)
    with pytest.raises(ValueError, match="`teacher` must be of the model that learns"):
        with_teacher(learner, {"other": jnp.ones(3)}).init(KEY, start)


def test_a_teacher_must_be_given():
    with pytest.raises(ValueError, match="try learner.teacher.path=runs/<run>"):
        load_params(None)
