"""What evaluations say about attempts at the same problem."""

import dataclasses

import jax
import jax.numpy as jnp

from jaxagents.language.collect import first_and_last
from jaxagents.types import Episode


def test_first_and_last_turns_by_hand():
    # Wrong to right, right to wrong, right twice, and an episode of one turn.
    nothing = {field.name: None for field in dataclasses.fields(Episode) if field.name != "extras"}
    reward = jnp.array([[0.0, 1.0, 0.0], [1.0, 0.5, 0.0], [1.0, 0.0, 1.0], [0.25, 0.0, 0.0]])
    valid = jnp.array([[True, True, False], [True, True, False], [True, True, True], [True, False, False]])
    results = jax.jit(first_and_last)(Episode(**nothing | {"reward": reward, "valid": valid}))
    assert {name: values.tolist() for name, values in results.items()} == {
        "first_turn_reward": [0.0, 1.0, 1.0, 0.25],
        "last_turn_reward": [1.0, 0.5, 1.0, 0.25],
        "turn_gain": [1.0, -0.5, 0.0, 0.0],
        "improved": [1.0, 0.0, 0.0, 0.0],
        "worsened": [0.0, 1.0, 0.0, 0.0],
    }
