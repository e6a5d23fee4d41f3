"""Adam against its definition and against optax's own optimisers."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxagents.learners.optimizers import make_adam

PARAMS = {"a": jnp.array([1.0, -2.0]), "b": jnp.array([[3.0]])}
GRADIENTS = {"a": jnp.array([3.0, 0.0]), "b": jnp.array([[-4.0]])}  # Of global norm 5.


def run(optimizer, num_steps=3, state=None):
    """Returns parameters after each step, with gradients that grow."""
    params, state, history = PARAMS, optimizer.init(PARAMS) if state is None else state, []
    for step in range(num_steps):
        gradients = jax.tree.map(lambda leaf, scale=1.0 + step: leaf * scale, GRADIENTS)
        updates, state = optimizer.update(gradients, state, params)
        params = optax.apply_updates(params, updates)
        history.append(params)
    return history


def assert_close(actual, expected):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), actual, expected)


def test_first_step_is_the_learning_rate_times_the_sign():
    first = run(make_adam(learning_rate=0.1, epsilon=1e-8), 1)[0]
    assert_close(first, {"a": np.array([0.9, -2.0]), "b": np.array([[3.1]])})


def test_epsilon_damps_small_gradients():
    first = run(make_adam(learning_rate=0.1, epsilon=1.0), 1)[0]
    assert_close(first, {"a": np.array([1.0 - 0.1 * 3.0 / 4.0, -2.0]), "b": np.array([[3.0 + 0.1 * 4.0 / 5.0]])})


@pytest.mark.parametrize(
    ("options", "oracle"),
    [
        ({}, optax.adam(0.1, eps=1e-5)),
        ({"max_gradient_norm": 1.0}, optax.chain(optax.clip_by_global_norm(1.0), optax.adam(0.1, eps=1e-5))),
        ({"weight_decay": 0.3}, optax.adamw(0.1, eps=1e-5, weight_decay=0.3)),
        ({"num_updates": 3, "anneal": True}, optax.adam(optax.linear_schedule(0.1, 0.0, 3), eps=1e-5)),
    ],
    ids=["plain", "clipped", "decayed", "annealed"],
)
def test_agrees_with_optax(options, oracle):
    assert_close(run(make_adam(learning_rate=0.1, **options)), run(oracle))


def test_clipping_reaches_adam_after_the_norm_changed():
    # Gradients of norm 5, 10, 15: clipped they are all the same, and every step of Adam is the full one.
    history = run(make_adam(learning_rate=0.1, epsilon=1e-8, max_gradient_norm=1.0))
    assert_close([params["a"][0] for params in history], [0.9, 0.8, 0.7])
    free = run(make_adam(learning_rate=0.1, epsilon=1e-8))
    assert float(free[-1]["a"][0]) > 0.7 + 1e-3


def test_annealing_ends_at_zero():
    history = run(make_adam(4, learning_rate=0.1, anneal=True, max_gradient_norm=1.0, epsilon=1e-8), 6)
    values = np.array([1.0, *(float(params["a"][0]) for params in history)])
    np.testing.assert_allclose(-np.diff(values), [0.1, 0.075, 0.05, 0.025, 0.0, 0.0], atol=1e-6)


def test_learning_rate_is_an_array_of_the_state():
    optimizer = make_adam(learning_rate=0.1, epsilon=1e-8)
    state = optimizer.init(PARAMS)
    assert float(optax.tree_utils.tree_get(state, "learning_rate")) == pytest.approx(0.1)
    changed = optax.tree_utils.tree_set(state, learning_rate=jnp.float32(0.5))
    assert_close(run(optimizer, 1, changed)[0]["a"], [0.5, -2.0])
    programs = [
        str(jax.make_jaxpr(made.update)(GRADIENTS, made.init(PARAMS), PARAMS))
        for made in (optimizer, make_adam(learning_rate=0.7, epsilon=1e-8))
    ]
    assert programs[0] == programs[1]


@pytest.mark.parametrize("num_updates", [None, 0])
def test_annealing_needs_the_length_of_the_run(num_updates):
    with pytest.raises(ValueError, match=f"`num_updates` must be positive when `anneal` is true, got {num_updates}"):
        make_adam(num_updates, anneal=True)
