"""FinToolBench (2026): tools with attributes, which are stated on their cards and checked before a call."""

from dataclasses import replace

import jax
import jax.numpy as jnp

from jaxagents.environments.text import tools
from jaxagents.environments.text import tools_rules as rules
from jaxagents.environments.text.texts import Text, pick, text, when
from jaxagents.environments.text.world import Status, World, grades
from jaxagents.environments.text.wrapping import with_inner_state
from jaxagents.environments.timesteps import select
from jaxagents.types import Array, State, Task

ATTRIBUTES = (("live", "daily", "static"), ("informs", "advises", "trades"), ("stocks", "bonds", "funds"))
"""Timeliness, intent and domain."""


def with_attributes(world: World, *, cards: bool = True, filters: bool = True) -> World:
    """Gives attributes to tools, and to requests those that they want: `must be live trades bonds` in the prompt's end.

    Another act also does what the user wants, and differs in one attribute from the right one. Look-ups along the way
    have the wanted attributes, all other tools have random ones.

    Args:
        world: `tools`; skins and other wrappers go around this one.
        cards: whether the documentation of a tool ends with its attributes.
        filters: whether a call of a tool without the wanted attributes is answered by `mismatch`, and not executed.

    Returns:
        The rules, with the parts `called` (TIR), `executed`, whether the last call had no error (TESR), and
        `timeliness`, `intent` and `domain`, whether an executed call had another attribute than the wanted one;
        relative to `called`, `executed` is CER, and these are TMR, IMR and DMR.

    Raises:
        ValueError: the world is another one.

    References:
        "FinToolBench: Evaluating LLM Agents for Real-World Financial Tool Use" (2026), sections 3 and 4 (FATR).
    """
    if world.name != "tools":
        raise ValueError(f"`world` must be tools, got {world.name!r}.")
    outer = with_inner_state(world)

    def sample(key: Array, level: Array) -> Task:
        inner_key, twin_key, any_key, place_key, change_key = jax.random.split(key, 5)
        task = world.sample(inner_key, level)
        act = task["act"]
        twin = 4 + (act - 4 + jax.random.randint(twin_key, (), 1, 4)) % 4
        copied = {name: task[name].at[twin].set(task[name][act]) for name in ("does", "takes", "dated")}
        kinds = jax.random.randint(any_key, (rules.NUM_TOOLS, len(ATTRIBUTES)), 0, 3)
        changed = jnp.arange(len(ATTRIBUTES)) == jax.random.randint(place_key, (), 0, len(ATTRIBUTES))
        other = (kinds[act] + changed * jax.random.randint(change_key, (), 1, 3)) % 3
        kinds = kinds.at[twin].set(other).at[:3].set(kinds[act][None])
        return task | copied | {"attributes": kinds}

    def prompt(task: Task) -> Text:
        def card(task: Task, tool: Array) -> Text:
            return text(tools.document(task, tool), _words(task["attributes"][tool]) if cards else None)

        return text(tools.prompt(task, card=card), "must be", _words(task["attributes"][task["act"]]))

    def play(key: Array, state: State, verb: Array, args: Array) -> State:
        inner = state["inner"]
        task, exists = inner.task, inner.task["name"] == args[0, 0]
        wrong = task["attributes"][jnp.argmax(exists)] != task["attributes"][task["act"]]
        calls = (verb == rules.CALL) & jnp.any(exists)
        blocked = calls & jnp.any(wrong) & filters
        after = select(blocked, inner, world.play(key, inner, verb, args))
        fine = (after.error == rules.FINE) & ~blocked
        return {
            "inner": after,
            "blocked": blocked,
            "called": state["called"] | (verb == rules.CALL),
            "executed": jnp.where(verb == rules.CALL, fine, state["executed"]),
            "wrong": state["wrong"] | (calls & ~blocked & wrong),
        }

    def status(state: State) -> Status:
        judged = world.status(state["inner"])
        wrong = dict(zip(("timeliness", "intent", "domain"), state["wrong"], strict=True))
        parts = grades(called=state["called"], executed=state["executed"], **wrong)
        return judged.replace(parts={**judged.parts, **parts})

    no = jnp.zeros((), bool)
    fresh = {"blocked": no, "called": no, "executed": no, "wrong": jnp.zeros(len(ATTRIBUTES), bool)}
    return replace(
        outer,
        sample=sample,
        prompt=prompt,
        start=lambda key, task: {"inner": world.start(key, task), **fresh},
        play=play,
        tell=lambda state, seat: when(state["blocked"], "mismatch", outer.tell(state, seat)),
        status=status,
        situation=None,
    )


def _words(kinds: Array) -> Text:
    return text(*[pick(names, kind) for names, kind in zip(ATTRIBUTES, kinds, strict=True)])
