"""Functions that are arms in tests of papers."""

import sys

import pytest

from jaxagents.papers.catalogue import read_cards
from tests import ROOT
from tests.papers.small_index import make_index

FUNCTIONS = """
calls = []

def score(seed, offset=0.0, fails=False):
    if fails:
        raise RuntimeError("it broke")
    calls.append((seed, offset))
    return {"score": seed / 10 + offset, "curve": [0.0, offset]}

def play(seed, environment, policy, params, bonus=0.0):
    calls.append((seed, environment.name))
    import jax
    return {"score": float(sum(leaf.size for leaf in jax.tree.leaves(params)) > 0) + bonus}
"""


@pytest.fixture
def calls(tmp_path, monkeypatch):
    """Returns the list of all calls of the functions in `functions_of_test`."""
    (tmp_path / "functions_of_test.py").write_text(FUNCTIONS)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("functions_of_test", None)
    import functions_of_test

    return functions_of_test.calls


@pytest.fixture(scope="module")
def families():
    """Returns the cards of all papers."""
    return read_cards(ROOT / "experiments" / "cards")


@pytest.fixture(scope="module")
def index(families):
    """Returns an index of all cards: one paper is judged, one is measured, and one is implemented."""
    return make_index(families)
