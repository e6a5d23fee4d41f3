"""Speed of the parts of an update of a language agent."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from hydra.utils import instantiate
from omegaconf import DictConfig

from jaxagents.benchmarks.timing import Subject, compiled_subject
from jaxagents.training.build import build, resolve
from jaxagents.training.program import make_program, run_updates
from jaxagents.types import Array, LanguageModel, Params, PyTree


def agent_subjects(config: DictConfig, *, num_updates: int) -> list[Subject]:
    """Times the last stage of an experiment of two stages, after the first; unit: episodes.

    Args:
        config: composed config, whose last stage changes nothing but its name.
        num_updates: number of updates of the last stage in one program.

    Returns:
        `update`, whole updates; `collect`, the episodes alone; `world`, the same with a model that costs nothing and
        generates random tokens, so that environment, rendering, parsing and sampling remain; and `learn`, the learner
        alone.
    """
    settings = resolve(config)
    first = build(settings).stages[0]
    state, _ = first.runner.run(first.runner.init(settings["seed"]), first.num_updates)
    params = first.runner.params(state)
    environment = instantiate(settings["environment"])
    agent = instantiate(settings["learner"])(environment, axis_name=None)
    collector = instantiate(settings["collector"])(environment, agent.policy)
    mute = agent.policy._replace(model=_stand_in(agent.policy.model))
    world = instantiate(settings["collector"])(environment, mute)
    learner = agent.make_learner(collector, num_updates)
    program = make_program(collector, learner)
    state = jax.jit(program.init)(jax.random.key(settings["seed"]), params)
    name, episodes = settings["name"], collector.steps_per_collect
    collected = (state.collector, params, state.key)
    subjects = [
        compiled_subject(
            f"{name}/update",
            lambda s: run_updates(program, s, jnp.int32(num_updates)),
            state,
            work=num_updates * episodes,
        ),
        compiled_subject(f"{name}/collect", collector.collect, *collected, work=episodes),
        compiled_subject(f"{name}/world", world.collect, *collected, work=episodes),
    ]
    episode = jax.jit(collector.collect)(*collected)[1]  # Already compiled above.
    learned = (state.learner, state.key, episode)
    return [*subjects, compiled_subject(f"{name}/learn", learner.update, *learned, work=episodes)]


def agent_shares(name: str, rows: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Computes the shares of an update's time from the rows of `agent_subjects`; they sum to one."""
    seconds = {part: 1.0 / rows[f"{name}/{part}"]["per_second"] for part in ("collect", "world", "learn")}
    total = seconds["collect"] + seconds["learn"]
    return {
        f"{name}/share_of_model": (seconds["collect"] - seconds["world"]) / total,
        f"{name}/share_of_world": seconds["world"] / total,
        f"{name}/share_of_learner": seconds["learn"] / total,
    }


def _stand_in(model: LanguageModel) -> LanguageModel:
    """Returns a model without parameters that assigns all tokens equal probability."""

    def extend(params: Params, cache: PyTree, tokens: Array, **context: Array) -> tuple[PyTree, Array]:
        del params, context
        return cache, tokens[..., None].astype(jnp.float32)

    return model._replace(
        init_cache=lambda batch_size, length: jnp.zeros((batch_size, 1)),
        extend=extend,
        logits=lambda params, hidden: jnp.broadcast_to(hidden, (*hidden.shape[:-1], model.vocab_size)),
    )
