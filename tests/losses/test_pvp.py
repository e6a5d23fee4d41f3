"""Proxy values against numbers by hand, and where their gradients go."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.losses.pvp import proxy_values
from jaxagents.losses.q_shaping import QTermView
from tests.fakes import make_transition


def view(**extras):
    """Three steps, three actions: agreed with the overseer, overridden, and not overseen."""
    zeros = jnp.zeros((1, 3))
    transition = make_transition(
        (1, 3),
        observation=zeros[..., None],
        action=jnp.array([[0, 2, 1]]),
        extras={name: jnp.asarray(value)[None] for name, value in extras.items()},
    )
    q = jnp.array([[[0.5, 2.0, 4.0], [1.0, 0.5, 3.0], [5.0, 6.0, 7.0]]])
    return QTermView(q=q, td_loss=zeros, transition=transition, num_updates=jnp.zeros((1, 3), jnp.int32))


TOLD = view(novice_action=[0, 1, 1], intervened=[True, True, False])


def test_by_hand():
    """(0.5 - 1)^2; (3 - 1)^2 + (0.5 + 1)^2; nothing."""
    np.testing.assert_allclose(proxy_values(TOLD), [[0.25, 6.25, 0.0]])
    np.testing.assert_allclose(proxy_values(TOLD, negative=False), [[0.25, 4.0, 0.0]])
    np.testing.assert_allclose(proxy_values(TOLD, bound=2.0), [[2.25, 7.25, 0.0]])


def test_gradients_flow_to_what_was_done_and_what_was_overridden():
    gradient = jax.jit(jax.grad(lambda q: jnp.sum(proxy_values(TOLD.replace(q=q)))))(TOLD.q)
    np.testing.assert_allclose(gradient, [[[-1.0, 0.0, 0.0], [0.0, 3.0, 4.0], [0.0, 0.0, 0.0]]])


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="`bound` must be positive, got 0.0; try 1"):
        proxy_values(TOLD, bound=0.0)
    with pytest.raises(ValueError, match="must have 'intervened' and 'novice_action', got .'novice_action'.; try"):
        proxy_values(view(novice_action=[0, 1, 1]))
