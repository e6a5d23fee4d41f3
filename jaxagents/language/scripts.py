"""Episodes of given actions, in the tokens of a language policy that does not act itself."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from jaxagents.language.slots import Part, Turn, assemble, join_parts, render_observations, render_prompts
from jaxagents.types import Array, Environment, Episode, LanguagePolicy, State, Task, TimeStep

Choose = Callable[[Array, State, TimeStep, Array], tuple[Array, Array | None, Array | bool]]
"""`(keys [N], state, timestep, turn int32 []) -> (action int32 [N, M], thought int32 [N, H] or None, speaks bool [N])`;
who is silent ends."""


def play_script(
    environment: Environment,
    policy: LanguagePolicy,
    choose: Choose,
    *,
    keys: tuple[Array, Array],
    task: Task,
    group: Array,
) -> Episode:
    """Plays N episodes of given actions and thoughts.

    Args:
        environment: a text world, single instance.
        policy: whose tokens and layout are used.
        choose: gives them; thoughts are None where the layout has no room for them.
        keys: `[N]` each, of the resets and of all that follows.
        task: leaves `[N, ...]`.
        group: int32 `[N]`.

    Returns:
        The episodes. What is thought and done counts as sampled, with a behaviour log-probability of zero.
    """
    layout = policy.layout
    state, timestep = jax.vmap(environment.reset)(keys[0], task)
    prompts = render_prompts(environment, policy, task)
    positions = jnp.repeat(jnp.sum(prompts[1], axis=1)[:, None], environment.num_players, axis=1)
    loop = (state, timestep, positions, jnp.ones(group.shape, bool))
    take_turn = partial(_take_turn, environment, policy, choose, keys[1])
    _, (turns, success) = jax.lax.scan(take_turn, loop, jnp.arange(layout.num_turns))
    turns = jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), turns)
    success = jnp.any(success.T & turns.valid, axis=1)
    return assemble(layout, turns, prompts=prompts, success=success, group=group, task=task)


def _take_turn(
    environment: Environment, policy: LanguagePolicy, choose: Choose, keys: Array, loop: tuple, number: Array
) -> tuple[tuple, tuple[Turn, Array]]:
    state, timestep, positions, live = loop
    layout = policy.layout
    player = jnp.zeros(live.shape, jnp.int32) if timestep.player is None else timestep.player
    turn_keys = jax.vmap(lambda key: jax.random.split(jax.random.fold_in(key, number)))(keys)
    action, thought, speaks = choose(turn_keys[:, 0], state, timestep, number)
    live = live & speaks
    parts = [Part(*_and_live(render_observations(policy, timestep.observation), live))]
    if layout.thought:
        parts += _thought_parts(policy, thought, live)
    tokens, mask = jax.vmap(partial(_say, policy, size=layout.action, close="end"))(action)
    parts.append(_spoken(tokens, mask & live[:, None]))
    after_state, after = jax.vmap(environment.step)(turn_keys[:, 1], state, action)
    turn = join_parts(parts, jnp.take_along_axis(positions, player[:, None], axis=1)[:, 0])
    turn = turn.replace(
        reward=jnp.where(live.reshape(-1, *(1,) * (after.reward.ndim - 1)), after.reward, 0.0),
        valid=live,
        action_valid=after.info["valid"],
        terminated=after.terminated,
        truncated=(after.truncated | (number + 1 >= layout.num_turns)) & ~after.terminated,
        fingerprint=jax.vmap(environment.text.fingerprint)(state),
        agent=player,
    )
    own = player[:, None] == jnp.arange(positions.shape[1])[None]
    positions = positions + jnp.where(own, jnp.sum(turn.token_mask, axis=1)[:, None], 0)
    return (after_state, after, positions, live & ~(turn.terminated | turn.truncated)), (turn, after.info["success"])


def _and_live(rendered: tuple[Array, Array], live: Array) -> tuple[Array, Array]:
    tokens, mask = rendered
    return tokens, mask & live[:, None]


def _say(policy: LanguagePolicy, words: Array, *, size: int, close: str) -> tuple[Array, Array]:
    """Renders words and closes them with a mark, `[size]`."""
    tokens, mask = policy.lexicon.render(words, size - 1)
    length = jnp.sum(mask)
    column = jnp.arange(size)
    tokens = jnp.where(column == length, policy.tokenizer.marks[close], jnp.pad(tokens, (0, 1)))
    return tokens, column <= length


def _thought_parts(policy: LanguagePolicy, words: Array, live: Array) -> list[Part]:
    layout = policy.layout
    tokens, mask = jax.vmap(partial(_say, policy, size=layout.thought, close="act"))(words)
    nothing = jnp.zeros((live.shape[0], 1), jnp.int32)
    return [
        _spoken(tokens, mask & live[:, None], thought=True),
        Part(tokens=nothing, mask=nothing.astype(bool)),  # The act mark that is only needed when a thought is cut.
    ]


def _spoken(tokens: Array, mask: Array, *, thought: bool = False) -> Part:
    nothing = jnp.zeros(mask.shape, jnp.float32)
    return Part(tokens=tokens, mask=mask, log_prob=nothing, sampling_log_prob=nothing, thought=thought)
