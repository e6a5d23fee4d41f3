"""Makes text worlds of their rules: words, budgets, splits, limits, garbage, forfeits, rewards."""

from collections.abc import Sequence
from typing import Any

from flax import struct

from jaxagents.environments.text.world import World
from jaxagents.types import Array, Environment, PyTree, Task


@struct.dataclass
class TextWorldState:
    """An episode of a text world.

    Attributes:
        task: of the episode.
        inner: state of the rules.
        valid: bool, the last action was understood and allowed.
        num_steps: int32, turns taken.
        score: float32 `[P]`, or `[]` with one seat, what was earned so far, the penalties of steps left out.
        terminated: bool.
        truncated: bool.
        offender: int32, the seat that last said what was not understood or allowed; -1 for none.
        pending: verbs int32 `[P]`, args int32 `[P, max_args, max_length]` and the seat that is asked, int32 `[]`, where
            all seats act at once; else None.
    """

    task: Task
    inner: PyTree
    valid: Array
    num_steps: Array
    score: Array
    terminated: Array
    truncated: Array
    offender: Array
    pending: Any


def make_text_world(
    world: World,
    *,
    reward: str = "sparse",
    step_penalty: float = 0.0,
    illegal: str = "no_op",
    forfeit_payoff: Sequence[float] = (0.0, 0.0),
    held_out_fraction: float = 0.25,
) -> Environment:
    """Makes the environment of a text world.

    An action that is not understood or not allowed changes nothing, takes a turn, is answered by "nothing happens ."
    and sets `info["valid"]` to False. A step after the end is a no-op. The word table has the words of the grammar
    first, then those of observations, prompts and thoughts in the order of their mention.

    Args:
        world: the rules.
        reward: "sparse" is 1 in the step that ends an episode with success; "dense" is what the step adds to the
            progress. Where the rules give payoffs, the reward is what the step adds to them.
        step_penalty: subtracted from the reward of every step.
        illegal: "no_op" asks again; "forfeit" ends the episode with the payoffs of a forfeit. In games of several
            seats with "no_op", who last said what was not allowed forfeits when the limit of turns is reached.
        forfeit_payoff: reward of who forfeits, and of each of the others.
        held_out_fraction: of the tasks.

    Returns:
        The environment, with a text face.

    Raises:
        ValueError: unknown options; dense rewards without progress; several seats without payoffs; fields of the world
            that do not fit together, with what they gave.
    """
    raise NotImplementedError
