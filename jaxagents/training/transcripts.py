"""Transcripts of a run's language policy, before and after training."""

from collections.abc import Callable
from pathlib import Path
from typing import TextIO

import jax
import jax.numpy as jnp

from jaxagents.language.player import make_player
from jaxagents.reporting.transcript_html import TRANSCRIPTS_FILE, write_transcripts
from jaxagents.reporting.transcripts import print_transcripts, to_trajectories
from jaxagents.training.build import Experiment, Stage
from jaxagents.types import Array, Episode, LanguagePolicy, Params


def show_transcripts(
    experiment: Experiment, params: Params, run_dir: str | Path, stream: TextIO | None = None, *, num_episodes: int = 4
) -> Path | None:
    """Shows episodes of a run's policy before and after training, on the same held-out tasks.

    Writes `transcripts.html` and prints the first episodes.

    Args:
        experiment: experiment of the run.
        params: parameters of the policy of the last stage; with several seeds, the first one is shown.
        run_dir: directory of the run.
        stream: where to print; None for stdout.
        num_episodes: number of episodes before training, and after it.

    Returns:
        Path of the file; None for policies that are not language policies, for which nothing is done.
    """
    first, last = experiment.stages[0], experiment.stages[-1]
    if not isinstance(last.policy, LanguagePolicy):
        return None
    settings, sections = last.evaluation, {}
    play = _make_player(last, last.policy, num_episodes)
    untrained = first.runner.params(first.runner.init(experiment.seed))
    # The parameters of a stage with an adapter have another structure, which only its own policy can read.
    is_alike = jax.tree.map(jnp.ndim, untrained) == jax.tree.map(jnp.ndim, params)
    own = first.policy if isinstance(first.policy, LanguagePolicy) and not is_alike else last.policy
    before = play if own is last.policy else _make_player(first, own, num_episodes)
    for title, player, values in (("Before training", before, untrained), ("After training", play, params)):
        values = jax.device_get(values)  # One device plays, whatever the run is trained on.
        values = jax.tree.map(lambda leaf: leaf[0], values) if experiment.num_seeds else values
        episode = player(values, jax.random.key(settings.seed))
        sections[title] = to_trajectories(last.environment, last.policy, episode, level=settings.level)
        print_transcripts(sections[title][:1], stream, title=title)
    path = Path(run_dir) / TRANSCRIPTS_FILE
    title = f"{experiment.name}, {'most probable' if settings.greedy else 'sampled'} actions"
    return write_transcripts(path, sections, tokenizer=last.policy.tokenizer, title=title)


def _make_player(stage: Stage, policy: LanguagePolicy, num_episodes: int) -> Callable[[Params, Array], Episode]:
    settings = stage.evaluation
    return make_player(
        *(stage.environment, policy), num_episodes=num_episodes, greedy=settings.greedy, level=settings.level
    )
