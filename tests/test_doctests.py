"""Runs the examples of docstrings, and of the guides what a user of the functions alone begins with."""

import doctest
import importlib
import re
import subprocess
import sys

import jax
import numpy as np
import pytest

import jaxagents
from tests import ROOT

FILES = sorted((ROOT / "jaxagents").rglob("*.py"))
NAMES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in FILES
    if ">>> " in path.read_text(encoding="utf-8") and not path.is_symlink()
]


def test_there_are_examples():
    assert len(NAMES) >= 18


@pytest.mark.parametrize("name", NAMES)
def test_examples_of_docstrings(name):
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0 and result.failed == 0


def test_packages_are_there_by_name():
    for name in jaxagents.__all__:
        assert getattr(jaxagents, name).__doc__, name
    assert {*jaxagents.__all__} <= {*dir(jaxagents)} and (ROOT / "jaxagents/py.typed").is_file()
    with pytest.raises(AttributeError, match="`jaxagents` must be asked for one of data, .*, got 'trainer'"):
        _ = jaxagents.trainer


def test_modules_are_imported_when_they_are_first_used():
    code = """
import sys, jaxagents
assert "jaxagents.ops.returns" not in sys.modules
jaxagents.ops.returns.lambda_returns, jaxagents.environments.text.lists.make_environment
assert not hasattr(jaxagents.ops, "return") and not hasattr(jaxagents.ops, "__wrapped__")
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


@pytest.mark.exhaustive
def test_a_loop_of_ones_own_learns_over_seeds():
    text = (ROOT / "experiments/docs/from_stoix.md").read_text()
    (block,) = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    found = {}
    exec(block, found)
    returns = jax.device_get(found["returns"])
    assert returns.shape == (4, found["num_updates"])
    # An update in which no episode ends has no return.
    assert (np.nanmean(returns[:, -10:], axis=1) > np.nanmean(returns[:, :10], axis=1) + 20.0).all()
