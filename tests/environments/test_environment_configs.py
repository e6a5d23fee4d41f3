"""Every option file of the group `environment` makes an environment, and comments every line."""

from pathlib import Path

import pytest
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import OmegaConf

from jaxagents.types import Environment

FOLDER = Path(__file__).parents[2] / "configs" / "environment"
OWN = {path.stem: path for path in sorted(FOLDER.glob("*.yaml")) if "jaxagents.environments." in path.read_text()}
QUICK = (
    "cartpole",
    "tmaze",
    "gridworld",
    "donor",
    "tic_tac_toe",
    "tic_tac_toe_against_random",
    "connect_four_alternating",
    "two_step_game",
)
names = [name if name in QUICK else pytest.param(name, marks=pytest.mark.exhaustive) for name in OWN]


@pytest.mark.parametrize("name", names)
def test_option_file_makes_an_environment(name):
    try:
        environment = instantiate(OmegaConf.load(OWN[name]))
    except InstantiationException as error:
        if "must be installed" not in str(error):
            raise
        pytest.skip(str(error.__cause__))
    assert isinstance(environment, Environment)
    assert environment.max_steps >= 1


@pytest.mark.parametrize("name", OWN)
def test_option_file_says_what_it_is(name):
    assert OWN[name].read_text().startswith("# ")
