"""Turn-based games of two players in words: rules in, a text world with two seats out."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxagents.environments.text.faces import absorbing_world
from jaxagents.environments.text.splits import draw_distinct, hash_integers, split_tasks
from jaxagents.environments.text.words import NOTHING_HAPPENS, compact, find_row, make_words, one_of, pad_all, sentence
from jaxagents.environments.timesteps import first_timestep
from jaxagents.types import Array, Box, Environment, Pattern, Patterns, PyTree, Task, TextFace, TimeStep

NAMES = (
    *("ada", "bela", "cleo", "dora", "emil", "finn", "gwen", "hugo"),
    *("iris", "jona", "kira", "lars", "mina", "nora", "olaf", "petra"),
)
SEATS = ("player 0", "player 1")


class Rules(NamedTuple):
    """A game of two players; everything random is dealt before the first move.

    States are pytrees of integers and bools, of one game; actions are indices into `moves`.

    Attributes:
        name: of the game, one phrase.
        moves: what can be said, a tuple of words per action.
        words: all other words of `observe`.
        longest: moves of the longest game.
        stake: the most that a player can lose in a game.
        deal: `(key) -> deal`, a pytree of integers.
        start: `(deal) -> state`.
        player: `(state) -> int32`, who moves next.
        legal: `(state) -> bool [A]`.
        play: `(state, action) -> state`, for legal moves.
        over: `(state) -> bool`.
        payoff: `(state) -> float32 [2]`, of a game that is over.
        observe: `(ids) -> (state, player) -> int32 [K]`, what a player is told, -1 anywhere; `ids` as of
            `words.make_words`.
        pattern: `(ids) -> Pattern`, of that.
        expert: `(key, state) -> int32`, a legal move.
        render: `(state) -> str`, on the host; None writes the observation of the player to move.
    """

    name: str
    moves: tuple[tuple[str, ...], ...]
    words: tuple[str, ...]
    longest: int
    stake: float
    deal: Callable[[Array], PyTree]
    start: Callable[[PyTree], PyTree]
    player: Callable[[PyTree], Array]
    legal: Callable[[PyTree], Array]
    play: Callable[[PyTree, Array], PyTree]
    over: Callable[[PyTree], Array]
    payoff: Callable[[PyTree], Array]
    observe: Callable[[Callable[..., np.ndarray]], Callable[[PyTree, Array], Array]]
    pattern: Callable[[Callable[..., np.ndarray]], Pattern]
    expert: Callable[[Array, PyTree], Array]
    render: Callable[[PyTree], str] | None = None


@struct.dataclass
class TextGameState:
    """A game, and what became of the last move.

    Attributes:
        task: the task of the episode.
        identity: uint32, hash of the task.
        game: state of the rules.
        valid: bool, the last move was understood and legal.
        offender: int32, who made the last move that was not; -1 for nobody.
        num_steps: int32, turns taken.
    """

    task: Task
    identity: Array
    game: Any
    valid: Array
    offender: Array
    num_steps: Array


def make_text_game(
    rules: Rules,
    *,
    illegal: str = "forfeit",
    forfeit_payoff: Sequence[float] | None = None,
    expert_strength: float = 1.0,
    max_steps: int | None = None,
    held_out_fraction: float = 0.25,
) -> Environment:
    """Makes a text world with two seats.

    The observation is that of the player who moves next: "you are player 0 ," and what the rules tell them, then
    "nothing happens ." after a move that was not understood or not legal. The prompt, the same for both, names them:
    "ada plays kuhn poker against hugo .". Rewards are payoffs at the end, `[2]` by player; `info["success"]` says that
    the game came to its end by the rules.

    A game always ends with a payoff: who forfeits loses the most that it can cost, and the other player wins as much.

    The task is `{"deal", "names": int32 [2], "level": int32}`. A game has no held-out positions, its players have:
    held-out tasks are pairs of names, in order, that never meet in training. Only a policy that reads the prompt sees
    the difference.

    Args:
        rules: of the game.
        illegal: "forfeit" ends the game. "no_op" leaves it as it is, and the player is asked again; after `max_steps`
            turns, whoever made the last illegal move forfeits.
        forfeit_payoff: of who forfeits and of the other one; None for `(-stake, stake)` of the rules: (-2, 2) in Kuhn
            poker, (-13, 13) in Leduc poker, (-1, 1) where games are won and lost.
        expert_strength: probability that the expert does not move at random.
        max_steps: turns of an episode; None takes the longest game, and twice that where illegal moves are no-ops.
        held_out_fraction: of the pairs of names.

    Returns:
        The environment, `num_players` 2.

    Raises:
        ValueError: an unknown rule for illegal moves, a strength that is no probability, fewer turns than the longest
            game has.

    References:
        Liu et al. (2025), "SPIRAL: Self-Play on Zero-Sum Games Incentivizes Reasoning via Multi-Agent Multi-Turn
        Reinforcement Learning" (roles in the prompt, forfeits).
    """
    _check(rules, illegal, forfeit_payoff, expert_strength, max_steps)
    lost, won = (-rules.stake, rules.stake) if forfeit_payoff is None else forfeit_payoff
    limit = max_steps or rules.longest * (2 if illegal == "no_op" else 1)
    said = tuple(word for move in rules.moves for word in move)
    prompt_words = (*NAMES, "plays", "against", ".", rules.name)
    words, ids = make_words(said, ("you are", *SEATS, ","), rules.words, NOTHING_HAPPENS, prompt_words)
    actions = pad_all([ids(*move) for move in rules.moves])
    observe, patterns = _make_observe(rules, ids), _make_patterns(rules, ids)
    width = max(sum(place.shape[1] for place in pattern) for pattern in patterns.observation)
    sample_task, sample_held_out_task = split_tasks(
        _make_sample(rules), lambda task: hash_integers(task["names"]), held_out_fraction=held_out_fraction
    )

    def timestep_of(state: TextGameState, over: Array, payoff: Array) -> TimeStep:
        return TimeStep(
            observation=observe(state),
            reward=jnp.where(over, payoff, 0.0).astype(jnp.float32),
            terminated=over,
            truncated=jnp.zeros((), bool),
            action_mask=rules.legal(state.game),
            player=rules.player(state.game).astype(jnp.int32),
            info={"success": over & rules.over(state.game), "valid": state.valid},
        )

    def reset(key: Array, task: Task) -> tuple[TextGameState, TimeStep]:
        del key
        state = TextGameState(
            task=task,
            identity=hash_integers(*jax.tree.leaves({**task, "level": ()})),
            game=rules.start(task["deal"]),
            valid=jnp.ones((), bool),
            offender=jnp.full((), -1, jnp.int32),
            num_steps=jnp.zeros((), jnp.int32),
        )
        first = timestep_of(state, jnp.zeros((), bool), jnp.zeros(2))
        return state, first_timestep(
            first.observation, reward_shape=(2,), action_mask=first.action_mask, player=first.player, info=first.info
        )

    def step(key: Array, state: TextGameState, action: Array) -> tuple[TextGameState, TimeStep]:
        del key
        move, known = find_row(action, actions)
        valid = known & rules.legal(state.game)[move]
        game = jax.tree.map(lambda new, old: jnp.where(valid, new, old), rules.play(state.game, move), state.game)
        offender = jnp.where(valid, state.offender, rules.player(state.game)).astype(jnp.int32)
        state = state.replace(game=game, valid=valid, offender=offender, num_steps=state.num_steps + 1)
        done = rules.over(game)
        # A game without illegal moves is over by the limit.
        forfeit = ~done & ((~valid & (illegal == "forfeit")) | (state.num_steps >= limit))
        penalty = jnp.where(jnp.arange(2) == offender, lost, won)
        return state, timestep_of(state, forfeit | done, jnp.where(forfeit, penalty, rules.payoff(game)))

    def render(state: TextGameState) -> str:
        return sentence(words, observe(state)) if rules.render is None else rules.render(state.game)

    face = TextFace(
        words=words,
        actions=actions,
        expert=_make_expert(rules, actions, expert_strength),
        fingerprint=lambda state: hash_integers(state.identity, *jax.tree.leaves(state.game)),
        sample_held_out_task=sample_held_out_task,
        prompt=_make_prompt(rules.name, ids),
        patterns=patterns,
    )
    environment = Environment(
        name=rules.name.replace(" ", "_"),
        sample_task=sample_task,
        reset=reset,
        step=step,
        observation_space=Box((width,), -1, len(words) - 1, np.int32),
        action_space=Box(actions.shape[1:], -1, len(words) - 1, np.int32),
        max_steps=limit,
        num_players=2,
        render=render,
        text=face,
    )
    return absorbing_world(environment)


def _check(
    rules: Rules,
    illegal: str,
    forfeit_payoff: Sequence[float] | None,
    expert_strength: float,
    max_steps: int | None,
) -> None:
    if illegal not in ("no_op", "forfeit"):
        raise ValueError(f'`illegal` must be "no_op" or "forfeit", got {illegal!r}.')
    if forfeit_payoff is not None and (len(forfeit_payoff) != 2 or forfeit_payoff[0] > forfeit_payoff[1]):
        raise ValueError(
            "`forfeit_payoff` must be what the offender gets and then no less for the other one, got "
            f"{forfeit_payoff}; try null."
        )
    if not 0.0 <= expert_strength <= 1.0:
        raise ValueError(f"`expert_strength` must be in [0, 1], got {expert_strength}; try 1 for the best play.")
    if max_steps is not None and max_steps < rules.longest:
        raise ValueError(
            f"`max_steps` must be at least the {rules.longest} moves of the longest game of {rules.name}, "
            f"got {max_steps}; try null."
        )


def _make_sample(rules: Rules) -> Callable[[Array, Array], Task]:
    def sample(key: Array, level: Array) -> Task:
        deal_key, names_key = jax.random.split(key)
        names = draw_distinct(names_key, jnp.ones(len(NAMES), bool), 2)
        return {"deal": rules.deal(deal_key), "names": names, "level": level}

    return sample


def _make_observe(rules: Rules, ids: Callable[..., np.ndarray]) -> Callable[[TextGameState], Array]:
    tell = rules.observe(ids)
    you_are, comma, seats, nothing = ids("you are"), ids(","), ids(*SEATS), ids(*NOTHING_HAPPENS)

    def observe(state: TextGameState) -> Array:
        player = rules.player(state.game)
        answer = jnp.where(state.valid, -1, jnp.asarray(nothing))
        seat = jnp.asarray(seats)[player][None]
        told = tell(state.game, player)
        return compact(jnp.concatenate([you_are, seat, comma, told, answer]).astype(jnp.int32))

    return observe


def _make_patterns(rules: Rules, ids: Callable[..., np.ndarray]) -> Patterns:
    one = partial(one_of, ids)
    observation = (one("you are"), one(*SEATS), one(","), *rules.pattern(ids), one(None, NOTHING_HAPPENS))
    prompt = (one(*NAMES), one(("plays", rules.name, "against")), one(*NAMES), one("."))
    return Patterns(observation=(observation,), prompt=(prompt,))


def _make_expert(
    rules: Rules, actions: np.ndarray, strength: float
) -> Callable[[Array, TextGameState], tuple[Array, None]]:
    def expert(key: Array, state: TextGameState) -> tuple[Array, None]:
        strong_key, move_key, random_key = jax.random.split(key, 3)
        legal = rules.legal(state.game)
        random = jnp.argmax(jnp.where(legal, jax.random.uniform(random_key, legal.shape), -1.0))
        strong = jax.random.bernoulli(strong_key, strength)
        return jnp.asarray(actions)[jnp.where(strong, rules.expert(move_key, state.game), random)], None

    return expert


def _make_prompt(name: str, ids: Callable[..., np.ndarray]) -> Callable[[Task], Array]:
    name_ids, plays, against, stop = ids(*NAMES), ids("plays", name), ids("against"), ids(".")

    def prompt(task: Task) -> Array:
        first, second = (jnp.asarray(name_ids)[task["names"][seat]][None] for seat in range(2))
        return jnp.concatenate([first, plays, against, second, stop])

    return prompt
