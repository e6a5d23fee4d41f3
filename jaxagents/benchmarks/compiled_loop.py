"""Multi-turn GRPO as one compiled program, on the game of `peers.host_loop`."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxagents.benchmarks.language import make_model
from jaxagents.benchmarks.peers.host_loop import LEARNING_RATE, Game, Loop
from jaxagents.benchmarks.timing import timed
from jaxagents.environments.text.frozenlake import make_environment
from jaxagents.language.collect import make_dialogue_collector
from jaxagents.language.policy import make_language_policy
from jaxagents.language.tokenizers import word_level
from jaxagents.learners.optimizers import make_adam
from jaxagents.learners.policy_gradient import make_policy_gradient
from jaxagents.losses.aggregation import sequence_mean
from jaxagents.losses.token_policy_gradient import ppo_clip
from jaxagents.ops.credit import grpo
from jaxagents.types import (
    Array,
    Collector,
    Environment,
    Episode,
    LanguageModel,
    Learner,
    State,
    Task,
    TimeStep,
)


def make_lakes(game: Game) -> Environment:
    """Makes the 4x4 lakes of a game: the instruction opens every observation, and episodes may end by chance."""
    environment = make_environment((4,), (0.2,), max_steps=max(game.num_turns, 6))
    words = environment.text.words
    new = tuple(dict.fromkeys(phrase for phrase in game.instruction if phrase not in words))
    instruction = np.asarray([(*words, *new).index(phrase) for phrase in game.instruction], np.int32)
    space, patterns = environment.observation_space, environment.text.patterns
    opening = tuple(instruction[:, None, None])

    def instruct(timestep: TimeStep) -> TimeStep:
        return timestep.replace(observation=jnp.concatenate([jnp.asarray(instruction), timestep.observation]))

    def reset(key: Array, task: Task) -> tuple[State, TimeStep]:
        state, timestep = environment.reset(key, task)
        return state, instruct(timestep)

    def step(key: Array, state: State, action: Array) -> tuple[State, TimeStep]:
        step_key, end_key = jax.random.split(key)
        state, timestep = environment.step(step_key, state, action)
        ended = jax.random.bernoulli(end_key, game.end_probability)
        return state, instruct(timestep.replace(terminated=timestep.terminated | (ended & ~timestep.truncated)))

    return replace(
        environment,
        reset=reset,
        step=step,
        observation_space=replace(space, shape=(space.shape[0] + len(instruction),), high=len(words) + len(new) - 1),
        text=replace(
            environment.text,
            words=(*words, *new),
            patterns=patterns._replace(observation=tuple((*opening, *pattern) for pattern in patterns.observation)),
        ),
    )


def sample_tasks(environment: Environment, count: int) -> list[dict[str, np.ndarray]]:
    """Samples tasks for the host."""
    keys = jax.random.split(jax.random.key(1), count)
    tasks = jax.tree.map(np.asarray, jax.jit(jax.vmap(environment.sample_task))(keys))
    return [{name: values[i] for name, values in tasks.items()} for i in range(count)]


def make_compiled_loop(
    game: Game,
    environment: Environment,
    *,
    features: int,
    num_layers: int,
    num_rows: int | None = None,
    microbatch_tokens: int = 4096,
    seed: int = 0,
    **settings: Any,
) -> Loop:
    """Makes GRPO for a model with random parameters; the policy sees the whole history of the episode.

    Args:
        game: game to play.
        environment: `make_lakes(game)`.
        features: width of the residual stream.
        num_layers: number of layers of the model.
        num_rows: number of episodes played at once; a row takes the next episode when its own is over. None: all of
            them.
        microbatch_tokens: see `make_policy_gradient`.
        seed: seed of all randomness.
        **settings: arguments of `Transformer`.

    Returns:
        The compiled loop.
    """
    collector, learner = _make_parts(
        game,
        environment,
        partial(make_model, features=features, num_layers=num_layers, **settings),
        num_rows=num_rows,
        microbatch_tokens=microbatch_tokens,
    )

    def step(state: tuple[State, State, Array]) -> tuple[tuple[State, State, Array], dict[str, Any]]:
        collector_state, learner_state, key = state
        key, collect_key, learn_key = jax.random.split(key, 3)
        collector_state, episode, _ = collector.collect(collector_state, learner_state.params, collect_key)
        learner_state, metrics = learner.update(learner_state, learn_key, episode)
        return (collector_state, learner_state, key), _describe(episode) | {"loss": metrics["loss"]}

    init_key, key = jax.random.split(jax.random.key(seed))
    learner_state = jax.jit(learner.init)(init_key)
    state = (collector.init(init_key, learner_state.params), learner_state, key)
    compiled, compile_seconds = timed(lambda: jax.jit(step, donate_argnums=0).lower(state).compile())

    def update() -> dict[str, float]:
        nonlocal state
        state, facts = compiled(state)
        return {name: float(fact) for name, fact in facts.items()}

    num_params = sum(leaf.size for leaf in jax.tree.leaves(learner_state.params))
    return Loop(update=update, num_params=num_params, compile_seconds=compile_seconds)


def _make_parts(
    game: Game,
    environment: Environment,
    model: Callable[[int], LanguageModel],
    *,
    num_rows: int | None,
    microbatch_tokens: int,
) -> tuple[Collector, Learner]:
    policy = make_language_policy(
        environment,
        tokenizer=word_level,
        model=model,
        num_turns=game.num_turns,
        action_tokens=game.action_tokens,
        prompt=False,
    )
    collector = make_dialogue_collector(
        environment, policy, num_groups=game.num_groups, group_size=game.group_size, num_rows=num_rows
    )
    learner = make_policy_gradient(
        policy.model,
        policy.layout,
        make_adam(learning_rate=LEARNING_RATE, max_gradient_norm=1.0, epsilon=1e-8, flatten=True),
        advantage=grpo,
        loss=ppo_clip,
        aggregation=sequence_mean,
        microbatch_tokens=microbatch_tokens,
    )
    return collector, learner


def _describe(episode: Episode) -> dict[str, Array]:
    """Computes the metrics that `Loop.update` returns."""
    counts = {"turns": episode.valid, "tokens": episode.token_mask, "sampled_tokens": episode.action_mask}
    return {f"{name}_per_episode": jnp.sum(mask, dtype=jnp.float32) / len(mask) for name, mask in counts.items()}
