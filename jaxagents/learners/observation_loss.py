"""Policy gradients that train observation tokens as if the policy had sampled them.

The masks of multi-turn learners exclude them (AgentFly, Wang et al., 2025; Agent-R1, Cheng et al., 2025).
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax.numpy as jnp

from jaxagents.learners import policy_gradient
from jaxagents.learners.combinators import params_to_act
from jaxagents.learners.microbatches import make_microbatches, score_episodes
from jaxagents.learners.settings import Slot
from jaxagents.ops.checks import require_between
from jaxagents.ops.observation_credit import weigh_observations
from jaxagents.types import (
    Agent,
    Array,
    Collector,
    Environment,
    Episode,
    LanguagePolicy,
    Layout,
    Learner,
    Metrics,
    State,
)


def all_tokens(layout: Layout) -> Layout:
    """Returns a layout with turns of the same size in which all tokens but the first count as sampled."""
    thought = layout.thought + layout.observation - (1 if layout.thought else 2)
    return layout._replace(observation=1, thought=thought)


def with_observation_loss(
    learner: Learner, policy: LanguagePolicy, *, weight: float = 1.0, microbatch_tokens: int = 4096
) -> Learner:
    """Makes a learner that treats observation tokens as sampled by the policy that acted.

    Args:
        learner: learner of `policy_gradient`, of the layout `all_tokens(policy.layout)`.
        policy: policy that acts; the first token of an observation, its mark, is left out.
        weight: weight of observation tokens; 0 leaves them out of the loss, and only lets credit see their values
            (`gae_every_token`); otherwise their advantages decide how much they count.
        microbatch_tokens: approximate number of tokens per pass through the model.

    Returns:
        The learner.
    """
    layout = all_tokens(policy.layout)
    microbatches = make_microbatches(layout, microbatch_tokens=microbatch_tokens)
    column = jnp.arange(layout.turn)
    observed = (column > 0) & (column < policy.layout.observation)

    def update(state: State, key: Array, episode: Episode) -> tuple[State, Metrics]:
        episode = episode.replace(layout=layout)
        if not weight:
            return learner.update(state, key, episode)
        score = partial(score_episodes, policy.model, microbatches, params_to_act(learner, state))
        log_prob, read = (
            jnp.asarray(score(episode, fields=("log_prob",)).log_prob),
            episode.token_mask & observed[None, None],
        )
        counted = episode.replace(
            action_mask=episode.action_mask | read,
            behavior_log_prob=jnp.where(read, log_prob, episode.behavior_log_prob),
            sampling_log_prob=jnp.where(read, log_prob, episode.sampling_log_prob),
        )
        return learner.update(state, key, counted)

    return learner._replace(update=update)


def make_agent(
    environment: Environment,
    *,
    policy: Callable[[Environment], LanguagePolicy],
    observation_weight: float = 1.0,
    credits: Mapping[str, Slot] | None = None,
    microbatch_tokens: int = 4096,
    **options: Any,
) -> Agent:
    """Assembles a policy-gradient agent that also trains observation tokens, as if it had sampled them.

    Args:
        environment: a text world.
        policy: `(environment) -> LanguagePolicy`.
        observation_weight: weight of the advantages of observation tokens in the loss, relative to 1 for sampled
            tokens. With 0, they are not in the loss, but have values, which `advantage=gae_every_token` reads.
        credits: see `policy_gradient.make_policy_gradient`.
        microbatch_tokens: approximate number of tokens per pass through the model.
        **options: further arguments of `policy_gradient.make_agent`.

    Raises:
        ValueError: the weight is negative.
    """
    require_between("observation_weight", observation_weight, 0.0)
    actor = policy(environment)
    weigh = partial(weigh_observations, num_tokens=actor.layout.observation, weight=observation_weight)
    agent = policy_gradient.make_agent(
        environment,
        policy=lambda _: actor._replace(layout=all_tokens(actor.layout)),
        credits={**(credits or {}), "observations": weigh},
        microbatch_tokens=microbatch_tokens,
        **options,
    )
    change = partial(with_observation_loss, weight=observation_weight, microbatch_tokens=microbatch_tokens)

    def make_learner(collector: Collector, num_updates: int) -> Learner:
        return change(agent.make_learner(collector, num_updates), actor)

    return Agent(policy=actor, make_learner=make_learner)
