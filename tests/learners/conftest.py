"""What tests of several learners share."""

import pytest

from jaxagents.types import Environment


@pytest.fixture
def spaces_only():
    """Returns a function that makes an environment which has spaces but cannot be played."""

    def make(observation_space, action_space):
        return Environment(
            name="spaces",
            sample_task=None,
            reset=None,
            step=None,
            observation_space=observation_space,
            action_space=action_space,
            max_steps=1,
        )

    return make
