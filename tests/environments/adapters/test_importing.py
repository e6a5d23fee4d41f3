"""Messages for a missing suite and an unknown name."""

import os
import subprocess
import sys

import pytest

from jaxagents.environments.adapters import brax, craftax, gymnax, jaxmarl, jumanji, pgx, xminigrid
from jaxagents.environments.adapters.importing import import_suite, require_name
from tests import ROOT

ADAPTERS = {"gymnax": gymnax, "brax": brax, "jumanji": jumanji, "pgx": pgx, "craftax": craftax, "jaxmarl": jaxmarl}
ADAPTERS["xminigrid"] = xminigrid


@pytest.mark.parametrize("suite", ADAPTERS)
def test_missing_suite_says_how_to_install_it(suite, monkeypatch):
    for module in [name for name in sys.modules if name.partition(".")[0] == suite]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, suite, None)
    extra = "gymnax" if suite == "gymnax" else "envs"
    message = rf"`{suite}` must be installed for this environment; run `pip install 'jaxagents\[{extra}\]'`"
    with pytest.raises(ModuleNotFoundError, match=message):
        ADAPTERS[suite].make_environment("anything")


def test_a_dependency_missing_inside_a_suite_is_not_blamed_on_the_suite(tmp_path, monkeypatch):
    (tmp_path / "broken_suite.py").write_text("import surely_not_installed\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="surely_not_installed"):
        import_suite("broken_suite")


def test_unknown_names_offer_the_nearest():
    known = ["CartPole-v1", "Pendulum-v1", "Breakout-MinAtar"]
    assert require_name("CartPole-v1", known, "gymnax") == "CartPole-v1"
    with pytest.raises(ValueError, match="must be an environment of gymnax, got 'cartpole'; try CartPole-v1"):
        require_name("cartpole", known, "gymnax")
    with pytest.raises(ValueError, match="try Breakout-MinAtar"):
        require_name("breakout", known, "gymnax")
    with pytest.raises(ValueError, match="try Breakout-MinAtar, CartPole-v1, Pendulum-v1"):
        require_name("qqq", known, "gymnax")


@pytest.mark.parametrize(
    ("suite", "name", "offer"),
    [
        ("gymnax", "CartPole", "CartPole-v1"),
        ("brax", "reach", "reacher"),
        ("jumanji", "Snake", "Snake-v1"),
        ("pgx", "connect4", "connect_four"),
        ("craftax", "Craftax-Classic", "Craftax-Classic-"),
        ("jaxmarl", "simple_spread", "MPE_simple_spread_v3"),
        ("xminigrid", "MiniGrid-Empty", "MiniGrid-Empty-"),
    ],
)
def test_every_adapter_offers_names(suite, name, offer):
    with pytest.raises(ValueError, match=f"`name` must be an environment of {suite}, got '{name}'; try .*{offer}"):
        ADAPTERS[suite].make_environment(name)


@pytest.mark.parametrize(
    ("suite", "name", "line"),
    [
        ("gymnax", "CartPole-v1", r"try \+environment.params.clip=\.\.\."),
        ("brax", "reacher", "unexpected keyword argument 'clip'"),
        ("jumanji", "Snake-v1", "unexpected keyword argument 'clip'"),
        ("craftax", "Craftax-Classic-Symbolic-v1", "unexpected keyword argument 'clip'"),
        ("jaxmarl", "overcooked", "unexpected keyword argument 'clip'"),
    ],
)
def test_options_that_a_constructor_does_not_take_are_named(suite, name, line):
    with pytest.raises(ValueError, match=f"that the constructor of {name} takes, got clip; .*{line}"):
        ADAPTERS[suite].make_environment(name, clip=0.2)


def test_a_suite_that_can_draw_is_imported_without_what_draws(tmp_path):
    (tmp_path / "drawing_suite.py").write_text(
        "import matplotlib.pyplot as plt\nimport seaborn as sns\nfrom matplotlib import colors\n"
    )
    code = """
import sys
from jaxagents.environments.adapters.importing import drawing_later, import_suite
with drawing_later():
    suite = import_suite("drawing_suite")
assert not {"matplotlib", "seaborn"} & set(sys.modules)
from matplotlib.colors import ListedColormap
assert suite.colors.ListedColormap is ListedColormap and len(suite.sns.color_palette("cubehelix", 4)) == 4
assert callable(suite.plt.subplots) and type(sys.modules["matplotlib"].__spec__).__name__ == "ModuleSpec"
"""
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{tmp_path}", "MPLBACKEND": "agg"}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=240)
