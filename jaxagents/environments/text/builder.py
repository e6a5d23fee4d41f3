"""Makes text worlds from rules: words, budgets, splits, limits, invalid actions, forfeits, rewards."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce

import jax
import jax.numpy as jnp
import numpy as np

from jaxagents.environments.text.splits import (
    SampleTask,
    as_integers,
    hash_integers,
    leaves_without_level,
    split_tasks,
)
from jaxagents.environments.text.templates import require_no_collisions
from jaxagents.environments.text.tracing import check_world, trace_world
from jaxagents.environments.text.turns import (
    TextWorldState,
    action_mask,
    acts_together,
    draw_action,
    first_turn,
    make_finish,
    pay_out,
    play_turn,
    read_action,
    score_of,
    seat_of,
)
from jaxagents.environments.text.words import NOTHING_HAPPENS, compact, make_words, sentence
from jaxagents.environments.text.world import Status, World
from jaxagents.environments.text.writing import num_words, pattern_of, with_refusal, words_of, write_text
from jaxagents.environments.timesteps import select
from jaxagents.types import Array, Box, Environment, Pattern, Patterns, Task, TextInterface, TimeStep


def make_text_world(
    world: World,
    *,
    reward: str = "sparse",
    step_penalty: float = 0.0,
    illegal: str = "no_op",
    forfeit_payoff: Sequence[float] = (0.0, 0.0),
    held_out_fraction: float = 0.25,
    wrappers: Mapping[str, Callable[[World], World] | None] | None = None,
) -> Environment:
    """Makes the environment of a text world.

    An action that is not understood or not allowed changes nothing, takes a turn, is answered by "nothing happens ."
    and sets `info["valid"]` to False. A step after the end is a no-op. The word table has the words of the grammar
    first, then those of observations, prompts and thoughts in order of appearance.

    Args:
        world: rules of the world.
        reward: "sparse" is 1 in the step that ends an episode with success; "dense" is the increase of the progress. If
            the rules give payoffs, the reward is their increase.
        step_penalty: penalty subtracted from the reward of every step.
        illegal: "no_op" asks again; "forfeit" ends the episode with the payoffs of a forfeit. In games with several
            seats and "no_op", the seat of the last illegal action forfeits when the limit of turns is reached.
        forfeit_payoff: reward of the seat that forfeits, and of each other seat.
        held_out_fraction: fraction of the tasks that are held out.
        wrappers: functions that change the rules, applied in order, under any names; None changes nothing.

    Returns:
        The environment, with a text interface.

    Raises:
        ValueError: options are unknown; rewards are dense without progress; there are several seats without payoffs;
            words are ambiguous when joined; or functions of the world do not fit together, with what they returned.
    """
    world = reduce(lambda rules, wrap: wrap(rules), filter(None, (wrappers or {}).values()), world)
    shapes = trace_world(world)
    check_world(world, shapes, reward, illegal)
    grammar = world.grammar
    texts = [shapes.observation, *(one for one in (shapes.prompt, shapes.thought) if one is not None)]
    words, ids = make_words(grammar.words, words_of(texts[0]), NOTHING_HAPPENS, *map(words_of, texts[1:]))
    require_no_collisions(grammar.elements, words)
    patterns = Patterns(
        observation=(pattern_of(with_refusal(shapes.observation), ids),),
        prompt=() if shapes.prompt is None else (pattern_of(shapes.prompt, ids),),
        thought=() if shapes.thought is None else (pattern_of(shapes.thought, ids),),
        action=(grammar.pattern,),
    )
    length = num_words(patterns.observation[0])
    observe = _make_observe(world, ids, length)
    paid = partial(score_of, world, reward)
    finish = make_finish(world, illegal, forfeit_payoff)

    def describe(state: TextWorldState, status: Status, earned: Array) -> TimeStep:
        info = {"success": status.success, "valid": state.valid}
        return TimeStep(
            observation=observe(state),
            reward=earned.astype(jnp.float32),
            terminated=state.terminated,
            truncated=state.truncated,
            action_mask=action_mask(world, state),
            player=None if world.num_seats == 1 else seat_of(world, state),
            info={**info, "metrics": dict(status.parts)} if status.parts else info,  # type: ignore[dict-item]
        )

    def reset(key: Array, task: Task) -> tuple[TextWorldState, TimeStep]:
        inner = world.start(key, task)
        status = world.status(inner)
        state = first_turn(world, task, inner, paid(status))
        return state, describe(state, status, jnp.zeros_like(state.score))

    def step(key: Array, state: TextWorldState, action: Array) -> tuple[TextWorldState, TimeStep]:
        key, *pay_keys = (key,) if not world.payouts else jax.random.split(key, 1 + len(world.payouts))
        verb, args, valid = read_action(world, state, action)
        seat = seat_of(world, state)
        inner, pending = play_turn(world, key, state, verb, args, valid)
        running = ~(state.terminated | state.truncated)
        inner = select(running, inner, state.inner)  # Before the status, which then belongs to both.
        status = world.status(inner)
        following = state.replace(
            inner=inner,
            pending=pending,
            valid=valid,
            num_steps=state.num_steps + 1,
            score=paid(status),
            offender=jnp.where(valid, state.offender, seat).astype(jnp.int32),
        )
        following, earned = finish(following, following.score - state.score, status.over)
        following, earned = pay_out(world, pay_keys, following, earned)
        state = select(running, following, state)
        return state, describe(state, status, jnp.where(running, earned - step_penalty, 0.0))

    samplers = _make_samplers(world, held_out_fraction)
    interface = TextInterface(
        words=words,
        actions=grammar.actions,
        expert=_make_expert(world, ids, patterns.thought),
        fingerprint=_make_fingerprint(world),
        sample_held_out_task=samplers[1],
        num_levels=world.num_levels,
        prompt=_make_prompt(world, ids, patterns.prompt),
        patterns=patterns,
        examples=grammar.examples,
        draw=lambda key, state: draw_action(world, key, state),
        distance=None if world.distance is None else lambda state: world.distance(state.inner),
        rules=world,
    )
    return Environment(
        name=world.name,
        sample_task=samplers[0],
        reset=reset,
        step=step,
        observation_space=Box((length,), -1, len(words) - 1, np.int32),
        action_space=Box((grammar.max_words,), -1, len(words) - 1, np.int32),
        max_steps=world.max_steps,
        num_players=world.num_seats,
        render=(lambda state: sentence(words, observe(state)))
        if world.render is None
        else (lambda state: world.render(state.inner)),
        text=interface,
    )


def identity_hash(world: World) -> Callable[[Task], Array]:
    """Returns `(task) -> uint32 []`, the hash by which tasks are split."""
    return lambda task: hash_integers(*_identity(world, task))


def _identity(world: World, task: Task) -> list[Array]:
    return as_integers(leaves_without_level(task) if world.identity is None else world.identity(task))


def _make_samplers(world: World, held_out_fraction: float) -> tuple[SampleTask, SampleTask]:
    samplers = split_tasks(
        world.sample,
        identity_hash(world),
        num_levels=world.num_levels,
        held_out_fraction=held_out_fraction,
    )
    if world.complete is None:
        return samplers

    def completed(sample: SampleTask, *, held_out: bool) -> SampleTask:
        def sample_task(key: Array, level: Array | None = None) -> Task:
            sample_key, complete_key = jax.random.split(key)
            return world.complete(complete_key, sample(sample_key, level), held_out)

        return sample_task

    return completed(samplers[0], held_out=False), completed(samplers[1], held_out=True)


def _make_fingerprint(world: World) -> Callable[[TextWorldState], Array]:
    situation = world.situation or leaves_without_level

    def fingerprint(state: TextWorldState) -> Array:
        seat = [seat_of(world, state)] if acts_together(world) else []
        return hash_integers(*_identity(world, state.task), *as_integers(situation(state.inner)), *seat)

    return fingerprint


def _make_observe(world: World, ids: Callable, length: int) -> Callable[[TextWorldState], Array]:
    def observe(state: TextWorldState) -> Array:
        phrase = with_refusal(world.tell(state.inner, seat_of(world, state)))
        return compact(write_text(phrase, ids, state.valid))[:length]

    return observe


def _make_prompt(world: World, ids: Callable, patterns: tuple[Pattern, ...]) -> Callable[[Task], Array] | None:
    if not patterns:
        return None
    length = num_words(patterns[0])
    return lambda task: compact(write_text(world.prompt(task), ids, jnp.ones((), bool)))[:length]


def _make_expert(world: World, ids: Callable, patterns: tuple[Pattern, ...]) -> Callable:
    length = num_words(patterns[0]) if patterns else 0

    def expert(key: Array, state: TextWorldState) -> tuple[Array, Array | None]:
        verb, args, thought = world.expert(key, state.inner)
        if acts_together(world):
            seat = seat_of(world, state)
            verb, args = verb[seat], args[seat]
        action = world.grammar.render(verb, args)
        if thought is None:
            return action, None
        return action, compact(write_text(thought, ids, jnp.ones((), bool)))[:length]

    return expert
