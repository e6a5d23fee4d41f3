"""Learners whose policy acts with a copy of lower precision, while what is learned keeps its own."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxagents.learners.combinators import params_to_act, wrapper_agent
from jaxagents.types import Agent, Environment, Learner, Params, State


def with_acting_copy(learner: Learner, *, dtype: Any = jnp.bfloat16) -> Learner:
    """Makes a learner whose collector acts with parameters in another type: half the memory and reading of float32.

    Gradients, moments and evaluation are those of the parameters themselves. Behaviour log-probabilities are of the
    copy, so that importance ratios correct for what rounding changes.

    Args:
        learner: any.
        dtype: of the copy's floating-point numbers.

    Returns:
        The learner; its state is that of `learner`.

    Raises:
        ValueError: `dtype` is not of floating-point numbers.
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
        environment: gives the spaces.
        inner: `(environment, **options) -> Agent`, what learns.
        dtype: of the copy.
        **options: of `inner`.
    """
    return wrapper_agent(inner(environment, **options), lambda learner, *_: with_acting_copy(learner, dtype=dtype))
