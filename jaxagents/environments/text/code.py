"""Programs in words for a small stack machine: write one that passes tests, repair or shorten one, or predict."""

from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxagents.environments.text.builder import make_text_world
from jaxagents.environments.text.experts import choose
from jaxagents.environments.text.grammar import make_grammar
from jaxagents.environments.text.splits import draw_distinct
from jaxagents.environments.text.texts import Text, number, pick, text, when
from jaxagents.environments.text.world import Status, World
from jaxagents.types import Array, Environment, Task

OPERATIONS = ("one", "two", "three", "dup", "swap", "add", "sub", "mul")
NEEDS = np.asarray([0, 0, 0, 1, 2, 2, 2, 2], np.int32)
"""Numbers that must be on the stack."""
GROWS = np.asarray([1, 1, 1, 1, 0, -1, -1, -1], np.int32)
"""By how much an operation makes the stack larger."""
DEPTH, MODULUS, NUM_TESTS = 4, 100, 6
SHOWS = {"repair": "fix", "speed": "speed"}
"""Words before a program that is not to stay as it is, by mode."""
SHOWN = 3
"""Tests that are seen; the others are hidden."""


@struct.dataclass
class CodeState:
    """State of the answers.

    Attributes:
        task: the task of the episode.
        program: int32 `[L]`, last program, -1 after its end; in the mode "predict", the answer, followed by -1s.
        answered: bool, whether there was an answer.
        turns: int32, number of attempts so far.
    """

    task: Task
    program: Array
    answered: Array
    turns: Array


def make_environment(
    lengths: tuple[int, ...] = (2, 3, 4, 6),
    *,
    mode: Literal["write", "repair", "speed", "predict"] = "write",
    num_attempts: int = 1,
    **options: Any,
) -> Environment:
    """Makes a world of programs.

    A program works on a stack that starts with its input: `two mul dup add` is 4 x. Numbers are taken modulo 100; `sub`
    subtracts the top number from the one below it. It fails if a number is missing or the stack has more than four, and
    returns the top number. The observation shows three tests, `1 to 4 , 5 to 2 0 , 9 to 3 6 ,`; in the mode "repair"
    they follow `fix dup mul dup add`, the program with one operation replaced. The action is a program; with several
    attempts, `you said <program> passes 1` follows. In the mode "speed", the shown program, `speed dup one mul add`, is
    right and two operations too long; success is to pass all tests with fewer operations. In the mode "predict" the
    observation is `two mul of 7`, and the action a number. The thought of the expert is the top number after each
    operation, for the first input. Held-out tasks have programs that no training task has.

    Success is to pass all six tests, of which three are hidden. `info["metrics"]` has `runs`, the share of them that
    end without a failure, `tests` and `hidden_tests`, the shares that pass, and `short`, whether the program is not
    longer than the one from which the tests were made.

    Args:
        lengths: lengths of the programs from which tests are made, one per level, from 2 to 8. Answers may be two
            longer.
        mode: "write", "repair", "speed" or "predict".
        num_attempts: number of answers of an episode.
        **options: arguments of `make_text_world`.

    Returns:
        The environment.

    Raises:
        ValueError: lengths, mode or attempts are invalid.

    References:
        Austin et al. (2021), Program Synthesis with Large Language Models, section 2; Shypula et al. (2024), Learning
        Performance-Improving Code Edits, section 2 (programs that are to be made faster).
    """
    lengths = tuple(lengths)
    if not lengths or not 2 <= min(lengths) <= max(lengths) <= 8:
        raise ValueError(f"`lengths` must be from 2 to 8, got {lengths}; try (2, 4).")
    if mode not in ("write", "repair", "speed", "predict") or num_attempts < 1:
        raise ValueError(
            '`mode` must be "write", "repair", "speed" or "predict", `num_attempts` at least 1, got '
            f"{mode!r} and {num_attempts}."
        )
    most, predicts = max(lengths) + 2, mode == "predict"

    def start(key: Array, task: Task) -> CodeState:
        del key
        nothing, zero = jnp.full(most, -1, jnp.int32), jnp.zeros((), jnp.int32)
        return CodeState(task=task, program=nothing, answered=jnp.zeros((), bool), turns=zero)

    def play(key: Array, state: CodeState, verb: Array, args: Array) -> CodeState:
        del key, verb
        return state.replace(program=pad(args[0], most), answered=jnp.ones((), bool), turns=state.turns + 1)

    def grade(state: CodeState) -> Status:
        parts = grade_prediction(state) if predicts else grade_program(state)
        parts = {name: jnp.where(state.answered, value, 0.0) for name, value in parts.items()}
        success = (parts["tests"] == 1.0) & (parts["hidden_tests"] == 1.0)
        success = success & (parts["short"] == 1.0) if mode == "speed" else success
        progress = (parts["tests"] + parts["hidden_tests"]) / 2
        return Status(success=success, over=success | (state.turns >= num_attempts), progress=progress, parts=parts)

    def expert(key: Array, state: CodeState) -> tuple[Array, Array, Text]:
        del key
        task = state.task
        tops, value, _ = run(task["program"], task["inputs"][0])
        steps = [when(task["program"][i] >= 0, text(number(tops[i], 2), ",")) for i in range(len(tops))]
        answer = jnp.reshape(value, (1, 1)) if predicts else pad(task["program"], most)[None]
        return jnp.int32(0), answer, text(*steps)

    world = World(
        name="code",
        grammar=make_grammar("{int:2}") if predicts else make_grammar(f"{{operation:1-{most}}}", operation=OPERATIONS),
        max_steps=num_attempts,
        num_levels=len(lengths),
        sample=partial(sample, lengths, mode=mode),
        identity=lambda task: task["program"],
        start=start,
        situation=lambda state: (_without_level(state.task), state.program, state.answered),
        play=play,
        skip=lambda state: state.replace(turns=state.turns + 1),
        status=grade,
        tell=partial(tell, mode=mode, again=num_attempts > 1),
        expert=expert,
    )
    return make_text_world(world, **options)


