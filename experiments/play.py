"""Shows a trained agent at play: `python experiments/play.py path=runs/ppo_cartpole/... episodes=3`."""

import json
import sys
from functools import partial

import hydra
from omegaconf import DictConfig

from jaxagents.training.config import DevicesConfig, make_section
from jaxagents.training.frames import play, show_frames, write_gif
from jaxagents.training.launch import prepare_backend
from jaxagents.training.load import load_policy


@hydra.main(version_base="1.3", config_path="../configs", config_name="play")
def main(config: DictConfig) -> None:
    """Shows text frames and writes an animation; the last line on stdout is one JSON object."""
    prepare_backend(make_section(DevicesConfig, "devices", config.devices))
    loaded = load_policy(
        config.path,
        config.which,
        config.step,
        seed_index=config.seed_index,
        on_fallback=partial(print, file=sys.stderr),
    )
    episodes = play(
        loaded.environment,
        loaded.policy,
        loaded.params,
        seed=config.seed,
        num_episodes=config.episodes,
        greedy=not config.sampled,
        max_steps=20 if config.quick else config.max_steps,
        level=config.level,
    )
    frames = [frame for episode in episodes for frame in episode.frames]
    gif = config.gif and str(write_gif(config.gif, frames, fps=config.fps))
    show_frames(frames, delay=1 / config.fps if config.delay is None else config.delay)
    returns = [episode.episode_return for episode in episodes]
    lengths = [episode.episode_length for episode in episodes]
    print(json.dumps({"gif": gif, "episode_return": returns, "episode_length": lengths}))


if __name__ == "__main__":
    main()
