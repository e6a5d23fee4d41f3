"""Episodes of language policies to be looked at, and what a run shows of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import jax
import jax.numpy as jnp

from jaxagents.data.schema import Trajectory
from jaxagents.data.trajectories import from_episodes
from jaxagents.language.dialogue import make_dialogue
from jaxagents.language.generate import Sampling
from jaxagents.ops.checks import require_positive
from jaxagents.reporting.transcript_html import TRANSCRIPTS_FILE, write_transcripts
from jaxagents.reporting.transcripts import print_transcripts
from jaxagents.training.build import Experiment
from jaxagents.types import Array, Environment, Episode, LanguagePolicy, Params


def make_player(
    environment: Environment,
    policy: LanguagePolicy,
    *,
    num_episodes: int = 1,
    greedy: bool = True,
    held_out: bool = True,
    level: int | None = None,
) -> Callable[[Params, Array], Episode]:
    """Makes the compiled function that plays whole episodes, each on a task of its own.

    Args:
        environment: a text world.
        policy: acts.
        num_episodes: B.
        greedy: True takes the most probable tokens, False samples.
        held_out: tasks that training never sees.
        level: difficulty of the tasks; None draws it.

    Returns:
        `(params, key) -> Episode`; the key fixes tasks and randomness.

    Raises:
        ValueError: `num_episodes` is not positive, or see `make_dialogue`.
    """
    require_positive("num_episodes", num_episodes)
    sample_task = environment.text.sample_held_out_task if held_out and environment.text else None
    sampling = Sampling(greedy=greedy)
    play = make_dialogue(environment, policy, sampling=sampling, sample_task=sample_task, level=level)
    return jax.jit(lambda params, key: play(params, key, jnp.arange(num_episodes, dtype=jnp.int32)))


def to_trajectories(
    environment: Environment, policy: LanguagePolicy, episode: Episode, **fields: Any
) -> list[Trajectory]:
    """Turns episodes of a policy into trajectories; `fields` as in `data.trajectories.from_episodes`."""
    return from_episodes(
        jax.device_get(episode), policy.tokenizer, world=environment.name, agents=agent_names(environment), **fields
    )


def agent_names(environment: Environment) -> tuple[str, ...]:
    """Returns the roles of the players of a world."""
    seats = environment.num_players
    return ("agent",) if seats == 1 else tuple(f"player {seat}" for seat in range(seats))


def show_transcripts(
    experiment: Experiment, params: Params, run_dir: str | Path, stream: TextIO | None = None, *, num_episodes: int = 4
) -> Path | None:
    """Shows what the policy of a run says before and after training, on the same held-out tasks.

    Writes `transcripts.html` and prints the first of the episodes.

    Args:
        experiment: of the run.
        params: of the policy of the last stage; with several seeds, the first one is shown.
        run_dir: directory of the run.
        stream: where to print; None for stdout.
        num_episodes: each time.

    Returns:
        Path of the file; None where the policy is no language policy, and nothing is done.
    """
    first, last = experiment.stages[0], experiment.stages[-1]
    if not isinstance(last.policy, LanguagePolicy):
        return None
    settings, sections = last.evaluation, {}
    play = make_player(
        *(last.environment, last.policy),
        num_episodes=num_episodes,
        greedy=settings.greedy,
        level=settings.level,
    )
    untrained = first.runner.params(first.runner.init(experiment.seed))
    for title, values in (("Before training", untrained), ("After training", params)):
        values = jax.device_get(values)  # One device plays, whatever the run is trained on.
        values = jax.tree.map(lambda leaf: leaf[0], values) if experiment.num_seeds else values
        episode = play(values, jax.random.key(settings.seed))
        sections[title] = to_trajectories(last.environment, last.policy, episode, level=settings.level)
        print_transcripts(sections[title][:1], stream, title=title)
    path = Path(run_dir) / TRANSCRIPTS_FILE
    return write_transcripts(path, sections, tokenizer=last.policy.tokenizer, title=experiment.name)
