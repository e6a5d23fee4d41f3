"""Lists of letters in words: sort, reverse, merge, intersect; answer, improve an answer, or criticise one."""

from functools import partial
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxagents.environments.text.builder import make_text_world
from jaxagents.environments.text.grammar import make_grammar
from jaxagents.environments.text.texts import Text, number, pick, text, when
from jaxagents.environments.text.words import compact
from jaxagents.environments.text.world import Status, World
from jaxagents.types import Array, Environment, Task

LETTERS = tuple("abcdefghijklmnopqrstuvwxyz")
OPERATIONS = ("sort", "reverse", "merge", "intersect", "first half")
SORT, REVERSE, MERGE, INTERSECT, FIRST = range(5)
KINDS = ("misplaced", "wrong")
Feedback = Literal["none", "wrong", "place", "score"]


@struct.dataclass
class ListsState:
    """State of the answers.

    Attributes:
        task: the task of the episode.
        answer: int32 `[N]`, letters of the last answer, -1 after its end; in the mode "critique", flaws.
        answered: bool, whether there is an answer.
        turns: int32, number of attempts so far, including actions that were not lists.
    """

    task: Task
    answer: Array
    answered: Array
    turns: Array


def make_environment(
    lengths: tuple[int, ...] = (4, 6, 8, 12),
    *,
    operations: tuple[str, ...] = OPERATIONS,
    mode: Literal["answer", "critique"] = "answer",
    num_attempts: int = 1,
    feedback: Feedback = "wrong",
    ends_when_right: bool = True,
    num_peers: int = 0,
    peer_errors: float = 0.3,
    **options: Any,
) -> Environment:
    """Makes a world of lists.

    The observation reads `sort d b f a .`; merge and intersect have two lists, each half as long, with "and" between
    them, and intersect keeps the order of the first. "first half" is the first half of the sorted letters. The action
    is the requested list; its score is the share of right places. Accuracy falls smoothly with the length. From the
    second attempt on, `you said <answer>` and the feedback are added. The thought of the expert gives the place of each
    letter in the answer, `d 3 b 2 f 4 a 1`, and 0 for nowhere.

    In the mode "critique" the observation ends with another's answer, and the action lists its flaws in order, such as
    `2 misplaced 5 wrong`: a place, and whether its letter belongs elsewhere in the right answer or is not part of it;
    or `none`. The thought is then the right answer.

    Args:
        lengths: number of letters of a task, one per level, even, from 4 to 16.
        operations: some of `OPERATIONS`, equally likely.
        mode: "answer" or "critique".
        num_attempts: number of answers of an episode.
        feedback: feedback on the previous answer: "none"; "wrong", that it was wrong; "place", the first wrong place;
            or "score", the number of right places.
        ends_when_right: whether a right answer ends the episode; False: all attempts are played, and `success` is that
            of the last list.
        num_peers: number of others' answers that the observation shows, as `peer <answer>`; they belong to the task.
        peer_errors: probability of a flaw per letter, in each of these answers and in one to criticise.
        **options: arguments of `make_text_world`.

    Returns:
        The environment.

    Raises:
        ValueError: lengths, operations, mode or feedback are invalid, there is no attempt, or a probability is outside
            of [0, 1].
    """
    lengths = tuple(lengths)
    _check(lengths, operations, mode, num_attempts, feedback, peer_errors)
    size = max(lengths)
    flaws = tuple(f"{place} {kind}" for place in range(1, size + 1) for kind in KINDS)
    critique, vocabulary = mode == "critique", flaws if mode == "critique" else LETTERS
    if critique:
        grammar = make_grammar(f"{{flaw:1-{size}}}", "none", flaw=flaws)
    else:
        grammar = make_grammar(f"{{letter:1-{size}}}", letter=LETTERS)

    def draw(key: Array, level: Array) -> Task:
        task_key, flaw_key = jax.random.split(key)
        task = sample(lengths, operations, task_key, level)
        right = solve(task)
        keys = jax.random.split(flaw_key, num_peers + 1)
        answers = jax.vmap(partial(spoil, rate=peer_errors), in_axes=(0, None))(keys, right)
        return task | {"peers": answers[1:]} | ({"criticised": answers[0]} if critique else {})

    def goal(task: Task) -> Array:
        return find_flaws(task["criticised"], solve(task), size) if critique else solve(task)

    def start(key: Array, task: Task) -> ListsState:
        del key
        nothing, none = jnp.full(size, -1, jnp.int32), jnp.zeros((), jnp.int32)
        return ListsState(task=task, answer=nothing, answered=jnp.zeros((), bool), turns=none)

    def play(key: Array, state: ListsState, verb: Array, args: Array) -> ListsState:
        del key, verb
        return state.replace(answer=args[0], answered=jnp.ones((), bool), turns=state.turns + 1)

    def status(state: ListsState) -> Status:
        right, parts = goal(state.task), score(state.answer, goal(state.task), in_places=not critique)
        parts = {name: jnp.where(state.answered, value, 0.0) for name, value in parts.items()}
        success = jnp.all(state.answer == right) & state.answered
        over = (state.turns >= num_attempts) | (success & ends_when_right)
        return Status(success=success, over=over, progress=parts["score"], parts=parts)

    def tell(state: ListsState, seat: Array) -> Text:
        del seat
        task = state.task
        parts = [pick(OPERATIONS, task["operation"]), pick((*LETTERS, "and"), _with_and(task))]
        parts += [text("answer", pick(LETTERS, task["criticised"]))] if critique else []
        parts += [text("peer", pick(LETTERS, peer)) for peer in task["peers"]]
        former = text("you said", pick(vocabulary, state.answer), _feedback(state.answer, goal(task), feedback, size))
        return text(*parts, *([when(state.answered, former)] if num_attempts > 1 else []), ".")

    def expert(key: Array, state: ListsState) -> tuple[Array, Array, Text]:
        del key
        right = goal(state.task)
        verb = (critique & (right[0] < 0)).astype(jnp.int32)
        thought = pick(LETTERS, solve(state.task)) if critique else _places(state.task, size)
        return verb, right[None], thought

    world = World(
        name="lists",
        grammar=grammar,
        max_steps=num_attempts,
        num_levels=len(lengths),
        sample=draw,
        identity=lambda task: {k: v for k, v in task.items() if k in ("operation", "letters", "criticised")},
        start=start,
        situation=lambda state: (state.task["peers"], state.answer, state.answered),
        play=play,
        skip=lambda state: state.replace(turns=state.turns + 1),
        status=status,
        tell=tell,
        expert=expert,
    )
    return make_text_world(world, **options)


