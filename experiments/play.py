"""Shows a trained agent at play: `python experiments/play.py path=runs/ppo_cartpole/... num_episodes=3`."""

import json
import sys
from functools import partial
from typing import Any

from jaxagents.training.interrupts import interrupts_at_once

with interrupts_at_once():
    from omegaconf import DictConfig

    from jaxagents.training.command import command


def show_game(config: DictConfig, loaded: Any, greedy: bool) -> dict:
    """Shows text frames and writes an animation."""
    from jaxagents.reporting.frames import play, show_frames, write_gif
    from jaxagents.reporting.reports import write_report

    settings = {"greedy": greedy} | {name: config[name] for name in ("num_episodes", "seed", "level", "max_steps")}
    episodes = play(loaded.environment, loaded.policy, loaded.params, **settings, title="after" * config.before)
    untrained = play(loaded.environment, loaded.policy, None, **settings, title="before") if config.before else []
    frames, beside = ([frame for one in played for frame in one.frames] for played in (episodes, untrained))
    gif = config.gif and str(write_gif(config.gif, frames, fps=config.fps, beside=beside))
    if gif:  # The page of the run shows its film.
        write_report(config.path)
    show_frames(frames, delay=1 / config.fps if config.delay is None else config.delay)
    returns = [episode.episode_return for episode in episodes]
    return {"gif": gif, "episode_return": returns, "episode_length": [episode.episode_length for episode in episodes]}


def show_text(config: DictConfig, loaded: Any, greedy: bool) -> dict:
    """Shows transcripts, of the policy or with a person, and writes them."""
    from jaxagents.play.checkpoints import play_checkpoints
    from jaxagents.play.interactive import play_text
    from jaxagents.play.person import at_terminal
    from jaxagents.reporting.transcript_html import save_transcripts

    settings = {"greedy": greedy} | {name: config[name] for name in ("num_episodes", "seed", "held_out", "level")}
    if config.role == "none" and (config.checkpoints or config.before or config.group_size > 1):
        which: dict[str, Any] = {name: config[name] for name in ("stage", "seed_index", "before", "group_size")}
        sections = play_checkpoints(config.path, loaded, config.checkpoints or (), **which, **settings)
        greedy = greedy and config.group_size == 1
    else:
        sections = {"": play_text(loaded, at_terminal(), role=config.role, **settings)}
    title = f"{loaded.config['name']}, {'most probable' if greedy else 'sampled'} actions"
    trajectories = [trajectory for played in sections.values() for trajectory in played]
    return {
        **save_transcripts(sections, loaded.policy.tokenizer, html=config.html, jsonl=config.jsonl, title=title),
        "episode_return": [trajectory.episode_return for trajectory in trajectories],
        "episode_length": [len(trajectory.turns) for trajectory in trajectories],
        "success": [trajectory.success for trajectory in trajectories],
    }


@command("play")
def main(config: DictConfig) -> None:
    """Shows episodes; the last line on stdout is one JSON object."""
    from jaxagents.play.checkpoints import play_checkpoints
    from jaxagents.reporting.frames import play, show_frames, write_gif
    from jaxagents.training.config import DevicesConfig, make_section
    from jaxagents.training.launch import prepare_backend
    from jaxagents.training.load import load_policy
    from jaxagents.training.setting_types import require_arguments

    optional, positive = ("path", "checkpoints", "greedy", "delay"), ("num_episodes", "group_size", "max_steps")
    takers = (write_gif, show_frames, play, play_checkpoints, load_policy)
    require_arguments(config, *takers, optional=optional, positive=positive)
    config.num_episodes, config.max_steps = (1, 20) if config.quick else (config.num_episodes, config.max_steps)
    prepare_backend(make_section(DevicesConfig, "devices", config.devices))
    chosen = {"stage": config.stage, "seed_index": config.seed_index, "on_fallback": partial(print, file=sys.stderr)}
    loaded = load_policy(config.path, config.which, config.step, **chosen)
    show = show_game if loaded.play is None and config.role == "none" else show_text
    greedy = loaded.config["evaluation"]["greedy"] if config.greedy is None else config.greedy
    print(json.dumps(show(config, loaded, greedy)))


if __name__ == "__main__":
    main()
