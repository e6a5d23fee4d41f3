"""Option files of the group `wrapper`, around worlds that the command line composes."""

import pytest
from hydra.utils import instantiate

from jaxagents.environments.text.guess_number import make_environment
from jaxagents.training.composition import compose
from tests import CONFIGS

NAMES = sorted(path.stem for path in (CONFIGS / "wrapper").glob("*.yaml"))
OF_WORLDS = {
    **{"programs": "tools", "documentation": "tools", "attributes": "tools", "decision_rewards": "market"},
    **{"house_rules": "desk", "annotators": "desk", "planner": "tools"},
}
OF_RULES = {  # What a world must have.
    "guard": ("frozenlake", "`world` must have one seat and actions without free fields"),
}


def make(*overrides):
    config = compose(CONFIGS, "world=guess_number", "environment.max_steps=5", "environment.largest=[9]", *overrides)
    return instantiate(config.environment)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in {**OF_WORLDS, **OF_RULES}])
def test_an_option_wraps_the_world_that_is_chosen(name):
    plain, wrapped = make_environment((9,), max_steps=5).text, make(f"+wrapper={name}").text
    assert wrapped.rules.name == "guess_number"
    ours, theirs = wrapped.rules, plain.rules
    changes = ours.payouts or ours.num_seats > 1 or ours.max_steps > theirs.max_steps or wrapped.words != plain.words
    assert changes or ours.status.__qualname__.endswith("<locals>.status")  # Other rewards.


@pytest.mark.parametrize("name, world", OF_WORLDS.items())
def test_an_option_of_one_world_wraps_it_and_refuses_others(name, world):
    config = compose(CONFIGS, f"world={world}", f"+wrapper={name}")
    assert instantiate(config.environment).text.rules.name == world
    with pytest.raises(Exception, match=f"`world` must be {world}"):
        make(f"+wrapper={name}")


@pytest.mark.parametrize("name", OF_RULES)
def test_an_option_that_asks_something_of_a_world_says_so(name):
    world, message = OF_RULES[name]
    config = compose(CONFIGS, f"world={world}", f"+wrapper={name}")
    assert instantiate(config.environment).text.rules.name == world
    with pytest.raises(Exception, match=message):
        make(f"+wrapper={name}")


def test_options_follow_each_other_and_can_be_changed():
    environment = make("+wrapper=[retries,delay]", "environment.wrappers.retries.num_trials=2")
    assert environment.max_steps == 10 and len(environment.text.rules.payouts) == 1


def test_a_wrapper_without_an_option_file_is_named_on_the_command_line():
    skins = "{_target_: jaxagents.environments.text.skins.with_skins, _partial_: true, skins: [{}, {to: until}]}"
    environment = make(f"+environment.wrappers.skins={skins}")
    assert "until" in environment.text.words and environment.text.rules.grammar.num_subgrammars == 2