def _check(lengths, operations, mode: str, num_attempts: int, feedback: str, peer_errors: float) -> None:
    if not lengths or not 4 <= min(lengths) <= max(lengths) <= 16 or any(length % 2 for length in lengths):
        raise ValueError(f"`lengths` must be even and from 4 to 16, got {lengths}; try (4, 8).")
    if not operations or not set(operations) <= set(OPERATIONS):
        raise ValueError(f"`operations` must be of {OPERATIONS}, got {operations}.")
    if mode not in ("answer", "critique") or feedback not in get_args(Feedback):
        raise ValueError(
            f'`mode` must be "answer" or "critique", `feedback` of {get_args(Feedback)}, got {mode!r}, {feedback!r}.'
        )
    if num_attempts < 1 or not 0.0 <= peer_errors <= 1.0:
        raise ValueError(
            f"`num_attempts` must be at least 1 and `peer_errors` in [0, 1], got {num_attempts} and {peer_errors}."
        )


def sample(lengths: tuple[int, ...], operations: tuple[str, ...], key: Array, level: Array) -> Task:
    """Draws an operation and its letters, int32 `[N]`, -1 after the last; two lists are one after the other."""
    operation_key, letter_key, common_key, order_key = jax.random.split(key, 4)
    chosen = jax.random.randint(operation_key, (), 0, len(operations))
    operation = jnp.asarray([OPERATIONS.index(name) for name in operations], jnp.int32)[chosen]
    place, length = np.arange(max(lengths)), jnp.asarray(lengths, jnp.int32)[level]
    half, later = length // 2, place >= length // 2
    common = jax.random.randint(common_key, (), 1, half)
    source = place - jnp.where(later & (operation == INTERSECT), common, 0)
    letters = jax.random.permutation(letter_key, len(LETTERS))[source]
    shuffled = jnp.where(later, length + jax.random.uniform(order_key, place.shape), place)
    rank = jnp.where(operation == MERGE, letters + len(LETTERS) * later, place)
    rank = jnp.where(operation == INTERSECT, shuffled, rank)
    order = jnp.argsort(jnp.where(place < length, rank, jnp.inf))
    return {"operation": operation, "letters": jnp.where(place < length, letters[order], -1), "level": level}


