"""Learners whose policy acts with a lower-precision copy of the parameters, while training keeps full precision."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxagents.learners.combinators import params_to_act, wrapper_agent
from jaxagents.types import Agent, Environment, Learner, Params, State


def with_acting_copy(learner: Learner, *, dtype: Any = jnp.bfloat16) -> Learner:
    """Makes a learner whose collector acts with parameters of another dtype, in half the memory of float32.

    Gradients, moments and evaluation use the original parameters. Behaviour log-probabilities are those of the copy, so
    that importance ratios correct for rounding.

    Args:
        learner: any learner.
        dtype: dtype of the copy's floating-point numbers.

    Returns:
        The learner; its state is that of the original `learner`.

    Raises:
        ValueError: `dtype` is not a floating-point dtype.
    """
    if not jnp.issubdtype(jnp.dtype(dtype), jnp.floating):
        raise ValueError(f"`dtype` must be of floating-point numbers, got {dtype}; try bfloat16.")

    def acting(state: State) -> Params:
        params = params_to_act(learner, state)
        return jax.tree.map(
            lambda leaf: leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf, params
        )

    return learner._replace(acting=acting)


def make_agent(
    environment: Environment, *, inner: Callable[..., Agent], dtype: Any = "bfloat16", **options: Any
) -> Agent:
    """Assembles an agent that acts with a copy, see `with_acting_copy`.

    Args:
        environment: environment that defines the spaces.
        inner: `(environment, **options) -> Agent`, the agent that learns.
        dtype: dtype of the copy.
        **options: further arguments of `inner`.
    """
    return wrapper_agent(inner(environment, **options), lambda learner, *_: with_acting_copy(learner, dtype=dtype))
