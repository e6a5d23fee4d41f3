"""Text games for one agent: the scripted expert takes the other seat."""

from dataclasses import replace

from jaxagents.environments.opponents import SampleTask, one_seat, with_seat
from jaxagents.types import Array, Environment, Task


def against_expert(environment: Environment, *, seat: int | None = None) -> Environment:
    """Presents a game of two seats to one agent; the opponent's strength is an option of the game (`expert_strength`).

    The task is `{"game": task, "seat": int32, "level": int32}`; see `environments.opponents.one_seat`.

    Args:
        environment: text world with two players.
        seat: seat of the agent in all games; None: it is drawn with the task.

    Returns:
        The game as a text world with `num_players == 1`, a scalar reward and no `player`.

    Raises:
        ValueError: it is not a text world with two players, or the seat does not exist.
    """
    if environment.text is None or environment.num_players != 2:
        raise ValueError(
            f"`environment` must be a text world of 2 players, got {environment.num_players} in "
            f"{environment.name!r}; try environment=text_kuhn."
        )
    if seat not in (None, 0, 1):
        raise ValueError(f"`seat` must be 0 or 1, got {seat}; try null for either.")
    interface = environment.text

    def with_level(sample: SampleTask) -> SampleTask:
        def sample_task(key: Array, level: Array | None = None) -> Task:
            task = with_seat(sample, seat)(key, level)
            return task | {"level": task["game"]["level"]}

        return sample_task

    text = replace(
        interface,
        expert=lambda key, state: interface.expert(key, state.inner),
        fingerprint=lambda state: interface.fingerprint(state.inner),
        sample_held_out_task=with_level(interface.sample_held_out_task),
        prompt=lambda task: interface.prompt(task["game"]),
        draw=None if interface.draw is None else lambda key, state: interface.draw(key, state.inner),
        distance=None if interface.distance is None else lambda state: interface.distance(state.inner),
        rules=None,
    )
    # `valid` refers to the agent's own action.
    alone = one_seat(environment, lambda key, state, _: interface.expert(key, state)[0], own_info=("valid",))
    return replace(alone, sample_task=with_level(environment.sample_task), text=text)
