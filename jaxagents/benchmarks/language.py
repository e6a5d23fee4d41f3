"""Speed of language models: decoding and supervised updates."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxagents.benchmarks.timing import Subject, compiled_subject
from jaxagents.language.generate import generate
from jaxagents.language.turns import assemble, empty_turns
from jaxagents.learners.optimizers import make_adam
from jaxagents.learners.supervised import make_supervised
from jaxagents.networks.transformer import Transformer
from jaxagents.policies.language_model import make_language_model
from jaxagents.types import Array, Episode, LanguageModel, Layout, Params, PyTree


def make_model(
    vocab_size: int, *, features: int, num_layers: int, num_heads: int = 4, **settings: Any
) -> LanguageModel:
    """Makes a language model of a given width and depth; further settings are those of `Transformer`."""
    network = partial(Transformer, features=features, num_layers=num_layers, num_heads=num_heads, **settings)
    return make_language_model(vocab_size, network=network)


def generation_subject(
    name: str,
    model: LanguageModel,
    *,
    batch_size: int,
    num_tokens: int,
    prompt_tokens: int = 8,
    dtype: Any = jnp.float32,
) -> Subject:
    """Times sampling after prompts, without early stopping; unit: new tokens. `dtype` is that of the parameters."""
    shape = (batch_size, prompt_tokens)
    prompt = jax.random.randint(jax.random.key(0), shape, 0, model.vocab_size)
    keys = jax.random.split(jax.random.key(1), batch_size)

    def sample(params: Params, prompt: Array, keys: Array) -> Array:
        mask = jnp.ones(shape, bool)
        return generate(model, params, prompt, mask, keys=keys, max_new_tokens=num_tokens).tokens

    params = jax.tree.map(lambda leaf: leaf.astype(dtype), random_params(model))
    return compiled_subject(name, sample, params, prompt, keys, work=batch_size * num_tokens)


def supervised_subject(
    name: str,
    model: LanguageModel,
    *,
    batch_size: int,
    sequence_tokens: int,
    num_updates: int,
    microbatch_tokens: int = 4096,
    flatten: bool = True,
) -> Subject:
    """Times updates of the supervised learner (forward, backward, Adam) in one loop; unit: tokens read.

    Args:
        name: row of the table.
        model: model that learns, from random parameters.
        batch_size: number of sequences per update.
        sequence_tokens: number of tokens per sequence.
        num_updates: number of updates in the loop.
        microbatch_tokens: argument of `make_supervised`.
        flatten: argument of `make_adam`.

    Returns:
        The subject.
    """
    layout = Layout(
        prompt=0, observation=1, thought=0, action=sequence_tokens - 1, num_turns=1, context_turns=1
    )  # All but the first token are learned.
    optimizer = make_adam(learning_rate=1e-4, max_gradient_norm=1.0, flatten=flatten)
    learner = make_supervised(model, optimizer, microbatch_tokens=microbatch_tokens)

    def train(state: PyTree, batches: Episode) -> PyTree:
        def update(state: PyTree, episode: Episode) -> tuple[PyTree, Any]:
            state, metrics = learner.update(state, jax.random.key(0), episode)
            return state, metrics["loss"]

        return jax.lax.scan(update, state, batches)

    tokens = jax.random.randint(
        jax.random.key(1), (num_updates, batch_size, sequence_tokens), 0, model.vocab_size, jnp.int32
    )
    batches = jax.vmap(partial(make_sequences, layout))(tokens)
    state = jax.jit(learner.init)(jax.random.key(2), random_params(model))
    return compiled_subject(name, train, state, batches, work=tokens.size)


def random_params(model: LanguageModel) -> Params:
    """Makes parameters with the sizes of a model, leaf by leaf: a program that initialises all compiles slowly."""
    shapes = jax.eval_shape(model.init, jax.random.key(0))

    def fill(path: tuple[Any, ...], leaf: Array) -> Array:
        if getattr(path[-1], "key", None) == "scale":
            return jnp.ones(leaf.shape, leaf.dtype)
        return 0.02 * jax.random.normal(jax.random.key(leaf.size), leaf.shape, leaf.dtype)

    return jax.tree_util.tree_map_with_path(fill, shapes)


def make_sequences(layout: Layout, tokens: Array) -> Episode:
    """Makes episodes of one turn from token sequences `[B, L]`, in which all but the first token count as sampled."""
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
    """Counts the floating-point operations per token in training.

    They are `6 * matrix parameters + 12 * num_layers * features * sequence_tokens`: two per multiplication in the
    forward pass and four in the backward pass; the second term is attention over all pairs of tokens. A tied embedding
    counts once, for the logits.
    """
    sizes: dict[str, int] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        name = str(getattr(path[-1], "key", path[-1]))
        sizes[name] = sizes.get(name, 0) + leaf.size
    # The embedding is a lookup of rows; only if it is tied is it also used in a product.
    matrices = sizes["kernel"] + sizes.get("head", sizes["embedding"])
    return 6.0 * matrices + 12.0 * num_layers * features * sequence_tokens
