"""Groups of episodes as in training, with the advantage that the learner of a run gives to every token."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hydra.utils import instantiate
from omegaconf import OmegaConf

from jaxagents.data.schema import Trajectory
from jaxagents.language.dialogue import make_dialogue
from jaxagents.language.generate import Sampling
from jaxagents.learners.microbatches import make_microbatches, score_episodes
from jaxagents.learners.policy_gradient import assign_credit
from jaxagents.learners.settings import make_settings
from jaxagents.reporting.transcript_html import ADVANTAGES
from jaxagents.types import Array, Environment, Episode, EpisodeView, LanguagePolicy, Params

_POLICY_GRADIENT = "jaxagents.learners.policy_gradient.make_agent"


def make_group_player(
    environment: Environment,
    policy: LanguagePolicy,
    *,
    num_groups: int,
    group_size: int,
    held_out: bool = True,
    level: int | None = None,
) -> Callable[[Params, Array], Episode]:
    """Makes the compiled function that samples groups of whole episodes, each group on one task.

    Args:
        environment: a text world.
        policy: policy that acts.
        num_groups: number of tasks.
        group_size: number of episodes of each task.
        held_out: whether tasks are those that training never sees.
        level: difficulty of the tasks; None: it is drawn.

    Returns:
        `(params, key) -> Episode` of `num_groups * group_size` rows.
    """
    sample_task = environment.text.sample_held_out_task if held_out else None
    options: dict[str, Any] = {
        "group_size": group_size,
        "sampling": Sampling(),
        "sample_task": sample_task,
        "level": level,
    }
    play = make_dialogue(environment, policy, **options)
    return jax.jit(lambda params, key: play(params, key, jnp.arange(num_groups, dtype=jnp.int32)))


def make_credit(policy: LanguagePolicy, learner: Mapping[str, Any]) -> Callable[[Params, Episode], Array] | None:
    """Makes the compiled function that assigns advantages to episodes as a learner does.

    Slots with memory start afresh, and the reference policy is taken to be the policy itself, as a checkpoint's policy
    comes with neither. So rewards for the distance to the reference are zero here.

    Args:
        policy: policy that played.
        learner: `learner` section of the config of the run.

    Returns:
        `(params, Episode) -> advantage [B, T, S]`; None for learners that give no advantage to tokens.
    """
    if learner.get("_target_") != _POLICY_GRADIENT:
        return None
    chosen = instantiate(OmegaConf.create(dict(learner))).keywords
    slots = {"advantage": chosen["advantage"], "group_filter": chosen.get("group_filter")}
    for kind in ("reward", "credit"):
        slots |= {f"{kind}/{name}": slot for name, slot in (chosen.get(f"{kind}s") or {}).items()}
    settings, microbatches = make_settings(slots=slots), make_microbatches(policy.layout)
    fields = {"log_prob", "entropy"} | ({"value"} if policy.model.value is not None else set())

    @jax.jit
    def credit(params: Params, episode: Episode) -> Array:
        _, bound = settings.open(settings.init(1))
        statistics = score_episodes(policy.model, microbatches, params, episode, fields=fields)
        view = EpisodeView(episode=episode, policy=statistics, reference=statistics)
        advantage = assign_credit(bound, view, None)[0].advantage
        return jnp.where(episode.action_mask, advantage, 0.0)

    return credit


def with_advantages(trajectories: Sequence[Trajectory], episode: Episode, advantage: Array) -> list[Trajectory]:
    """Adds the advantages of the tokens to trajectories, where the pages read them.

    Args:
        trajectories: trajectories of the rows of `episode`, in order, see `data.trajectories.from_episodes`.
        episode: B episodes.
        advantage: `[B, T, S]`.
    """
    episode, advantage = jax.device_get((episode, advantage))
    played = np.flatnonzero(episode.valid.any(axis=1))

    def of_turn(row: int, turn: int, agent: int) -> list[float]:
        here = episode.token_mask[row, turn] & (episode.agent[row, turn] == agent)
        return advantage[row, turn][here].tolist()

    return [
        replace(
            trajectory,
            metadata={
                **trajectory.metadata,
                ADVANTAGES: [of_turn(row, one.turn, one.agent) for one in trajectory.turns],
            },
        )
        for row, trajectory in zip(played.tolist(), trajectories, strict=True)
    ]
