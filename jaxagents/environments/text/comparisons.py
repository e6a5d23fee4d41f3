"""Agentic Critical Training (2026): before a policy learns to act, it is asked which of two actions is the expert's."""

from dataclasses import replace

import jax
import jax.numpy as jnp

from jaxagents.environments.text.expert_steps import ask_some, on_the_way
from jaxagents.environments.text.experts import choose
from jaxagents.environments.text.grammar import make_grammar
from jaxagents.environments.text.subgrammars import join_grammars, own_action, widen
from jaxagents.environments.text.texts import Text, quote, text, when
from jaxagents.environments.text.world import Status, World
from jaxagents.environments.text.wrapping import with_inner_state, with_inner_task
from jaxagents.types import Array, State, Task

ANSWERS = ("first", "second")
_NUM_DRAWS = 8  # The first one that differs from the expert's action is used.


def with_comparisons(world: World, *, share: float = 0.5, num_steps: int = 4, guesses: bool = False) -> World:
    """Turns some tasks into a question: which of two actions is the expert's, in a state on its path?

    The observation reads `first <action> second <action> <observation>`; one of them is the expert's and the other an
    admissible action drawn at random, in random order. The answer, `take first` or `take second`, ends the episode; it
    is a success if it is the expert's action. Held-out tasks are never questions.

    The task is `{"inner": task, "asks": bool, "ahead": int32, "level": int32}`.

    Args:
        world: rules with one seat.
        share: share of the tasks that are questions, in [0, 1].
        num_steps: maximum steps of the expert before the question, drawn uniformly.
        guesses: whether the expert answers questions at random, to demonstrate the format and not the answers.

    Returns:
        The rules.

    Raises:
        ValueError: the world has several seats, or the share is not in [0, 1].

    References:
        "Agentic Critical Training" (2026): the choice between an expert's action and an alternative as a verifiable
        reward.
    """
    if world.num_seats > 1:
        raise ValueError(f"`world` must have one seat, got {world.num_seats} in {world.name!r}.")
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"`share` must be in [0, 1], got {share}; try 0.5.")
    own, answers = world.grammar, make_grammar("take {answer}", answer=ANSWERS)
    grammar, num_verbs = join_grammars(own, answers), len(own.templates)
    outer = with_inner_state(with_inner_task(world, asks=jnp.zeros((), bool), ahead=jnp.zeros((), jnp.int32)))

    def start(key: Array, task: Task) -> State:
        start_key, draw_key, side_key, expert_key = jax.random.split(key, 4)
        inner = on_the_way(world, expert_key, world.start(start_key, task["inner"]), task["ahead"], num_steps)
        right = own.render(*world.expert(jax.random.fold_in(expert_key, num_steps), inner)[:2])
        allowed = jnp.ones(own.num_entries, bool) if world.allowed is None else world.allowed(inner)
        keys = jax.random.split(draw_key, _NUM_DRAWS)
        drawn = jax.vmap(lambda key: own.render(*own.draw(key, choose(key, allowed))))(keys)
        differs = jnp.any(drawn != right[None], axis=1)
        other, asks = drawn[jnp.argmax(differs)], task["asks"] & jnp.any(differs)  # No question without an alternative.
        side = jax.random.bernoulli(side_key).astype(jnp.int32)
        offered = jnp.where(side == 0, jnp.stack([right, other]), jnp.stack([other, right]))
        return {"inner": inner, "asks": asks, "offered": offered, "right": side, "answer": jnp.int32(-1)}

    def tell(state: State, seat: Array) -> Text:
        one, other = (quote(words, own) for words in state["offered"])
        question = text(ANSWERS[0], one, ANSWERS[1], other)
        return text(when(state["asks"], question), outer.tell(state, seat))

    def play(key: Array, state: State, verb: Array, args: Array) -> State:
        acted = outer.play(key, state, *own_action(own, verb, args, 0))
        answered = {**state, "answer": args[0, 0].astype(jnp.int32)}
        return jax.tree.map(lambda one, other: jnp.where(verb >= num_verbs, one, other), answered, acted)

    def status(state: State) -> Status:
        inner, is_right = outer.status(state), state["answer"] == state["right"]
        return inner.replace(
            success=jnp.where(state["asks"], is_right, inner.success),
            over=jnp.where(state["asks"], state["answer"] >= 0, inner.over),
            progress=None if inner.progress is None else jnp.where(state["asks"], 0.0 + is_right, inner.progress),
        )

    def expert(key: Array, state: State) -> tuple[Array, Array, Text | None]:
        guess_key, own_key = jax.random.split(key)
        verb, args, thought = world.expert(own_key, state["inner"])
        side = jnp.where(guesses, jax.random.bernoulli(guess_key).astype(jnp.int32), state["right"])
        answer = jnp.full((grammar.max_args, grammar.max_length), -1, jnp.int32).at[0, 0].set(side)
        verb = jnp.where(state["asks"], num_verbs, verb).astype(jnp.int32)
        args = jnp.where(state["asks"], answer, widen(args, grammar)).astype(jnp.int32)
        return verb, args, thought

    def allowed(state: State) -> Array:
        acts = jnp.ones(own.num_entries, bool) if world.allowed is None else world.allowed(state["inner"])
        return jnp.concatenate([acts & ~state["asks"], jnp.broadcast_to(state["asks"], (len(ANSWERS),))])

    def subgrammar(state: State) -> Array:
        inner = 0 if world.subgrammar is None else world.subgrammar(state["inner"])
        return jnp.where(state["asks"], own.num_subgrammars, inner)

    def accepts(state: State, verb: Array, args: Array) -> Array:
        return state["asks"] | world.accepts(state["inner"], *own_action(own, verb, args, 0))

    def distance(state: State) -> Array:
        asked = jnp.where(state["answer"] < 0, 1.0, jnp.where(state["answer"] == state["right"], 0.0, jnp.inf))
        return jnp.where(state["asks"], asked, world.distance(state["inner"]))

    return replace(
        outer,
        grammar=grammar,
        complete=ask_some(world, share=share, num_steps=num_steps),
        start=start,
        play=play,
        status=status,
        tell=tell,
        expert=expert,
        allowed=allowed,
        subgrammar=subgrammar,
        accepts=None if world.accepts is None else accepts,
        distance=None if world.distance is None else distance,
        situation=lambda state: ({key: state[key] for key in ("asks", "offered", "answer")}, outer.situation(state)),
    )
