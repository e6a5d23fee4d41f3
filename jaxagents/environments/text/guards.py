"""Guarded calls (SEVerA, Banerjee et al., 2026): violations of a contract are redrawn, and then replaced."""

from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp

from jaxagents.environments.text.world import Status, World, grades
from jaxagents.environments.text.wrapping import with_inner_state
from jaxagents.environments.timesteps import select
from jaxagents.ops.checks import require_between
from jaxagents.types import Array, State, Task

Contract = Callable[[World, State, Array, Array], Array]
"""`(world, state, verb, args) -> bool []`, whether an action keeps the contract in a state."""


def not_lost(world: World, state: State, verb: Array, args: Array) -> Array:
    """Requires that success can still be reached after an action, without regard to chance."""
    return jnp.isfinite(world.distance(world.play(jax.random.key(0), state, verb, args)))


def with_guard(world: World, *, num_samples: int = 4, penalty: float = 0.0, contract: Contract = not_lost) -> World:
    """Blocks actions that violate a contract: they are drawn again, and finally replaced by one that satisfies it.

    An action that violates the contract, or is not understood, is answered by "nothing happens ." up to `num_samples -
    1` times in a row; at the next such draw, it is replaced by the first action of the grammar that is allowed and
    satisfies the contract. If every state without a violation has such an action, there is never a violation, whatever
    the policy does. The world's limit of turns counts actions that are taken; at most as many draws are rejected.

    `info["metrics"]` counts `violations` and `fallbacks`, and has `refused`, whether the last draw was rejected.

    Args:
        world: rules with one seat whose actions are entries of their grammar.
        num_samples: K, number of draws; with 0, all actions pass, and violations are counted.
        penalty: penalty per fallback, or without a guard per violation, in units of progress; for dense rewards.
        contract: contract that actions must satisfy.

    Returns:
        The rules.

    Raises:
        ValueError: there are several seats, actions with free fields, no distance for the contract, or a negative
            number.

    References:
        Banerjee et al. (2026), "SEVerA: Verified Synthesis of Self-Evolving Agents" (formally guarded generative
        models).
    """
    require_between("num_samples", num_samples, 0)
    grammar, limit, times = world.grammar, world.limit, 2 if num_samples > 1 else 1
    if world.num_seats > 1 or grammar.actions is None or len(grammar.actions) != grammar.num_entries:
        raise ValueError(f"`world` must have one seat and actions without free fields, got {world.name!r}.")
    if contract is not_lost and world.distance is None:
        raise ValueError(f"`world` must know the distance to a success, got {world.name!r}; try another `contract`.")
    outer = with_inner_state(world)

    def keeps(state: State, verb: Array, args: Array) -> Array:
        return contract(world, state["inner"], verb, args)

    def fallback(state: State) -> tuple[Array, Array]:
        kept = jax.vmap(lambda verb, args: keeps(state, verb, args))(*grammar.entry(jnp.arange(grammar.num_entries)))
        return grammar.entry(jnp.argmax(kept if world.allowed is None else kept & outer.allowed(state)))

    def act(key: Array, state: State, verb: Array, args: Array, replaced: Array) -> State:
        verb, args = (
            select(replaced, fallback(state), (jnp.asarray(verb, jnp.int32), args)) if num_samples else (verb, args)
        )
        counts = {"violations": ~keeps(state, verb, args), "fallbacks": replaced, "acts": True}
        following = {name: state[name] + jnp.asarray(more, jnp.int32) for name, more in counts.items()}
        taken = world.play(key, state["inner"], verb, args)
        return {**state, "inner": taken, **following, "draws": jnp.int32(0), "refused": jnp.asarray(replaced, bool)}

    def is_last(state: State) -> Array:
        return (state["draws"] + 1 >= num_samples) | (state["rejected"] >= state["most"])

    def play(key: Array, state: State, verb: Array, args: Array) -> State:
        return act(key, state, verb, args, ~keeps(state, verb, args) if num_samples else jnp.zeros((), bool))

    def accepts(state: State, verb: Array, args: Array) -> Array:
        legal = jnp.ones((), bool) if world.accepts is None else outer.accepts(state, verb, args)
        return legal & (keeps(state, verb, args) | is_last(state)) if num_samples else legal

    def skip(state: State) -> State:
        if not num_samples:
            passed = state if world.skip is None else outer.skip(state)
            return {**passed, "acts": state["acts"] + 1, "refused": jnp.zeros((), bool)}
        again = {**state, "draws": state["draws"] + 1, "rejected": state["rejected"] + 1, "refused": jnp.ones((), bool)}
        return select(is_last(state), act(jax.random.key(0), state, *fallback(state), jnp.ones((), bool)), again)

    def start(key: Array, task: Task) -> State:
        counts = ("acts", "draws", "rejected", "violations", "fallbacks")
        most = jnp.int32(world.max_steps if limit is None else limit(task))
        begun = {"inner": world.start(key, task), "most": most, "refused": jnp.zeros((), bool)}
        return begun | dict.fromkeys(counts, jnp.int32(0))

    def status(state: State) -> Status:
        inner = outer.status(state)
        cost = penalty * (state["fallbacks"] if num_samples else state["violations"])
        parts = grades(**{name: state[name] for name in ("violations", "fallbacks", "refused")})
        return inner.replace(
            over=inner.over | (state["acts"] >= state["most"]) if num_samples > 1 else inner.over,
            progress=None if inner.progress is None else inner.progress - cost,
            parts={**inner.parts, **parts},
        )

    return replace(
        outer,
        max_steps=times * world.max_steps,
        limit=None if limit is None else lambda task: times * limit(task),
        start=start,
        play=play,
        accepts=accepts,
        skip=skip,
        status=status,
        situation=lambda state: (state["draws"], outer.situation(state)),
    )
