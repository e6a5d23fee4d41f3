"""Log-probabilities of given strings after every turn, and the turns' gains in them (IGPO, Wang et al., 2025)."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxagents.language.collect import make_dialogue_collector
from jaxagents.language.turns import Part, Turn, join_parts, script_parts
from jaxagents.ops.checks import require_between
from jaxagents.policies.contexts import is_folded, score_tokens, to_rows, unfold
from jaxagents.types import (
    Array,
    Collector,
    Environment,
    Episode,
    LanguagePolicy,
    Mean,
    Metrics,
    Params,
    PyTree,
    Task,
)

_NUM_LENGTHS = 4


def string_log_probs(
    policy: LanguagePolicy, params: Params, episode: Episode, words: Array, *, prefix_tokens: int = 0
) -> Array:
    """Computes the mean log-probability of the tokens of a string in place of the action of every turn.

    Args:
        policy: policy whose tokens and layout the episodes have.
        params: parameters of its model.
        episode: B episodes of T turns.
        words: int32 `[B, M]` word ids, one string per episode.
        prefix_tokens: number of first tokens of the string that are given and not scored.

    Returns:
        float32 `[B, T]`; the context of turn t is everything up to its observation, without its thought. The mark that
        ends an action is not scored. Zero if the turn did not take place.
    """
    num_rows, num_turns, size = episode.tokens.shape
    forced = _force(policy, episode, words)
    place = (jnp.arange(size) - (size - policy.layout.action))[None, None]
    length = jnp.sum(forced.action_mask[..., size - policy.layout.action :], axis=2, keepdims=True) - 1
    scored = (place >= prefix_tokens) & (place < length) & episode.valid[:, :, None]

    def score(changed: Episode, length: int) -> Array:
        rows = to_rows(changed).first_turns(length)
        return jnp.asarray(score_tokens(policy.model, params, rows, policy.layout, fields=("log_prob",)).log_prob)

    def score_turn(turn: Array, length: int) -> Array:
        """Returns `[B, S]` for the string in one turn; later turns are not visible."""
        here = (jnp.arange(num_turns) == turn)[None, :, None]
        replaced = {name: jnp.where(here, getattr(forced, name), getattr(episode, name)) for name in _REPLACED}
        return jax.lax.dynamic_index_in_dim(score(episode.replace(**replaced), length), turn, axis=1, keepdims=False)

    if is_folded(policy.layout):
        changed = episode.replace(**{name: getattr(forced, name) for name in _REPLACED})
        log_prob = unfold(policy.layout, score(changed, 1))
    else:
        # For the first turns, the model reads only a quarter, half or three quarters of an episode.
        ends = sorted({-(-num_turns * i // _NUM_LENGTHS) for i in range(1, _NUM_LENGTHS + 1)})
        parts = [
            jax.lax.map(lambda turn, end=end: score_turn(turn, end), jnp.arange(begin, end))
            for begin, end in zip([0, *ends], ends)
        ]
        log_prob = jnp.swapaxes(jnp.concatenate(parts), 0, 1)
    total = jnp.sum(jnp.where(scored, log_prob, 0.0), axis=2)
    return total / jnp.maximum(jnp.sum(scored, axis=2), 1)


_REPLACED = ("tokens", "token_mask", "position")


def _force(policy: LanguagePolicy, episode: Episode, words: Array) -> Turn:
    """Returns the turns `[B, T, ...]` of episodes with one string in place of every action."""
    num_rows, num_turns, _ = episode.tokens.shape
    num_observed = policy.layout.observation

    def flat(leaf: Array) -> Array:
        return leaf.reshape(num_rows * num_turns, *leaf.shape[2:])

    observed = Part(tokens=flat(episode.tokens[..., :num_observed]), mask=flat(episode.token_mask[..., :num_observed]))
    parts = [observed, *script_parts(policy, jnp.repeat(words, num_turns, axis=0))]
    turns = join_parts(parts, flat(episode.position[..., 0]))
    return jax.tree.map(lambda leaf: leaf.reshape(num_rows, num_turns, *leaf.shape[1:]), turns)


def last_words_of_expert(environment: Environment, key: Array, task: Task) -> Array:
    """Returns the expert's last action in a world, int32 `[M]`: the answer, if the world asks for one."""
    state, timestep = environment.reset(key, task)

    def step(loop: tuple[PyTree, Array, Array], number: Array) -> tuple[tuple[PyTree, Array, Array], None]:
        state, over, words = loop
        expert_key, step_key = jax.random.split(jax.random.fold_in(key, number))
        action, _ = environment.text.expert(expert_key, state)
        state, timestep = environment.step(step_key, state, action)
        ended = over | timestep.terminated | timestep.truncated
        return (state, ended, jnp.where(over, words, action)), None

    first = (state, timestep.terminated | timestep.truncated, environment.text.expert(key, state)[0])
    return jax.lax.scan(step, first, jnp.arange(environment.max_steps))[0][2]


def make_scored_collector(
    environment: Environment,
    policy: LanguagePolicy,
    *,
    prefix_tokens: int = 1,
    axis_name: str | None = None,
    **options: Any,
) -> Collector:
    """Makes a collector that scores the answer to the task after every turn, under the policy that acts.

    With p_t the geometric mean of the probabilities of the answer's tokens, if it were given in turn t, the information
    gain of a turn is `p_{t + 1} - p_t`, and zero in the last turn of an episode.

    Args:
        environment: text world of one player, whose expert ends with the answer.
        policy: policy that acts.
        prefix_tokens: number of first tokens of the answer that are given, such as the word "answer".
        axis_name: see `collect.make_dialogue_collector`.
        **options: further arguments of that function.

    Returns:
        The collector; its episodes have the `extras` `answer_log_prob` and `information_gain`, float32 `[B, T]`; the
        latter is used by `advantage=turn_scores`. A metric is the mean gain of all turns except the last.

    Raises:
        ValueError: the world is a game of several players, or no token of an action is left to be scored.

    References:
        Wang et al. (2025), "Information Gain-based Policy Optimization", eq. 3 and 4.
    """
    if environment.num_players > 1:
        raise ValueError(f"`environment` must have one seat for answers to be scored, got {environment.num_players}.")
    require_between("prefix_tokens", prefix_tokens, 0, policy.layout.action - 2)
    inner = make_dialogue_collector(environment, policy, axis_name=axis_name, **options)

    def collect(state: PyTree, params: Params, key: Array) -> tuple[PyTree, Episode, Metrics]:
        state, episode, metrics = inner.collect(state, params, key)
        words = jax.vmap(lambda task: last_words_of_expert(environment, jax.random.key(0), task))(episode.task)
        log_prob = string_log_probs(policy, params, episode, words, prefix_tokens=prefix_tokens)
        gain = information_gain(log_prob, episode.valid)
        followed = jnp.pad(episode.valid[:, 1:], ((0, 0), (0, 1)))
        mean_gain = Mean(total=jnp.sum(gain), count=jnp.sum(followed, dtype=jnp.float32))
        extras = {**episode.extras, "answer_log_prob": log_prob, "information_gain": gain}
        return state, episode.replace(extras=extras), {**metrics, "information_gain": mean_gain}

    return inner._replace(collect=collect)


def information_gain(log_prob: Array, valid: Array) -> Array:
    """Computes `exp(log_prob_{t + 1}) - exp(log_prob_t)`, `[B, T]`, for turns with a following turn, else 0."""
    probability, followed = jnp.exp(log_prob), jnp.pad(valid[:, 1:], ((0, 0), (0, 1)))
    return jnp.where(followed & valid, jnp.roll(probability, -1, axis=1) - probability, 0.0)