def _without_level(task: Task) -> Task:
    return {name: leaf for name, leaf in task.items() if name != "level"}


def pad(program: Array, length: int) -> Array:
    """Pads a program with -1s, int32 `[length]`."""
    return jnp.pad(program, (0, length - len(program)), constant_values=-1)


def run(program: Array, value: Array) -> tuple[Array, Array, Array]:
    """Runs a program.

    Args:
        program: int32 `[L]`, -1 after the last operation.
        value: int32 `[]`, initial number on the stack.

    Returns:
        The top number after each operation, int32 `[L]`; that at the end, int32 `[]`; and whether nothing failed.
    """
    place = np.arange(DEPTH)

    def operate(machine: tuple[Array, Array, Array], operation: Array) -> tuple[tuple[Array, Array, Array], Array]:
        stack, depth, fine = machine
        upper, lower = stack[jnp.maximum(depth - 1, 0)], stack[jnp.maximum(depth - 2, 0)]
        new = jnp.stack([1, 2, 3, upper, lower, lower + upper, lower - upper, lower * upper])[operation] % MODULUS
        after = depth + jnp.asarray(GROWS)[operation]
        possible = (depth >= jnp.asarray(NEEDS)[operation]) & (after <= DEPTH)
        below = (operation == OPERATIONS.index("swap")) & (place == depth - 2)
        changed = jnp.where(place == after - 1, new, jnp.where(below, upper, stack))
        works = (operation >= 0) & possible
        stack, depth = jnp.where(works, changed, stack), jnp.where(works, after, depth)
        return (stack, depth, fine & ((operation < 0) | possible)), stack[depth - 1]

    machine = jnp.where(place == 0, value, 0).astype(jnp.int32), jnp.ones((), jnp.int32), jnp.ones((), bool)
    machine, tops = jax.lax.scan(operate, machine, program)
    return tops, tops[-1], machine[2]


