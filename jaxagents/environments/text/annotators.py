"""AIDSAFE (Kumarage et al., 2025): annotators who overlook rules of a desk deliberate, and a refiner prunes it."""

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
    """Puts annotators in the place of a desk's expert, each of whom overlooks every rule with probability `miss`.

    Annotators take turns and add to the answers of those before them; the last one decides by all rules that any of
    them has seen, so that a rule is missed with `miss^K`. The chain of thoughts has what each of them thinks, `rule 0
    fits rule 2 fits rule 2 fits`. The refiner deletes what is repeated or contradicts the answer, and leaves `rule 2
    fits`. Where somebody has to be asked first, the expert asks, and cites no rule: `rule fits`.

    Args:
        world: the rules of `desk`, or such with house rules.
        num_annotators: K; one of them is what a single annotator says.
        miss: in [0, 1].
        refine: whether there is a refiner.

    Returns:
        The rules; what counts as right stays.

    Raises:
        ValueError: another world, or numbers out of range.

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
    """Returns the rules that each annotator knows of after those before, bool `[K, R]`, of what each sees."""
    return jnp.cumsum(seen, axis=0) > 0
