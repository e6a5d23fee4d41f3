"""Terms of the loss of action values against numbers by hand, and where their gradients go."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.losses.q_shaping import QTermView, conservative_term, heuristic_values, temporal_difference
from tests.fakes import make_transition

NAN = float("nan")


def view(num_updates=0, **extras):
    """Two steps, three actions."""
    zeros = jnp.zeros((1, 2))
    transition = make_transition(
        (1, 2),
        observation=zeros[..., None],
        action=jnp.array([[0, 2]]),
        extras={name: jnp.asarray(value)[None] for name, value in extras.items()},
    )
    q = jnp.array([[[1.0, 2.0, 4.0], [0.0, 0.5, -1.0]]])
    return QTermView(
        q=q, td_loss=jnp.array([[3.0, 5.0]]), transition=transition, num_updates=jnp.full((1, 2), num_updates)
    )


def test_temporal_differences_count_from_an_update_on_and_where_they_may():
    np.testing.assert_allclose(temporal_difference(view(), coefficient=0.5), [[1.5, 2.5]])
    np.testing.assert_allclose(temporal_difference(view(4), after=5), [[0.0, 0.0]])
    np.testing.assert_allclose(temporal_difference(view(5), after=5), [[3.0, 5.0]])
    np.testing.assert_allclose(temporal_difference(view(td_mask=[False, True])), [[0.0, 5.0]])


def test_values_of_a_heuristic_draw_in_the_first_updates():
    """Of the first step (4 + 0 + 1) / 3; of the second, about whose last action nothing is said, (1 + 0.25) / 2."""
    wanted = [[-1.0, 2.0, 3.0], [1.0, 1.0, NAN]]
    views = view(6, heuristic_values=wanted)
    np.testing.assert_allclose(heuristic_values(views, coefficient=2.0, until=7), [[2 * 5 / 3, 1.25]], rtol=1e-6)
    np.testing.assert_allclose(heuristic_values(views, until=6), [[0.0, 0.0]])
    np.testing.assert_allclose(heuristic_values(view(heuristic_values=[[NAN] * 3] * 2), until=1), [[0.0, 0.0]])

    def total(q, until):
        return jnp.sum(heuristic_values(views.replace(q=q), until=until))

    gradient = jax.jit(jax.grad(total), static_argnums=1)
    np.testing.assert_allclose(gradient(views.q, 7), [[[4 / 3, 0.0, 2 / 3], [-1.0, -0.5, 0.0]]], rtol=1e-6)
    assert not gradient(views.q, 6).any()


def test_what_nobody_told_is_refused():
    with pytest.raises(ValueError, match="`extras` of transitions must have 'heuristic_values', got .'td_mask'.; try"):
        heuristic_values(view(td_mask=[True, True]), until=1)


def test_the_conservative_term_masks_what_is_not_allowed():
    mask = jnp.array([[[True, True, False], [True, True, True]]])
    seen = view()
    seen = seen.replace(transition=seen.transition.replace(action_mask=mask))
    expected = [[np.log(np.e + np.e**2) - 1.0, np.log(1.0 + np.exp(0.5) + np.exp(-1.0)) + 1.0]]
    np.testing.assert_allclose(conservative_term(seen, coefficient=3.0), 3.0 * np.array(expected), rtol=1e-6)
