"""Speed of the parts of language agents: decoding, supervised updates, worlds in words, the parts of an update."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hydra.utils import instantiate
from omegaconf import DictConfig

from jaxagents.benchmarks.timing import Subject, compiled_subject
from jaxagents.environments.vectorized import vectorize
from jaxagents.language.generate import generate
from jaxagents.language.lexicon import make_lexicon
from jaxagents.language.slots import assemble, empty_turns
from jaxagents.language.tokenizers import word_level
from jaxagents.learners.optimizers import make_adam
from jaxagents.learners.supervised import make_supervised
from jaxagents.networks.transformer import Transformer
from jaxagents.policies.language_model import make_language_model
from jaxagents.training.build import build, resolve
from jaxagents.training.program import make_program, run_updates
from jaxagents.types import Array, Environment, Episode, LanguageModel, Layout, Params, PyTree

_PROMPT_TOKENS = 8


def make_model(
    vocab_size: int, *, features: int, num_layers: int, num_heads: int = 4, **settings: Any
) -> LanguageModel:
    """Makes a language model of a width and a depth; further settings are those of `Transformer`."""
    network = partial(Transformer, features=features, num_layers=num_layers, num_heads=num_heads, **settings)
    return make_language_model(vocab_size, network=network)


def generation_subject(name: str, model: LanguageModel, *, batch_size: int, num_tokens: int) -> Subject:
    """Times sampling after a prompt of eight tokens, nothing of which stops early; unit: new tokens."""
    shape = (batch_size, _PROMPT_TOKENS)
    prompt = jax.random.randint(jax.random.key(0), shape, 0, model.vocab_size)
    keys = jax.random.split(jax.random.key(1), batch_size)

    def sample(params: Params, prompt: Array, keys: Array) -> Array:
        mask = jnp.ones(shape, bool)
        return generate(model, params, prompt, mask, keys=keys, max_new_tokens=num_tokens).tokens

    params = jax.jit(model.init)(jax.random.key(2))
    return compiled_subject(name, sample, params, prompt, keys, work=batch_size * num_tokens)


def supervised_subject(
    name: str, model: LanguageModel, *, batch_size: int, sequence_tokens: int, num_updates: int
) -> Subject:
    """Times updates of the supervised learner (forward, backward, Adam) in one loop; unit: tokens read."""
    layout = Layout(
        prompt=0, observation=1, thought=0, action=sequence_tokens - 1, num_turns=1, context_turns=1
    )  # All but the first token are learned.
    optimizer = make_adam(learning_rate=1e-4, max_gradient_norm=1.0, flatten=True)
    learner = make_supervised(model, optimizer)

    def train(state: PyTree, batches: Episode) -> PyTree:
        def update(state: PyTree, episode: Episode) -> tuple[PyTree, Array]:
            state, metrics = learner.update(state, jax.random.key(0), episode)
            return state, metrics["loss"]

        return jax.lax.scan(update, state, batches)

    tokens = jax.random.randint(
        jax.random.key(1), (num_updates, batch_size, sequence_tokens), 0, model.vocab_size, jnp.int32
    )
    batches = jax.vmap(partial(make_sequences, layout))(tokens)
    state = jax.jit(learner.init)(jax.random.key(2))
    return compiled_subject(name, train, state, batches, work=tokens.size)


def make_sequences(layout: Layout, tokens: Array) -> Episode:
    """Makes episodes of one turn of token sequences `[B, L]`, all of which but the first token counts as sampled."""
    num_rows, length = tokens.shape
    turns = empty_turns(layout, num_rows)
    everything = jnp.ones_like(turns.token_mask)
    turns = turns.replace(
        tokens=tokens[:, None],
        token_mask=everything,
        action_mask=everything & (jnp.arange(length) > 0)[None, None],
        position=jnp.broadcast_to(jnp.arange(length)[None, None], turns.position.shape),
        valid=jnp.ones_like(turns.valid),
    )
    nothing = jnp.zeros((num_rows, 0), jnp.int32)
    rows = jnp.arange(num_rows, dtype=jnp.int32)
    prompts = (nothing, nothing.astype(bool))
    return assemble(layout, turns, prompts=prompts, success=jnp.ones(num_rows, bool), group=rows, task=rows)


def training_flops(params: Params, *, num_layers: int, features: int, sequence_tokens: int) -> float:
    """Counts the floating-point operations that training needs per token.

    `6 parameters of matrix products + 12 layers features tokens`: two per multiplication in the forward pass and four
    in the backward pass; the second part is attention of all pairs of tokens. A tied embedding counts once, for the
    logits.
    """
    matrices = sum(leaf.size for leaf in jax.tree.leaves(params) if np.ndim(leaf) == 2)
    return 6.0 * matrices + 12.0 * num_layers * features * sequence_tokens


def world_subject(
    environment: Environment, *, num_envs: int, num_steps: int, reset_pool: int, level: int | None = None
) -> Subject:
    """Times random admissible actions in a text world, every observation in tokens; unit: environment steps.

    Episodes that end are followed by fresh ones, from a pool of sampled tasks that is drawn in the same program.
    """
    batch = vectorize(environment, reset_pool=reset_pool, level=level)
    lexicon = make_lexicon(environment.text.words, word_level(environment.text.words))
    length = lexicon.max_tokens(environment.observation_space.shape[0])
    render = jax.vmap(lambda words: lexicon.render(words, length)[0])
    actions = jnp.asarray(environment.text.actions, jnp.int32)

    def act(draw: Array, mask: Array | None) -> Array:
        if mask is None:
            mask = jnp.ones((draw.shape[0], len(actions)), bool)
        rank = jnp.cumsum(mask, axis=1)
        row = jnp.sum(rank <= (draw * rank[:, -1])[:, None], axis=1)
        return actions[row]

    def rollout(key: Array) -> tuple[Array, Array]:
        reset_key, draw_key, action_key = jax.random.split(key, 3)
        index = jnp.arange(num_envs)
        start = batch.reset(reset_key, index)
        draws, shared = batch.draw(draw_key, index, num_steps)
        uniforms = jax.random.uniform(action_key, (num_steps, num_envs))

        def step(loop: tuple, inputs: tuple) -> tuple[tuple, tuple]:
            state, timestep = loop
            tokens = render(timestep.observation)
            action = act(inputs[0], timestep.action_mask)
            state, timestep = batch.step(state, action, inputs[1], shared)
            return (state, timestep), (tokens, timestep.reward)

        return jax.lax.scan(step, start, (uniforms, draws))[1]

    return compiled_subject(f"rendered_steps/{environment.name}", rollout, jax.random.key(0), work=num_envs * num_steps)


def agent_subjects(config: DictConfig, *, num_updates: int) -> list[Subject]:
    """Times the last stage of an experiment of two stages, after the first; unit: episodes.

    Args:
        config: composed; the last stage changes nothing but its name.
        num_updates: of the last stage in one program.

    Returns:
        `update`, whole updates; `collect`, the episodes alone; `world`, the same with a model that costs nothing and
        speaks at random, which leaves the environment, rendering, parsing and sampling; and `learn`, the learner alone.
    """
    settings = resolve(config)
    first = build(settings).stages[0]
    state, _ = first.runner.run(first.runner.init(settings["seed"]), first.num_updates)
    params = first.runner.params(state)
    environment = instantiate(settings["environment"])
    agent = instantiate(settings["learner"])(environment, axis_name=None)
    collector = instantiate(settings["collector"])(environment, agent.policy)
    mute = agent.policy._replace(model=_stand_in(agent.policy.model))
    world = instantiate(settings["collector"])(environment, mute)
    learner = agent.make_learner(collector, num_updates)
    program = make_program(collector, learner)
    state = jax.jit(program.init)(jax.random.key(settings["seed"]), params)
    name, episodes = settings["name"], collector.steps_per_collect
    collected = (state.collector, params, state.key)
    subjects = [
        compiled_subject(
            f"{name}/update", lambda s: run_updates(program, s, num_updates), state, work=num_updates * episodes
        ),
        compiled_subject(f"{name}/collect", collector.collect, *collected, work=episodes),
        compiled_subject(f"{name}/world", world.collect, *collected, work=episodes),
    ]
    episode = jax.jit(collector.collect)(*collected)[1]  # Compiled above.
    learned = (state.learner, state.key, episode)
    return [*subjects, compiled_subject(f"{name}/learn", learner.update, *learned, work=episodes)]


def agent_shares(name: str, rows: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Computes the shares of the time of an update from the rows of `agent_subjects`; they add up to one."""
    seconds = {part: 1.0 / rows[f"{name}/{part}"]["per_second"] for part in ("collect", "world", "learn")}
    total = seconds["collect"] + seconds["learn"]
    return {
        f"{name}/share_of_model": (seconds["collect"] - seconds["world"]) / total,
        f"{name}/share_of_world": seconds["world"] / total,
        f"{name}/share_of_learner": seconds["learn"] / total,
    }


def _stand_in(model: LanguageModel) -> LanguageModel:
    """Returns a model without parameters to whom all tokens are equally likely."""

    def extend(params: Params, cache: PyTree, tokens: Array, **context: Array) -> tuple[PyTree, Array]:
        del params, context
        return cache, tokens[..., None].astype(jnp.float32)

    return model._replace(
        init_cache=lambda batch_size, length: jnp.zeros((batch_size, 1)),
        extend=extend,
        logits=lambda params, hidden: jnp.broadcast_to(hidden, (*hidden.shape[:-1], model.vocab_size)),
    )
