"""Backtracking while acting: a step that went wrong is taken back, and another action is tried instead."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.environments.text.splits import level_of
from jaxagents.language.conversation import Conversation, answer, begin_conversation, parse_action, read_prompts
from jaxagents.language.generate import Sampling
from jaxagents.language.turns import render_prompts, step_worlds
from jaxagents.language.verifiers import Verifier
from jaxagents.ops.checks import require_positive
from jaxagents.ops.rows import where_rows
from jaxagents.types import Array, Environment, LanguagePolicy, Params, State, Task, TimeStep


@struct.dataclass
class _Search:
    """State of B searches after a number of steps.

    Attributes:
        node: state and time step of the world, and positions in the conversation, leaves `[B, ...]`.
        number: int32, number of steps so far.
        live: bool `[B]`, whether the search is not over.
        back: bool `[B]`, whether the last step was taken back.
        branches: int32 `[B]`, number of branches begun so far.
        seen: uint32 `[B, S]`, fingerprints of the states in which steps were taken.
        actions: int32 `[B, S, M]`, words of the actions of these steps.
        success: bool `[B]`.
        steps: int32 `[B]`, number of steps, including those that were taken back.
    """

    node: tuple[State, TimeStep, Array]
    number: Array
    live: Array
    back: Array
    branches: Array
    seen: Array
    actions: Array
    success: Array
    steps: Array


class _Rules(NamedTuple):
    """The constants of a search, see `make_backtracking`."""

    environment: Environment
    policy: LanguagePolicy
    num_branches: int
    max_steps: int
    restart: bool
    max_draws: int
    judge: Callable[..., Array] | None
    fingerprint: Callable[[State], Array]


def make_backtracking(
    environment: Environment,
    policy: LanguagePolicy,
    *,
    num_branches: int = 3,
    max_steps: int | None = None,
    restart: bool = False,
    max_draws: int = 8,
    judge: Callable[[Environment, LanguagePolicy], Verifier] | None = None,
) -> Callable[..., dict[str, Array]]:
    """Makes a search in which the policy takes back steps that went wrong, as long as it has branches left.

    A step went wrong if it ended the episode without success, was not an action of the world, was taken before in the
    same situation, or, with a judge, has a score of at most 0.5. The world is reset to the state before it, the actions
    tried in this situation are forbidden, and another one is drawn.

    Args:
        environment: text world with one seat, single instance.
        policy: policy that acts, without seeing its earlier turns.
        num_branches: B, number of branches, including the first one; with 1 there is no backtracking.
        max_steps: greatest number of steps in the world, over all branches; None for `num_branches` whole episodes.
        restart: whether to return to the start, and only at the end of a failed episode: B independent attempts.
        max_draws: number of draws of an action that is not forbidden; then the last one is taken.
        judge: `(environment, policy) -> Verifier`, see `language.verifiers`; the steps that it plays do not count.

    Returns:
        `(params, key, index int32 [n], task) -> results` for tasks with leaves `[n, ...]`, each float32 `[n]`:
        `success`, `episode_length` (steps of all branches), `branches`.

    Raises:
        ValueError: a count is not positive, the world is not a text world with one seat, or the policy sees earlier
            turns.

    References:
        Zhou et al. (2024), "Enhancing the General Agent Capabilities of Low-Parameter LLMs through Tuning and
        Multi-Branch Reasoning".
    """
    for name, count in (("num_branches", num_branches), ("max_steps", max_steps), ("max_draws", max_draws)):
        if count is not None:
            require_positive(name, count)
    if environment.text is None or environment.num_players > 1:
        raise ValueError(f"`environment` must be a text world of one seat, got {environment.name!r}.")
    if policy.layout.context_turns > 1:
        raise ValueError(
            f"`policy.context_turns` must be 1 to go back, got {policy.layout.context_turns}; what was said cannot be "
            "taken back."
        )
    rules = _Rules(
        environment=environment,
        policy=policy,
        num_branches=num_branches,
        max_steps=num_branches * policy.layout.num_turns if max_steps is None else max_steps,
        restart=restart,
        max_draws=max_draws,
        judge=None if judge is None else judge(environment, policy).score,
        fingerprint=jax.vmap(environment.text.fingerprint),
    )

    def play(params: Params, key: Array, index: Array, task: Task) -> dict[str, Array]:
        reset_key, play_key, judge_key = jax.random.split(key, 3)
        keys, size = _fold(play_key, index), index.shape[0]
        start = jax.vmap(environment.reset)(_fold(reset_key, index), task)
        chat = begin_conversation(policy, size)
        chat = read_prompts(policy, params, chat, render_prompts(environment, policy, task), jnp.ones(size, bool))
        first = (*start, chat.position)
        search = _Search(
            node=first,
            number=jnp.int32(0),
            live=jnp.ones(size, bool),
            back=jnp.zeros(size, bool),
            branches=jnp.ones(size, jnp.int32),
            seen=jnp.zeros((size, rules.max_steps), jnp.uint32),
            actions=jnp.full((size, rules.max_steps, environment.action_space.shape[0]), -1, jnp.int32),
            success=jnp.zeros(size, bool),
            steps=jnp.zeros(size, jnp.int32),
        )

        def take_step(search: _Search) -> _Search:
            spoken, state, after, action, went_wrong = _try_step(rules, params, keys, chat, search)
            if rules.judge is not None:
                judged = (jax.random.fold_in(judge_key, search.number), index, task, state, after)
                went_wrong |= rules.judge(params, *judged) <= 0.5
            return _go_on(rules, search, first, (*after, spoken.position), action, went_wrong)

        search = jax.lax.while_loop(
            lambda search: jnp.any(search.live) & (search.number < rules.max_steps), take_step, search
        )
        results = {"success": search.success, "episode_length": search.steps, "branches": search.branches}
        return {name: value.astype(jnp.float32) for name, value in results.items()}

    return play


def _try_step(
    rules: _Rules, params: Params, keys: Array, chat: Conversation, search: _Search
) -> tuple[Conversation, State, tuple[State, TimeStep], Array, Array]:
    """Acts in every row; returns conversation, previous state, successor, words of the action, and if it went wrong."""
    state, timestep, position = search.node
    step_keys = jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys, search.number)
    tried = _tried(rules, search)
    chat, turn, action, parsed = _draw(
        rules, params, chat.replace(position=position), timestep.observation, step_keys, tried, search
    )
    world_keys = jax.vmap(jax.random.fold_in, in_axes=(0, None))(step_keys, rules.max_draws)
    uncut = jnp.zeros(search.live.shape, bool)
    *after, turn = step_worlds(
        rules.environment, world_keys, state, timestep, action, turn, live=search.live, parsed=parsed, cut=uncut
    )
    failed = (after[1].terminated | after[1].truncated) & ~after[1].info["success"]
    went_wrong = failed if rules.restart else failed | ~turn.action_valid | _is_among(action, tried)
    return chat, state, tuple(after), action, went_wrong


def _go_on(
    rules: _Rules,
    search: _Search,
    first: tuple[State, TimeStep, Array],
    after: tuple[State, TimeStep, Array],
    action: Array,
    went_wrong: Array,
) -> _Search:
    """Takes back steps that went wrong while there are branches left, and continues from the others."""
    over, success = after[1].terminated | after[1].truncated, after[1].info["success"]
    back = search.live & went_wrong & ~success & (search.branches < rules.num_branches)
    return search.replace(
        node=jax.tree.map(partial(where_rows, back), first if rules.restart else search.node, after),
        number=search.number + 1,
        live=search.live & (back | ~over),
        back=back & (not rules.restart),
        branches=search.branches + back,
        seen=search.seen.at[:, search.number].set(rules.fingerprint(search.node[0])),
        actions=search.actions.at[:, search.number].set(action),
        success=search.success | (search.live & success),
        steps=search.steps + search.live,
    )


def _tried(rules: _Rules, search: _Search) -> Array:
    """Returns the actions of earlier steps in the same situation, int32 `[B, S, M]`; -2 for all other steps."""
    same = (search.seen == rules.fingerprint(search.node[0])[:, None]) & (jnp.arange(rules.max_steps) < search.number)[
        None
    ]
    return jnp.where(same[..., None], search.actions, -2)


def _fold(key: Array, index: Array) -> Array:
    return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, index)


def _is_among(action: Array, tried: Array) -> Array:
    return jnp.any(jnp.all(tried == action[:, None], axis=2), axis=1)


def _draw(
    rules: _Rules, params: Params, chat: Conversation, observation: Array, keys: Array, tried: Array, search: _Search
) -> tuple[Conversation, Any, Array, Array]:
    """Draws actions, after backtracking until one is new; returns conversations, turns, words, and if parsed."""

    def draw(number: Array | int) -> tuple[Conversation, Any, Array, Array]:
        both = jax.vmap(lambda key: jax.random.split(jax.random.fold_in(key, number), 2))(keys)
        spoken, turn = answer(rules.policy, params, chat, observation, keys=both, sampling=Sampling(), live=search.live)
        return spoken, turn, *parse_action(rules.policy, turn, tried.shape[2])

    def is_forbidden(action: Array) -> Array:
        return search.live & search.back & _is_among(action, tried)

    def redraw(loop: tuple[Array, Any]) -> tuple[Array, Any]:
        number, (spoken, turn, action, parsed) = loop
        fresh_spoken, *fresh = draw(number)
        keep = partial(where_rows, is_forbidden(action))
        position = keep(fresh_spoken.position, spoken.position)
        return number + 1, (spoken.replace(position=position), *jax.tree.map(keep, fresh, [turn, action, parsed]))

    return jax.lax.while_loop(
        lambda loop: (loop[0] < rules.max_draws) & jnp.any(is_forbidden(loop[1][2])), redraw, (jnp.int32(1), draw(0))
    )[1]


def make_backtracking_evaluator(
    environment: Environment,
    policy: LanguagePolicy,
    *,
    num_episodes: int,
    greedy: bool = False,
    level: int | Sequence[int] | None = None,
    held_out: bool = True,
    **options: Any,
) -> Callable[[Params, Array], dict[str, Array]]:
    """Makes the evaluation of a language policy with backtracking, on fixed tasks.

    Args:
        environment: text world with one seat, single instance.
        policy: policy that acts.
        num_episodes: number of tasks, each searched once.
        greedy: must be False, because the most probable action would be drawn again and again.
        level: level of the tasks; tasks cycle through a list.
        held_out: whether to use tasks that training never sees.
        **options: further arguments of `make_backtracking`.

    Returns:
        `(params, key) -> results`, see `make_backtracking`.

    Raises:
        ValueError: `greedy` is True, or see `make_backtracking`.
    """
    if greedy:
        raise ValueError("`greedy` must be false where another action is tried, got true; try greedy=False.")
    require_positive("num_episodes", num_episodes)
    play = make_backtracking(environment, policy, **options)
    sample = environment.text.sample_held_out_task if held_out and environment.text else environment.sample_task

    def evaluate(params: Params, key: Array) -> dict[str, Array]:
        task_key, play_key = jax.random.split(key)
        index = jnp.arange(num_episodes, dtype=jnp.int32)
        keys = _fold(task_key, index)
        task = jax.vmap(lambda key, number: sample(key, level_of(level, number)))(keys, index)
        return play(params, play_key, index, task)

    return evaluate
