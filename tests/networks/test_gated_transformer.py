"""The gated transformer block against numpy; what holds for all memories is in `test_recurrent`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.networks.gated_transformer import GTrXL

T, H, WINDOW = 7, 4, 2
MODULE = GTrXL(H, num_heads=2, window=WINDOW)


def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


def norm(params, x):
    x = (x - x.mean()) / np.sqrt(x.var() + 1e-6)
    return x * params["scale"] + params["bias"]


def gate(params, x, y):
    reset_y, update_y, new_y = np.split(y @ params["update"]["kernel"], 3)
    reset_x, update_x = np.split(x @ params["stream"]["kernel"], 2)
    update = sigmoid(update_y + update_x - params["bias"])
    new = np.tanh(new_y + (sigmoid(reset_y + reset_x) * x) @ params["new"]["kernel"])
    return (1 - update) * x + update * new


def one_step(params, inputs):
    """Computes the output of the last of `inputs` `[n, H]`, which are all that it sees."""
    normed = np.stack([norm(params["input_norm"], x) for x in inputs])
    query = normed[-1] @ params["query"]["kernel"]
    keys, values = (normed @ params[name]["kernel"] for name in ("key", "value"))
    attended = []
    for head, columns in enumerate((slice(0, 2), slice(2, 4))):
        distances = np.arange(len(inputs))[::-1]
        scores = keys[:, columns] @ query[columns] / np.sqrt(2) + params["distance"][head, distances]
        weights = np.exp(scores) / np.exp(scores).sum()
        attended.append(weights @ values[:, columns])
    attended = np.concatenate(attended) @ params["attended"]["kernel"]
    x = gate(params["attention_gate"], inputs[-1], np.maximum(attended, 0))
    hidden = np.maximum(norm(params["norm"], x) @ params["hidden"]["kernel"] + params["hidden"]["bias"], 0)
    return gate(params["gate"], x, np.maximum(hidden @ params["output"]["kernel"] + params["output"]["bias"], 0))


@pytest.mark.slow
def test_every_step_sees_the_last_ones_of_its_episode_as_numpy_says():
    features = jax.random.normal(jax.random.key(0), (T, 1, H))
    first = jnp.zeros((T, 1), bool).at[4, 0].set(True)
    params = MODULE.init(jax.random.key(1), MODULE.initial_carry((1,)), features, first)
    # Positions matter, and so do gates.
    params = jax.tree.map(lambda leaf: leaf + 0.3 * jax.random.normal(jax.random.key(leaf.size), leaf.shape), params)
    _, outputs = jax.jit(MODULE.apply)(params, MODULE.initial_carry((1,)), features, first)
    seen = [range(1), range(2), range(3), range(1, 4), range(4, 5), range(4, 6), range(4, 7)]
    plain = jax.tree.map(np.asarray, params["params"])
    expected = [one_step(plain, np.asarray(features)[list(steps), 0]) for steps in seen]
    np.testing.assert_allclose(outputs[:, 0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_heads": 3}, "`num_heads` must divide `hidden_size`, got 3 and 4"),
        ({"window": 0}, "`window` must be at least 1 step, got 0; try 32"),
    ],
)
def test_refuses(options, message):
    with pytest.raises(ValueError, match=message):
        GTrXL(H, **options)
