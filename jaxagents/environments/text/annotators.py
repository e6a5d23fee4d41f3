"""AIDSAFE (Kumarage et al., 2025): annotators who overlook rules of a desk deliberate, and a refiner edits them."""

from dataclasses import replace

import jax
import jax.numpy as jnp

from jaxagents.environments.text.desk import ANSWER, decide
from jaxagents.environments.text.experts import first_action
from jaxagents.environments.text.texts import Text, number, text
from jaxagents.environments.text.world import World
from jaxagents.ops.checks import require_between, require_positive
from jaxagents.types import Array, State


def with_annotators(world: World, *, num_annotators: int = 3, miss: float = 0.3, refine: bool = True) -> World:
    """Replaces a desk's expert by annotators, each of whom overlooks every rule with probability `miss`.

    Annotators take turns and add to the answers of those before them; the last one decides by all rules that any of
    them has seen, so that a rule is missed with probability `miss^K`. The chain of thought contains the thoughts of
    all, `rule 0 fits rule 2 fits rule 2 fits`. The refiner deletes repetitions and contradictions of the answer, and
    leaves `rule 2 fits`. If somebody has to be asked first, the expert asks, and cites no rule: `rule fits`.

    Args:
        world: rules of `desk`, with or without house rules.
        num_annotators: K, number of annotators.
        miss: probability in [0, 1].
        refine: whether there is a refiner.

    Returns:
        The rules; the right answers are unchanged.

    Raises:
        ValueError: the world is another one, or a number is out of its range.

    References:
        Kumarage et al. (2025), "Towards Safety Reasoning in LLMs: AI-agentic Deliberation for Policy-embedded CoT Data
        Creation".
    """
    require_positive("num_annotators", num_annotators)
    require_between("miss", miss, 0.0, 1.0)
    if world.name != "desk":
        raise ValueError(f"`world` must be desk to be annotated, got {world.name!r}.")

    def expert(key: Array, state: State) -> tuple[Array, Array, Text]:
        own_key, miss_key = jax.random.split(key)
        verb, args, _ = world.expert(own_key, state)
        answers = state.task["answers"]
        seen = jax.random.bernoulli(miss_key, 1.0 - miss, (num_annotators, *answers.shape))
        known = deliberate(seen)
        decided, cited = jax.vmap(lambda rules: decide({**state.task, "answers": jnp.where(rules, answers, -1)}))(known)
        action = first_action(world.grammar, [(True, ANSWER, decided[-1], cited[-1])])
        asks = verb != ANSWER
        chain = [text("rule", number(jnp.where(asks, -1, rule), 1), "fits") for rule in cited]
        chosen = jnp.where(asks, verb, action[0]), jnp.where(asks, args, action[1])
        return *chosen, text(*chain[-1:] if refine else chain)

    return replace(world, expert=expert)


def deliberate(seen: Array) -> Array:
    """Returns the rules that each annotator knows after those before, bool `[K, R]`, from the rules that each sees."""
    return jnp.cumsum(seen, axis=0) > 0
