"""The option files of the slots of the policy gradient: what they build runs, and no option is left out."""

import importlib
import inspect

import jax.numpy as jnp
import numpy as np
import pytest
import yaml

from jaxagents.losses import aggregation, demonstrated, entropy_balanced, token_policy_gradient
from jaxagents.types import TokenView
from tests import CONFIGS

GROUPS = ("advantage", "loss", "aggregation", "preference", "pairs")
FILES = sorted(path for group in GROUPS for path in (CONFIGS / group).glob("*.yaml"))


def load(path):
    """Returns the function of an option file and its keyword arguments; one that remembers is made at once."""
    options = yaml.safe_load(path.read_text())
    module, _, name = options.pop("_target_").rpartition(".")
    assert options.pop("_partial_", False) is not name.startswith("make_")
    return getattr(importlib.import_module(module), name), options


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_files_are_named_after_the_function_and_set_all_of_its_options(path):
    function, options = load(path)
    assert function.__name__.removeprefix("make_") == path.stem
    keywords = {
        name: parameter.default
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    assert set(options) == set(keywords) - {"axis_name"}
    # YAML reads 1e-6 as a string.
    assert not any(isinstance(value, str) > isinstance(keywords[name], str) for name, value in options.items())


def test_losses_and_weights_run_as_configured():
    log_prob, mask = jnp.log(jnp.array([[[0.5, 0.25]]])), jnp.array([[[True, True]]])
    nothing = jnp.zeros(mask.shape)
    view = TokenView(
        mask=mask,
        turn=nothing.astype(jnp.int32),
        sequence=nothing.astype(jnp.int32),
        behavior_log_prob=log_prob,
        advantage=nothing + 1.0,
        success=mask,
        group_success=nothing + 1.0,
        log_prob=log_prob,
        sequence_log_ratio=nothing,
    )
    for path in FILES:
        function, options = load(path)
        if path.parent.name == "loss":
            expected = {"plain": -log_prob, "cispo": -log_prob, "nft": nothing}.get(path.stem, nothing - 1.0)
            np.testing.assert_allclose(function(view, **options), expected, rtol=1e-6)
        elif path.parent.name == "aggregation":
            np.testing.assert_allclose(function(view, **options), [[[0.5, 0.5]]])


def test_every_loss_and_aggregation_has_a_file():
    for group, modules in (
        ("loss", (token_policy_gradient, demonstrated, entropy_balanced)),
        ("aggregation", (aggregation,)),
    ):
        functions = {
            name
            for module in modules
            for name, f in vars(module).items()
            if inspect.isfunction(f) and not name.startswith("_") and f.__module__ == module.__name__
        }
        assert functions - {"truncated_importance_weight"} == {path.stem for path in (CONFIGS / group).glob("*.yaml")}
