"""What makes a text world a whole environment."""

from dataclasses import replace

from jaxagents.environments.wrappers import absorbing
from jaxagents.types import Environment


def absorbing_world(environment: Environment) -> Environment:
    """Makes a step after the end a no-op, and hands the text face the state that it knows.

    Args:
        environment: with a `text` whose `expert` and `fingerprint` take the states of `environment`.

    Returns:
        `wrappers.absorbing(environment)`, whose text face takes the states of that.
    """
    face = environment.text

    lifted = replace(
        face,
        expert=lambda key, state: face.expert(key, state.inner),
        fingerprint=lambda state: face.fingerprint(state.inner),
    )
    return replace(absorbing(environment), text=lifted)