def sample(lengths: tuple[int, ...], key: Array, level: Array, *, mode: str) -> Task:
    """Draws a program that runs and leaves one number, and the inputs of its tests."""
    input_key, place_key, other_key, *keys = jax.random.split(key, 3 + max(lengths))
    length, depth = jnp.asarray(lengths, jnp.int32)[level], jnp.ones((), jnp.int32)
    drawn: list[Array] = []
    for number_done, operation_key in enumerate(keys):
        after, rest = depth + GROWS, length - number_done - 1
        # Before the last operation there are two numbers; earlier, few enough to be used up.
        ends = jnp.where(rest == 0, after == 1, jnp.where(rest == 1, after == 2, after - 1 <= rest))
        operation = choose(operation_key, (depth >= NEEDS) & (after <= DEPTH) & ends)
        drawn.append(jnp.where(rest >= 0, operation, -1))
        depth = jnp.where(rest >= 0, after[operation], depth)
    program = jnp.stack(drawn)
    inputs = draw_distinct(input_key, jnp.ones(20, bool), NUM_TESTS)
    outputs = jax.vmap(lambda value: run(program, value)[1])(inputs)
    task = {"program": program, "inputs": inputs, "outputs": outputs, "level": level}
    if mode == "speed":
        return task | {"shown": lengthen(program, place_key, other_key)}
    if mode != "repair":
        return task
    place = jax.random.randint(place_key, (), 0, length)
    other = choose(other_key, np.arange(len(OPERATIONS)) != program[place])
    return task | {"shown": program.at[place].set(other)}


def lengthen(program: Array, place_key: Array, pair_key: Array) -> Array:
    """Inserts two operations without effect somewhere into a program, int32 `[L]`, which has room for them."""
    place = np.arange(len(program) + 2)
    depth = 1 + jnp.cumsum(jnp.where(program >= 0, jnp.asarray(GROWS)[program], 0))
    depth = jnp.append(1, depth)  # Before each operation, and at the end.
    there = jnp.append(True, program >= 0)
    at = choose(place_key, there & (depth < DEPTH))
    pairs = jnp.asarray([[OPERATIONS.index(name) for name in pair] for pair in (("one", "mul"), ("swap", "swap"))])
    pair = pairs[choose(pair_key, jnp.stack([True, depth[at] >= 2]))]
    return jnp.where(
        place < at,
        program[jnp.minimum(place, len(program) - 1)],
        jnp.where(place < at + 2, pair[jnp.clip(place - at, 0, 1)], program[jnp.maximum(place - 2, 0)]),
    )


def grade_program(state: CodeState) -> dict[str, Array]:
    """Grades a program by its tests."""
    _, values, fine = jax.vmap(run, in_axes=(None, 0))(state.program, state.task["inputs"])
    passes = (fine & (values == state.task["outputs"])).astype(jnp.float32)
    lengths = [jnp.sum(program >= 0) for program in (state.program, state.task["program"])]
    return {
        "runs": jnp.mean(fine.astype(jnp.float32)),
        "tests": jnp.mean(passes[:SHOWN]),
        "hidden_tests": jnp.mean(passes[SHOWN:]),
        "short": (lengths[0] <= lengths[1]).astype(jnp.float32),
    }


def grade_prediction(state: CodeState) -> dict[str, Array]:
    """Grades a prediction of what a program returns, under the names of `grade_program`."""
    right = (state.program[0] == state.task["outputs"][0]).astype(jnp.float32)
    return {"runs": jnp.ones(()), "tests": right, "hidden_tests": right, "short": jnp.ones(())}


def tell(state: CodeState, seat: Array, *, mode: str, again: bool) -> Text:
    """Describes the tests or the program, and what became of the last answer."""
    del seat
    task = state.task
    if mode == "predict":
        question = text(pick(OPERATIONS, task["program"]), "of", number(task["inputs"][0], 2))
        former = text("you said", number(state.program[0], 2))
    else:
        tests = zip(task["inputs"][:SHOWN], task["outputs"][:SHOWN], strict=True)
        lines = [text(number(given, 2), "to", number(returned, 2), ",") for given, returned in tests]
        heading = None if mode == "write" else text(SHOWS[mode], pick(OPERATIONS, task["shown"]))
        question = text(heading, *lines)
        passed = jnp.round(grade_program(state)["tests"] * SHOWN).astype(jnp.int32)
        former = text("you said", pick(OPERATIONS, state.program), "passes", number(passed, 1))
    return text(question, when(state.answered, former)) if again else question
