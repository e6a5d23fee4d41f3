"""Rules on names split parameters and all that has their names; meshes and rules that do not fit are refused."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec

from jaxagents.training.mesh import make_mesh
from jaxagents.training.sharding import spec_by_rules

SIZES = {"fsdp": 2, "tensor": 4}
PARAMS = {"up": {"kernel": jnp.zeros((6, 8)), "bias": jnp.zeros(8)}, "down": {"kernel": jnp.zeros((3, 8, 6))}}


def test_moments_follow_their_parameter():
    state = {"params": PARAMS, "opt_state": optax.adam(1e-3).init(PARAMS), "count": jnp.zeros(())}
    rules = {"up/kernel$": ["fsdp", "tensor"], "down/kernel$": ["tensor", "fsdp"], "bias$": "tensor"}
    specs = spec_by_rules(state, rules, SIZES)
    wanted = {
        "up": {"kernel": PartitionSpec("fsdp", "tensor"), "bias": PartitionSpec("tensor")},
        "down": {"kernel": PartitionSpec(None, "tensor", "fsdp")},  # A leading axis, as of layers, stays whole.
    }
    assert specs["params"] == specs["opt_state"][0].mu == specs["opt_state"][0].nu == wanted
    assert specs["count"] == specs["opt_state"][0].count == PartitionSpec()


def test_without_rules_the_largest_dimension_that_divides_is_split():
    leaves = {"a": jnp.zeros((4, 6)), "b": jnp.zeros((9, 4)), "c": jnp.zeros((3, 5)), "d": jnp.zeros(())}
    specs = spec_by_rules(leaves, {}, {"fsdp": 2, "tensor": 1})
    assert specs == {
        "a": PartitionSpec(None, "fsdp"),
        "b": PartitionSpec(None, "fsdp"),
        "c": PartitionSpec(),
        "d": PartitionSpec(),
    }
    both = spec_by_rules({name: leaves[name] for name in "ab"}, {".": "tensor fsdp"}, {"fsdp": 2, "tensor": 3})
    assert both == {"a": PartitionSpec("fsdp", "tensor"), "b": PartitionSpec("tensor", "fsdp")}


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"up/kernel$": ["tensor"], "gate": ["fsdp"]}, "must find a parameter each, got 'gate'; there are down/kernel"),
        (
            {"kernel$": "tensor", "^up": "fsdp"},
            r"must name every parameter once, got 'kernel\$' and '\^up' for up/kernel",
        ),
        (
            {"up/kernel$": ["tensor", "fsdp"]},
            r"`devices.mesh.tensor` must divide the dimensions .*, got 4 and 6 of up/kernel \[6, 8\]; try 2",
        ),
        (
            {"bias$": ["fsdp", "tensor"]},
            r"more axes than a parameter has dimensions, .* for up/bias of the shape \[8\]",
        ),
        ({"kernel$": ["fsdp", "fsdp"], "bias$": "tensor"}, "at most once each, got .* for 'kernel"),
        ({"kernel$": ["data"]}, "must name fsdp and tensor at most once each"),
        ({"kernel$": [None, "fsdp"]}, "`devices.mesh.tensor` must be 1 where no rule names tensor, got 4"),
        ({"(kernel": "fsdp", "bias": "tensor"}, "must be regular expressions, got '\\(kernel'"),
    ],
)
def test_rules_that_do_not_fit_are_refused(rules, message):
    with pytest.raises(ValueError, match=message):
        spec_by_rules(PARAMS, rules, SIZES)


def test_meshes_are_of_the_devices_there_are():
    assert make_mesh({"fsdp": 2, "tensor": 2}).devices.shape == (2, 2, 2)
    assert make_mesh({"data": 1, "fsdp": 2}).devices.shape == (1, 2, 1)
    assert make_mesh({"fsdp": None}, 4).devices.shape == (1, 4, 1)
    np.testing.assert_array_equal(make_mesh({}).devices.flatten(), jax.devices())


@pytest.mark.parametrize(
    ("sizes", "num_devices", "message"),
    [
        ({"fsdp": 3}, None, r"got data \? x fsdp 3 x tensor 1 and 8 devices; try data null, fsdp 1"),
        ({"data": 4, "fsdp": 4}, None, "got data 4 x fsdp 4 x tensor 1 and 8 devices"),
        ({"data": 2}, 4, "got data 2 x fsdp 1 x tensor 1 and 4 devices"),
        ({"fsdp": 0}, None, r"must have numbers from 1 on and at most one null, got {'fsdp': 0}"),
        ({"data": None, "fsdp": None}, None, "at most one null"),
        ({"model": 2}, None, "must have the axes data, fsdp, tensor, got model"),
    ],
)
def test_meshes_that_do_not_fit_are_refused(sizes, num_devices, message):
    with pytest.raises(ValueError, match=message):
        make_mesh(sizes, num_devices)
