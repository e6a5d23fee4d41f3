"""Episodes of given actions, as tokens of a language policy that does not act itself."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from jaxagents.language.turns import (
    Part,
    Turn,
    assemble,
    join_parts,
    player_of,
    render_observations,
    render_prompts,
    script_parts,
    step_worlds,
)
from jaxagents.types import Array, Environment, Episode, LanguagePolicy, State, Task, TimeStep

Choose = Callable[[Array, State, TimeStep, Array], tuple[Array, Array | None, Array | bool]]
"""`(keys [N], state, timestep, turn int32 []) -> (action int32 [N, M], thought int32 [N, H] or None, speaks bool [N])`;
rows that do not speak end."""


def play_script(
    environment: Environment,
    policy: LanguagePolicy,
    choose: Choose,
    *,
    keys: Array,
    task: Task,
    start: tuple[State, TimeStep],
    group: Array,
) -> Episode:
    """Plays N episodes of given actions and thoughts, without a model.

    `language.dialogue.make_dialogue` plays episodes in which the first actions are given, and the others a model's.

    Args:
        environment: unbatched text world.
        policy: policy whose tokens and layout are used.
        choose: provides actions and thoughts; thoughts are None if the layout has no room for them.
        keys: keys `[N]`.
        task: tasks, leaves `[N, ...]`.
        start: states and time steps of the environment, leaves `[N, ...]`.
        group: int32 `[N]`, groups of the episodes.

    Returns:
        The episodes. Thoughts and actions count as sampled, with a behaviour log-probability of zero.
    """
    layout = policy.layout
    prompts = render_prompts(environment, policy, task)
    positions = jnp.repeat(jnp.sum(prompts[1], axis=1)[:, None], environment.num_players, axis=1)
    loop = (*start, (positions, jnp.zeros(positions.shape, bool)), jnp.ones(group.shape, bool))
    take_turn = partial(_take_turn, environment, policy, choose, keys)
    _, (turns, success) = jax.lax.scan(take_turn, loop, jnp.arange(layout.num_turns))
    turns = jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), turns)
    success = jnp.any(success.T & turns.valid, axis=1)
    return assemble(layout, turns, prompts=prompts, success=success, group=group, task=task)


def _take_turn(
    environment: Environment, policy: LanguagePolicy, choose: Choose, keys: Array, loop: tuple, number: Array
) -> tuple[tuple, tuple[Turn, Array]]:
    state, timestep, (positions, begun), live = loop
    player = player_of(timestep, live)
    own = player[:, None] == jnp.arange(positions.shape[1])[None]
    turn_keys = jax.vmap(lambda key: jax.random.split(jax.random.fold_in(key, number)))(keys)
    action, thought, speaks = choose(turn_keys[:, 0], state, timestep, number)
    live = live & speaks
    tokens, mask = render_observations(policy, timestep.observation, jnp.any(begun & own, axis=1))
    parts = [Part(tokens=tokens, mask=mask), *script_parts(policy, action, thought)]
    parts = [part.replace(mask=part.mask & live[:, None]) for part in parts]
    turn = join_parts(parts, jnp.take_along_axis(positions, player[:, None], axis=1)[:, 0])
    cut = jnp.broadcast_to(number + 1 >= policy.layout.num_turns, live.shape)
    state, after, turn = step_worlds(
        environment, turn_keys[:, 1], state, timestep, action, turn, live=live, parsed=live, cut=cut
    )
    positions = positions + jnp.where(own, jnp.sum(turn.token_mask, axis=1)[:, None], 0)
    return (state, after, (positions, begun | own), live & ~(turn.terminated | turn.truncated)), (
        turn,
        after.info["success"],
    )
