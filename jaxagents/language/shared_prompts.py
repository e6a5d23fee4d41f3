"""Episodes of a group whose common prompt is read once."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxagents.language.collect import make_dialogue_collector
from jaxagents.types import (
    Array,
    CausalMask,
    Collector,
    Environment,
    LanguageModel,
    LanguagePolicy,
    Layout,
    Params,
    PyTree,
)


def make_shared_prompt_collector(
    environment: Environment,
    policy: LanguagePolicy,
    *,
    group_size: int,
    num_rows: None = None,
    axis_name: str | None = None,
    **options: Any,
) -> Collector:
    """Makes a collector of dialogues that reads every prompt once for all episodes of its group.

    Its episodes are those of `collect.make_dialogue_collector`, up to the order of float32 sums: the keys and values of
    the prompts are computed in a batch with one row per group, and copied.

    Args:
        environment: unbatched text world.
        policy: policy that acts; its layout must have a prompt.
        group_size: number of episodes per task.
        num_rows: must be None: all episodes are played at once, because a row that starts another one reads its
            prompt on its own.
        axis_name: see `collect.make_dialogue_collector`.
        **options: further arguments of that function.

    Returns:
        The collector.

    Raises:
        ValueError: there is no prompt, its length is that of an observation, or `num_rows` is given.
    """
    layout = policy.layout
    if num_rows is not None:
        raise ValueError(f"`num_rows` must be null with shared prompts, got {num_rows}; try collector=dialogue.")
    if layout.prompt < 2 or layout.prompt == layout.observation:
        raise ValueError(
            f"`policy` must have prompts of at least 2 tokens, and not as many as observations ({layout.observation}), "
            f"got {layout.prompt} in {environment.name!r}; try collector=dialogue."
        )
    sharing = policy._replace(model=share_prompts(policy.model, layout, group_size=group_size))
    return make_dialogue_collector(environment, sharing, group_size=group_size, axis_name=axis_name, **options)


def share_prompts(model: LanguageModel, layout: Layout, *, group_size: int) -> LanguageModel:
    """Makes a model that reads prompts, told by their length, in the first row of every group, and copies the results.

    Args:
        model: model that reads.
        layout: layout that defines the number of tokens of a prompt.
        group_size: G, number of rows of a group, which are next to each other.

    Returns:
        The model; everything else is as in `model`.
    """
    one, two = (jax.eval_shape(lambda n=n: model.init_cache(n, 1)) for n in (1, 2))
    axes = jax.tree.map(lambda a, b: next(i for i, s in enumerate(zip(a.shape, b.shape)) if s[0] != s[1]), one, two)

    def extend(
        params: Params, cache: PyTree, tokens: Array, *, positions: Array, index: Array, mask: Array | CausalMask
    ) -> tuple[PyTree, Array]:
        if tokens.shape[1] != layout.prompt or tokens.shape[0] % group_size:
            return model.extend(params, cache, tokens, positions=positions, index=index, mask=mask)
        firsts = jax.tree.map(
            lambda x, axis: jax.lax.slice_in_dim(x, 0, x.shape[axis], group_size, axis=axis), cache, axes
        )
        tokens, positions, mask = jax.tree.map(lambda x: x[::group_size], (tokens, positions, mask))
        firsts, hidden = model.extend(params, firsts, tokens, positions=positions, index=index, mask=mask)
        whole = jax.tree.map(lambda x, axis: jnp.repeat(x, group_size, axis=axis), firsts, axes)
        return whole, jnp.repeat(hidden, group_size, axis=0)

    return model._replace(extend=extend)
