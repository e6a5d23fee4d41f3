"""Plays several checkpoints of a language run on the same tasks, to compare them side by side."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from jaxagents.data.schema import Trajectory
from jaxagents.language.player import make_player
from jaxagents.ops.checks import require_positive
from jaxagents.reporting.transcripts import to_trajectories
from jaxagents.training.crediting import make_credit, make_group_player, with_advantages
from jaxagents.training.load import LoadedPolicy, load_policy
from jaxagents.training.stages import stage_configs
from jaxagents.types import Params


def play_checkpoints(
    path: str | Path,
    loaded: LoadedPolicy,
    checkpoints: Sequence[int | str] = (),
    *,
    stage: str | None = None,
    before: bool = False,
    group_size: int = 1,
    num_episodes: int = 1,
    seed: int = 0,
    greedy: bool = True,
    held_out: bool = True,
    level: int | None = None,
    **settings: Any,
) -> dict[str, list[Trajectory]]:
    """Plays the same tasks with several checkpoints.

    Args:
        path: run directory.
        loaded: policy of that run, which plays if no checkpoints are named.
        checkpoints: checkpoints by their number in updates, "best" or "last", in order.
        stage: see `load_policy`.
        before: whether the policy plays with random parameters first.
        group_size: number of episodes per task; above 1 they are sampled, and their tokens have the advantages that the
            learner of the run gives them, if any.
        num_episodes: number of tasks.
        seed: seed of tasks and randomness.
        greedy: applies to single episodes, see `make_player`.
        held_out: see `make_player`.
        level: see `make_player`.
        **settings: arguments of `load_policy`.

    Returns:
        Episodes by what played them; for every checkpoint in the order of the tasks.

    Raises:
        ValueError: a checkpoint does not exist, or `group_size` is not positive.
    """
    require_positive("group_size", group_size)
    environment = loaded.environment
    policy: Any = loaded.policy
    tasks: dict[str, Any] = {"held_out": held_out, "level": level}
    if group_size > 1:
        play = make_group_player(environment, policy, num_groups=num_episodes, group_size=group_size, **tasks)
        stages = stage_configs(loaded.config)
        credit = make_credit(policy, stages[stage or next(reversed(stages))]["learner"])
    else:
        play, credit = make_player(environment, policy, num_episodes=num_episodes, greedy=greedy, **tasks), None
    params: dict[str, Params] = {"before training": policy.init(jax.random.key(seed))} if before else {}
    for checkpoint in checkpoints:
        chosen = {"which": checkpoint} if isinstance(checkpoint, str) else {"step": checkpoint}
        name = checkpoint if isinstance(checkpoint, str) else f"after {checkpoint} updates"
        params[name] = load_policy(path, **chosen, stage=stage, **settings).params
    if not checkpoints:
        params["after training"] = loaded.params
    sections = {}
    for name, each in params.items():
        episode = play(each, jax.random.key(seed))
        fields = {"level": level, "id_prefix": name.replace(" ", "-")}
        sections[name] = to_trajectories(environment, policy, episode, **fields)
        if credit is not None:
            sections[name] = with_advantages(sections[name], episode, credit(each, episode))
    return sections
