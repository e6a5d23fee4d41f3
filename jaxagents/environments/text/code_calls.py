"""Programs as tools: every operation is a call on a hidden input, and the answer is the result."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
from flax import struct

from jaxagents.environments.text import code
from jaxagents.environments.text.builder import make_text_world
from jaxagents.environments.text.experts import first_rule
from jaxagents.environments.text.grammar import make_grammar
from jaxagents.environments.text.texts import Text, number, pick, text, when
from jaxagents.environments.text.world import Status, World
from jaxagents.types import Array, Environment, Task


@struct.dataclass
class CallsState:
    """Calls, int32 `[C]`, -1 after the last one; whether the last call failed, bool; and the answer, int32."""

    task: Task
    called: Array
    failed: Array
    answer: Array


def make_environment(
    lengths: Sequence[int] = (2, 3, 4), *, recall: bool = True, spare_calls: int = 2, **options: Any
) -> Environment:
    """Makes a world of calls.

    The observation reads `run two mul dup add`; `call two` is answered by the number on top of the stack of
    `environments.text.code`, `top 2`, or by `error` if the call fails, which leaves the stack unchanged. The input is
    never shown. `answer 2 8` ends the episode, with success if it is the result of the program. Other orders of calls
    may give other results. Held-out tasks have programs that no training task has.

    `info["metrics"]` has `calls`, `errors` (whether the last call failed) and `prefix`, the share of the program with
    which the calls begin.

    Args:
        lengths: lengths of programs, one per level, from 2 to 8.
        recall: whether the observation repeats the calls, for contexts of few turns.
        spare_calls: number of calls allowed beyond the length of the longest program.
        **options: arguments of `make_text_world`.

    Returns:
        The environment.

    Raises:
        ValueError: lengths or calls are invalid.

    References:
        Du et al. (2025), CodeGym (programs as environments of tools).
    """
    lengths = tuple(lengths)
    if not lengths or not 2 <= min(lengths) <= max(lengths) <= 8 or spare_calls < 0:
        raise ValueError(f"`lengths` must be 2 to 8, `spare_calls` at least 0, got {lengths} and {spare_calls}.")
    most = max(lengths) + spare_calls
    grammar = make_grammar("call {operation}", "answer {int:2}", operation=code.OPERATIONS)

    def start(key: Array, task: Task) -> CallsState:
        nothing = jnp.full(most, -1, jnp.int32)
        return CallsState(task=task, called=nothing, failed=jnp.bool_(False), answer=nothing[0])

    def play(key: Array, state: CallsState, verb: Array, args: Array) -> CallsState:
        calls, answers = jnp.sum(state.called >= 0), verb == 1
        longer = state.called.at[calls].set(args[0, 0], mode="drop")
        failed = ~code.run(longer, state.task["inputs"][0])[2]
        return state.replace(
            called=jnp.where(answers | failed, state.called, longer),
            failed=failed & ~answers,
            answer=jnp.where(answers, args[0, 0], -1),
        )

    def allowed(state: CallsState) -> Array:
        more = jnp.broadcast_to(state.called[-1] < 0, (len(code.OPERATIONS),))
        return jnp.append(more, jnp.ones(grammar.num_entries - len(code.OPERATIONS), bool))

    def expert(key: Array, state: CallsState) -> tuple[Array, Array, None]:
        program, calls = state.task["program"], jnp.sum(state.called >= 0)
        ahead = calls < jnp.sum(program >= 0)
        answer = (jnp.int32(1), grammar.args(state.task["outputs"][0]))
        verb, args = first_rule([(ahead, (jnp.int32(0), grammar.args(program[calls]))), (True, answer)])
        return verb, args, None

    world = World(
        name="code_calls",
        grammar=grammar,
        max_steps=most + 1,
        num_levels=len(lengths),
        sample=partial(code.sample, lengths, mode="write"),
        identity=lambda task: task["program"],
        start=start,
        play=play,
        allowed=allowed,
        status=status,
        tell=partial(tell, recall),
        expert=expert,
    )
    return make_text_world(world, **options)


def status(state: CallsState) -> Status:
    """Grades calls and answer; progress is half the share of the program that was called, and 1 with success."""
    program, over = state.task["program"], state.answer >= 0
    success = state.answer == state.task["outputs"][0]
    length = jnp.sum(program >= 0)
    same = jnp.cumprod((state.called[: len(program)] == program) & (program >= 0))
    prefix = jnp.sum(same) / length
    calls = jnp.sum(state.called >= 0).astype(jnp.float32)
    parts = {"calls": calls, "errors": state.failed.astype(jnp.float32), "prefix": prefix}
    return Status(success=success, over=over, progress=jnp.where(over, success, prefix / 2), parts=parts)


def tell(recall: bool, state: CallsState, seat: Array) -> Text:
    """Describes the program, the calls, and the result of the last call."""
    del seat
    calls = jnp.sum(state.called >= 0)
    _, top, _ = code.run(state.called, state.task["inputs"][0])
    answer = when(state.failed, "error", when(calls > 0, text("top", number(top, 2))))
    made = when(calls > 0, text("called", pick(code.OPERATIONS, state.called))) if recall else None
    return text("run", pick(code.OPERATIONS, state.task["program"]), made, answer)
