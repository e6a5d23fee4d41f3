"""Lines of words that are written between the turns of a world and then shown: summaries, advice, reflections."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import jax.numpy as jnp
import numpy as np

from jaxagents.environments.text.grammar import make_grammar
from jaxagents.environments.text.subgrammars import join_grammars, own_action, widen
from jaxagents.environments.text.texts import Text, pick, text, when
from jaxagents.environments.text.words import compact, translate
from jaxagents.environments.text.world import Status, World
from jaxagents.environments.text.wrapping import with_inner_state
from jaxagents.environments.timesteps import select
from jaxagents.ops.checks import require_positive
from jaxagents.types import Array, State, Task


def with_summaries(world: World, *, window: int, max_words: int = 4, words: Sequence[str] | None = None) -> World:
    """Asks for a summary after every `window` turns, shows it from then on, and forgets the previous one.

    Observations begin with `summary <words> .` once there is a summary. The turn that asks for one ends with `summary
    ?`; the answer is `summary <words>` and has no other effect. With `policy.context_turns=window`, the summary is all
    that is left of older turns.

    Args:
        world: rules with one seat.
        window: number of turns between two summaries.
        max_words: maximum words of a summary.
        words: possible words of a summary; None: those of the actions.

    Returns:
        The rules, with an additional turn for every summary. The expert writes the words of its next action.

    Raises:
        ValueError: numbers are not positive, there is more than one seat, or words are ambiguous when joined.

    References:
        Lu et al. (2025), "Scaling LLM Multi-turn RL with End-to-end Summarization-based Context Management" (SUPO).
    """
    require_positive("window", window)
    extra = (world.max_steps - 1) // window
    return with_lines(
        world,
        "summary",
        lambda turns, before, after: turns >= window,
        extra_turns=extra,
        max_words=max_words,
        words=words,
    )


def with_adviser(
    world: World, *, every: int | None = None, max_words: int = 4, words: Sequence[str] | None = None
) -> World:
    """Adds a second seat to a world, which sees what the first one sees and writes advice before its first turn.

    Observations begin with `advice <words> .`; the adviser's end with `advice ?`. Both seats receive the same reward, 1
    for success or the payoffs of the rules. Seat 0 acts.

    Args:
        world: rules with one seat.
        every: number of turns of the actor after which there is new advice; None: only once.
        max_words: maximum words of the advice.
        words: possible words of the advice; None: those of the actions.

    Returns:
        The rules with two seats, with an additional turn for every piece of advice. The expert's advice is the words of
        its next action.

    Raises:
        ValueError: see `with_summaries`.
    """
    if every is not None:
        require_positive("every", every)
    extra = 1 + (0 if every is None else (world.max_steps - 1) // every)
    advised = with_lines(
        world,
        "advice",
        lambda turns, before, after: jnp.bool_(False) if every is None else turns >= every,
        extra_turns=extra,
        max_words=max_words,
        words=words,
        at_start=True,
    )

    def status(state: State) -> Status:
        outcome = advised.status(state)
        paid = (outcome.success & outcome.over)[None] if outcome.payoff is None else outcome.payoff
        return outcome.replace(payoff=jnp.broadcast_to(paid.astype(jnp.float32), (2,)))

    return replace(
        advised, num_seats=2, status=status, player=lambda state: jnp.where(state["writing"], 1, 0).astype(jnp.int32)
    )


def with_lines(
    world: World,
    cue: str,
    due: Callable[[Array, State, State], Array],
    *,
    extra_turns: int,
    max_words: int,
    words: Sequence[str] | None = None,
    at_start: bool = False,
) -> World:
    """Lets a line of words be written whenever it is due; see `with_summaries`.

    Args:
        world: rules with one seat.
        cue: first word of lines.
        due: `(turns int32 [], before, after) -> bool []`, given the number of turns since the last line, and the states
            of the rules before and after the last of them.
        extra_turns: maximum number of lines that become due.
        max_words: maximum words of a line.
        words: possible words of a line; None: those of the actions.
        at_start: whether a line is due before the first turn.

    Returns:
        The rules over states `{"inner", "line": int32 [max_words], "writing": bool, "turns": int32}`.

    Raises:
        ValueError: see `with_summaries`.
    """
    require_positive("max_words", max_words)
    if world.num_seats > 1:
        raise ValueError(f"`world` must have one seat, got {world.num_seats} in {world.name!r}.")
    words = tuple(world.grammar.words if words is None else words)
    line_grammar = make_grammar(f"{cue} {{word:1-{max_words}}}", word=words)
    grammar = join_grammars(world.grammar, line_grammar)
    num_verbs, outer = len(world.grammar.templates), with_inner_state(world)

    def after_turn(state: State, inner: State) -> State:
        turns = state["turns"] + 1
        writing = due(turns, state["inner"], inner) & ~world.status(inner).over
        return {**state, "inner": inner, "turns": turns, "writing": writing}

    def play(key: Array, state: State, verb: Array, args: Array) -> State:
        acted = after_turn(state, world.play(key, state["inner"], *own_action(world.grammar, verb, args, 0)))
        line = args[0, :max_words].astype(jnp.int32)
        written = {**state, "line": line, "writing": jnp.bool_(False), "turns": jnp.int32(0)}
        return select(state["writing"], written, acted)

    def skip(state: State) -> State:
        inner = state["inner"] if world.skip is None else world.skip(state["inner"])
        return select(state["writing"], state, after_turn(state, inner))

    def tell(state: State, seat: Array) -> Text:
        written = when(state["line"][0] >= 0, text(cue, pick(words, state["line"]), "."))
        return text(written, outer.tell(state, seat), when(state["writing"], text(cue, "?")))

    def expert(key: Array, state: State) -> tuple[Array, Array, Text | None]:
        verb, args, thought = world.expert(key, state["inner"])
        line = line_grammar.args(_own_words(world, words, max_words, world.grammar.render(verb, args)))
        writing = state["writing"]
        args = jnp.where(writing, widen(line, grammar), widen(args, grammar))
        return jnp.where(writing, num_verbs, verb), args, None if thought is None else when(~writing, thought)

    def allowed(state: State) -> Array:
        inner = jnp.ones(world.grammar.num_entries, bool) if world.allowed is None else outer.allowed(state)
        return jnp.append(inner & ~state["writing"], state["writing"])

    def subgrammar(state: State) -> Array:
        inner = 0 if world.subgrammar is None else outer.subgrammar(state)
        return jnp.where(state["writing"], world.grammar.num_subgrammars, inner)

    def accepts(state: State, verb: Array, args: Array) -> Array:
        return state["writing"] | outer.accepts(state, *own_action(world.grammar, verb, args, 0))

    def start(key: Array, task: Task) -> State:
        line = jnp.full(max_words, -1, jnp.int32)
        fresh = {"line": line, "writing": jnp.bool_(at_start), "turns": jnp.int32(0)}
        return {"inner": world.start(key, task), **fresh}

    limit = world.limit
    return replace(
        outer,
        grammar=grammar,
        max_steps=world.max_steps + extra_turns,
        start=start,
        play=play,
        skip=skip,
        tell=tell,
        expert=expert,
        allowed=allowed,
        subgrammar=subgrammar,
        accepts=None if world.accepts is None else accepts,
        limit=None if limit is None else lambda task: limit(task) + extra_turns,
        situation=lambda state: (state["line"], state["writing"], outer.situation(state)),
        distance=None
        if world.distance is None
        else lambda state: outer.distance(state) + state["writing"].astype(jnp.float32),
    )


def _own_words(world: World, words: Sequence[str], max_words: int, action: Array) -> Array:
    """Returns the words of an action that a line may have, int32 `[max_words]`; without any, the first of `words`."""
    place = {word: number for number, word in enumerate(words)}
    table = np.asarray([place.get(word, -1) for word in world.grammar.words], np.int32)
    written = compact(translate(action, table))
    line = jnp.pad(written, (0, max_words), constant_values=-1)[:max_words]
    return line.at[0].max(0)