def solve(task: Task) -> Array:
    """Returns the right answer, int32 `[N]`, -1 after its last letter."""
    letters, operation = task["letters"], task["operation"]
    place, there = np.arange(len(letters)), letters >= 0
    length = jnp.sum(there)
    half = length // 2
    ordered = jnp.sort(jnp.where(there, letters, len(LETTERS)))
    ordered = jnp.where(place < jnp.where(operation == FIRST, half, length), ordered, -1)
    backwards = jnp.where(there, letters[jnp.maximum(length - 1 - place, 0)], -1)
    again = jnp.any((letters[:, None] == letters[None]) & (place >= half)[None], axis=1)
    common = compact(jnp.where(again & (place < half), letters, -1))
    return jnp.where(operation == REVERSE, backwards, jnp.where(operation == INTERSECT, common, ordered))


def spoil(key: Array, answer: Array, *, rate: float) -> Array:
    """Moves some letters of an answer by one place, and replaces some; each with half of the rate."""
    move_key, replace_key, letter_key = jax.random.split(key, 3)
    place, there = np.arange(len(answer)), answer >= 0
    order = place + 1.5 * jax.random.bernoulli(move_key, rate / 2, answer.shape)
    moved = answer[jnp.argsort(jnp.where(there, order, jnp.inf))]
    replaced = there & jax.random.bernoulli(replace_key, rate / 2, answer.shape)
    return jnp.where(replaced, jax.random.randint(letter_key, answer.shape, 0, len(LETTERS)), moved)


def find_flaws(answer: Array, right: Array, size: int) -> Array:
    """Lists the flaws of an answer, int32 `[N]`, -1 after the last: 2 place, + 1 for a letter not in `right`."""
    nowhere = ~jnp.any(answer[:, None] == right[None], axis=1)
    return compact(jnp.where(answer != right, 2 * np.arange(size) + nowhere, -1))


def score(answer: Array, right: Array, *, in_places: bool) -> dict[str, Array]:
    """Scores an answer by the share of its right places, or as a set by its F1.

    `F1 = 2 |answer and right| / (|answer| + |right|)`, 1 if both are empty.

    Returns:
        `score`; and `first_three`, whether the first three places are right, or `precision` and `recall`.
    """
    given, there = jnp.sum(answer >= 0), jnp.sum(right >= 0)
    if in_places:
        hits = jnp.sum((answer == right) & (right >= 0))
        return {
            "score": hits / jnp.maximum(given, there),
            "first_three": jnp.all(answer[:3] == right[:3]).astype(float),
        }
    hits = jnp.sum(jnp.any(answer[:, None] == right[None], axis=0) & (right >= 0))
    both = jnp.where(given + there == 0, 1.0, 2 * hits / jnp.maximum(given + there, 1))
    precision = jnp.where(given == 0, 1.0, hits / jnp.maximum(given, 1))
    return {"score": both, "precision": precision, "recall": jnp.where(there == 0, 1.0, hits / jnp.maximum(there, 1))}


def _with_and(task: Task) -> Array:
    """Returns the letters with an "and", number 26, between two lists: int32 `[N + 1]`."""
    place, half = np.arange(len(task["letters"]) + 1), jnp.sum(task["letters"] >= 0) // 2
    two = (task["operation"] == MERGE) | (task["operation"] == INTERSECT)
    letters = jnp.append(task["letters"], -1)
    split = jnp.where(place == half, len(LETTERS), letters[place - (place > half)])
    return jnp.where(two, split, letters)


def _places(task: Task, size: int) -> Text:
    """Writes for every letter its place in the answer, 0 for nowhere: "d 3 b 2 f 4 a 1"."""
    same = task["letters"][:, None] == solve(task)[None]
    place = jnp.where(jnp.any(same, axis=1), jnp.argmax(same, axis=1) + 1, 0)
    place = jnp.where(task["letters"] >= 0, place, -1)
    digits = len(str(size))
    return text(*(text(pick(LETTERS, task["letters"][i]), number(place[i], digits)) for i in range(size)))


def _feedback(answer: Array, right: Array, feedback: Feedback, size: int) -> Text:
    """Writes the feedback on an answer."""
    digits, wrong = len(str(size)), answer != right
    if feedback == "none":
        return text(None)
    if feedback == "wrong":
        return text(when(jnp.any(wrong), "wrong", "right"))
    if feedback == "place":
        return when(jnp.any(wrong), text("wrong at", number(jnp.argmax(wrong) + 1, digits)), "right")
    return text("score", number(jnp.sum(~wrong & (right >= 0)), digits))
