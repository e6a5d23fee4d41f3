"""Turn-based text games of two players, with names of the seats."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from jaxagents.environments.text.builder import make_text_world
from jaxagents.environments.text.splits import draw_distinct
from jaxagents.environments.text.texts import Text, pick, text
from jaxagents.environments.text.world import Status, World
from jaxagents.types import Array, Environment, State, Task

NAMES = (
    *("ada", "bela", "cleo", "dora", "emil", "finn", "gwen", "hugo"),
    *("iris", "jona", "kira", "lars", "mina", "nora", "olaf", "petra"),
)
SEATS = ("player 0", "player 1")


def make_text_game(
    world: World,
    *,
    stake: float,
    illegal: str = "forfeit",
    forfeit_payoff: Sequence[float] | None = None,
    expert_strength: float = 1.0,
    max_steps: int | None = None,
    held_out_fraction: float = 0.25,
    **options: Any,
) -> Environment:
    """Makes a text world with two seats.

    The observation is that of the player who moves next: "you are player 0 ," and what the rules tell them, then
    "nothing happens ." after a move that was not understood or not legal. The prompt, the same for both, names them:
    "ada plays kuhn poker against hugo .". Rewards are payoffs at the end, `[2]` by player; `info["success"]` says that
    the game ended by its rules.

    A game always ends with a payoff: a player who forfeits loses the maximum loss of a game, and the other one wins as
    much.

    The task is `{"deal", "names": int32 [2], "level": int32}`. Games have no held-out positions, but held-out players:
    held-out tasks are pairs of names, in order, that never meet in training. Only a policy that reads the prompt sees
    the difference.

    Args:
        world: rules with two seats that move in turn; all randomness is dealt with the task, `{"deal", "level"}`, and
            `max_steps` is the number of moves of the longest game. Its identity of tasks and its prompts are not used.
        stake: maximum loss of a player in a game.
        illegal: "forfeit": an illegal move ends the game; "no_op": it changes nothing, and the player is asked again;
            after `max_steps` turns, the player who made the last illegal move forfeits.
        forfeit_payoff: payoffs of the player who forfeits and of the other one; None: `(-stake, stake)`: (-2, 2) in
            Kuhn poker, (-13, 13) in Leduc poker, (-1, 1) in games that are won or lost.
        expert_strength: probability that the expert does not move at random.
        max_steps: maximum turns of an episode; None: the longest game, or twice that if illegal moves are no-ops.
        held_out_fraction: fraction of the pairs of names that are held out.
        **options: further arguments of `make_text_world`.

    Returns:
        The environment, with `num_players` 2.

    Raises:
        ValueError: the rule for illegal moves is unknown, the strength is not in [0, 1], or there are fewer turns than
            the longest game has.

    References:
        Liu et al. (2025), "SPIRAL: Self-Play on Zero-Sum Games Incentivizes Reasoning via Multi-Agent Multi-Turn
        Reinforcement Learning" (roles in the prompt, forfeits).
    """
    _check(world, forfeit_payoff, expert_strength, max_steps)

    def sample(key: Array, level: Array) -> Task:
        deal_key, names_key = jax.random.split(key)
        names = draw_distinct(names_key, jnp.ones(len(NAMES), bool), 2)
        return {**world.sample(deal_key, level), "names": names}

    def prompt(task: Task) -> Text:
        first, second = (pick(NAMES, task["names"][seat]) for seat in range(2))
        return text(first, "plays", world.name, "against", second, ".")

    named = replace(
        world,
        name=world.name.replace(" ", "_"),
        num_seats=2,
        sample=sample,
        identity=lambda task: task["names"],
        prompt=prompt,
        tell=lambda state, seat: text("you are", pick(SEATS, seat), ",", world.tell(state, seat)),
        expert=_weakened(world, expert_strength),
        max_steps=max_steps or world.max_steps * (2 if illegal == "no_op" else 1),
    )
    return make_text_world(
        named,
        illegal=illegal,
        forfeit_payoff=(-stake, stake) if forfeit_payoff is None else forfeit_payoff,
        held_out_fraction=held_out_fraction,
        **options,
    )


def ended(over: Array, payoff: Array) -> Status:
    """Returns the status of a game that pays when it is over: success means that it ended by its rules."""
    return Status(success=over, over=over, payoff=jnp.where(over, payoff, 0.0))


def _check(world: World, forfeit_payoff: Sequence[float] | None, expert_strength: float, max_steps: int | None) -> None:
    if forfeit_payoff is not None and (len(forfeit_payoff) != 2 or forfeit_payoff[0] > forfeit_payoff[1]):
        raise ValueError(
            "`forfeit_payoff` must be what the offender gets and then no less for the other one, got "
            f"{forfeit_payoff}; try null."
        )
    if not 0.0 <= expert_strength <= 1.0:
        raise ValueError(f"`expert_strength` must be in [0, 1], got {expert_strength}; try 1 for the best play.")
    if max_steps is not None and max_steps < world.max_steps:
        raise ValueError(
            f"`max_steps` must be at least the {world.max_steps} moves of the longest game of {world.name}, "
            f"got {max_steps}; try null."
        )


def _weakened(world: World, strength: float) -> Callable[[Array, State], tuple[Array, Array, None]]:
    """Returns the expert of a game, which sometimes moves at random."""

    def expert(key: Array, state: State) -> tuple[Array, Array, None]:
        strong_key, move_key, random_key = jax.random.split(key, 3)
        legal = world.allowed(state)
        random = world.grammar.entry(jnp.argmax(jnp.where(legal, jax.random.uniform(random_key, legal.shape), -1.0)))
        strong, best = jax.random.bernoulli(strong_key, strength), world.expert(move_key, state)[:2]
        verb, args = jax.tree.map(lambda one, other: jnp.where(strong, one, other), best, random)
        return verb, args, None

    return expert
