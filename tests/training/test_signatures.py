"""What learners take by name: also what a function takes that they hand on to one of the three shapes of agents."""

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from jaxagents.training.setting_types import find_function
from jaxagents.training.signatures import settings_of

FOLDER = Path(__file__).parents[2] / "configs" / "learner"
INNER = {"_target_": "jaxagents.learners.ppo.make_agent"}


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.yaml")))
def test_every_name_that_a_learner_takes_is_known(name):
    node = OmegaConf.to_container(OmegaConf.load(FOLDER / f"{name}.yaml"), resolve=False)
    if "_target_" not in node:
        pytest.skip("Takes that of the file that it begins with.")
    taken = settings_of(find_function(node["_target_"], "_target_"), {"inner": INNER, **node})
    own = {key for key in node if not key.startswith("_") and key not in ("defaults", "when_quick")}
    assert not taken.is_open and own <= set(taken.annotations)


def test_a_shape_and_the_function_that_it_is_given_take_settings_by_their_types():
    taken = settings_of(find_function("jaxagents.learners.ppo.make_agent", "_target_"), {}).annotations
    assert taken["actor_period"] is int and taken["num_epochs"] is int and taken["normalize_observations"] is bool
    assert not {"actor_critic", "make_learner"} & set(taken)
