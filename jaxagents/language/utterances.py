"""New actions in the states of episodes: what a policy would say now to past observations."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxagents.language.generate import Sampling, decode
from jaxagents.networks.attention import causal_mask
from jaxagents.ops.episodes import acting_turns
from jaxagents.types import Array, Episode, LanguagePolicy, Params

Utter = Callable[[Params, Array, Episode], Episode]
"""`(params, key, episode) -> episode` with other actions."""


def make_utterances(policy: LanguagePolicy) -> Utter:
    """Makes the function that resamples the action in every turn of given episodes.

    Turns must not see each other, so that an action affects only its turn. Rewards, flags and observations are those of
    the episodes.

    Args:
        policy: policy that speaks.

    Returns:
        `(params, key, episode) -> Episode`, whose actions and log-probabilities are those of `params`, in the turns in
        which tokens had been sampled.

    Raises:
        ValueError: the policy sees earlier turns, or thinks.

    References:
        Zhou et al. (2024), "ArCHer: Training Language Model Agents via Hierarchical Multi-Turn RL", algorithm 1.
    """
    layout, model = policy.layout, policy.model
    if layout.context_turns != 1:
        raise ValueError(
            f"`policy.context_turns` must be 1 for actions that are sampled anew, got {layout.context_turns}; try "
            "policy.context_turns=1 in a world whose observations say it all."
        )
    if layout.thought:
        raise ValueError(
            f"`policy.thought_tokens` must be 0 for actions that are sampled anew, got {layout.thought}; try 0."
        )
    begin, length = layout.observation, layout.prompt + layout.observation

    def utter(params: Params, key: Array, episode: Episode) -> Episode:
        num_rows, num_turns, size = episode.tokens.shape

        def rows(of_prompt: Array, of_turns: Array) -> Array:
            repeated = jnp.broadcast_to(of_prompt[:, None], (num_rows, num_turns, layout.prompt))
            both = jnp.concatenate([repeated.astype(of_turns.dtype), of_turns[:, :, :begin]], axis=2)
            return both.reshape(num_rows * num_turns, length)

        mask = rows(episode.prompt_mask, episode.token_mask)
        in_prompt = jnp.cumsum(episode.prompt_mask, axis=1) - episode.prompt_mask
        cache, hidden = model.extend(
            params,
            model.init_cache(num_rows * num_turns, length),
            rows(episode.prompt_tokens, episode.tokens),
            positions=rows(in_prompt, episode.position),
            index=jnp.int32(0),
            mask=causal_mask(mask),
        )
        first = episode.position[:, :, begin]
        live = acting_turns(episode)
        _, output = decode(
            model,
            params,
            cache,
            hidden[:, -1],  # At the mark that opens the action.
            keys=jax.random.split(key, num_rows * num_turns),
            positions=first.reshape(-1),
            index=length,
            mask=mask,
            budget=jnp.where(live, layout.action, 0).reshape(-1),
            max_new_tokens=layout.action,
            sampling=Sampling(),
            stop_ids=policy.tokenizer.ends,
            write_last=False,
        )

        def put(old: Array, new: Array) -> Array:
            return jnp.concatenate([old[:, :, :begin], new.reshape(num_rows, num_turns, size - begin)], axis=2)

        return episode.replace(
            tokens=put(episode.tokens, output.tokens),
            token_mask=put(episode.token_mask, output.mask),
            action_mask=put(episode.action_mask, output.mask),
            position=put(episode.position, first.reshape(-1, 1) + jnp.cumsum(output.mask, axis=1) - output.mask),
            behavior_log_prob=put(episode.behavior_log_prob, output.log_prob),
            sampling_log_prob=put(episode.sampling_log_prob, output.log_prob),
        )

    return utter
