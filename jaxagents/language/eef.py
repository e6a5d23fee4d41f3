"""EEF (Lan et al., 2025): episodes that continue from states of an expert's failed episodes."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jaxagents.language.collect import count_experience, dialogue_metrics
from jaxagents.language.demonstrations import make_demonstrations
from jaxagents.language.dialogue import make_dialogue
from jaxagents.language.generate import Sampling
from jaxagents.language.relabeling import recorded_words
from jaxagents.language.tasks import make_task_collector, make_uniform, start_tasks
from jaxagents.ops.checks import require_positive
from jaxagents.types import Array, Collector, Environment, Episode, LanguagePolicy, Mean, Metrics, Params, PyTree


def make_restart_collector(
    environment: Environment,
    policy: LanguagePolicy,
    *,
    num_groups: int,
    group_size: int,
    noise: float,
    num_attempts: int = 2,
    imitate_prefix: bool = False,
    temperature: float | None = None,
    level: int | Sequence[int] | None = None,
) -> Collector:
    """Makes a collector in which the policy continues from several states of a noisy expert's failed episode.

    The expert's episode of L turns is replayed up to turn `k l`, `l = ceil(L / M)`, for k = 0, ..., M - 1, and the
    policy continues. Its tokens count as sampled, and so do the expert's actions in the segment before a restart, turns
    `(k - 1) l` to `k l - 1`; earlier ones are only read. `ops.imitation.turning_points` chooses among such rows.

    Args:
        environment: unbatched text world of one player, without chance after the start.
        policy: policy that acts.
        num_groups: n, number of tasks per batch, over all devices.
        group_size: M, number of episodes per task, including the one from the beginning.
        noise: noise of the expert, see `make_demonstrations`.
        num_attempts: number of expert episodes per group, each on its own task; the policy continues the first failed
            one, or the first one if none failed.
        imitate_prefix: whether all of the expert's actions before a restart count as sampled.
        temperature: divisor of the logits; None: 1.
        level: level of the tasks; a list is cycled through.

    Returns:
        The collector. Its batches are `Episode`s of `n * M` rows, with the restarts of a task next to each other, in
        order; those beyond the end of the expert's episode are not kept. Metrics are those of the policy's episodes,
        `success_rate` of those from the beginning, `restart_success_rate` of all.

    Raises:
        ValueError: a count is not positive, or see `make_demonstrations`.

    References:
        Lan et al. (2025), "Exploring Expert Failures Improves LLM Agent Tuning" (EEF), section 3.

    Deviation: every batch has new tasks; the paper iterates over a fixed set and drops solved tasks.
    """
    counts = {"num_groups": num_groups, "group_size": group_size, "num_attempts": num_attempts}
    for name, count in counts.items():
        require_positive(name, count)
    demonstrate = make_demonstrations(environment, policy, noise=noise)
    play = make_dialogue(environment, policy, sampling=Sampling(temperature=temperature))
    source = make_uniform(level=level, num_levels=environment.text.num_levels)

    def collect(state: PyTree, params: Params, key: Array) -> tuple[PyTree, Episode, Metrics]:
        task_key, expert_key, play_key = jax.random.split(key, 3)
        group = state["group"]
        index = (group[:, None] * num_attempts + jnp.arange(num_attempts)[None]).reshape(-1)
        chosen = source.choose(state["source"], task_key, index)
        demonstration = demonstrate(expert_key, index, chosen)
        failed = jnp.argmin(demonstration.success.reshape(-1, num_attempts), axis=1)
        row = jnp.arange(group.shape[0]) * num_attempts + failed
        demonstration, chosen = jax.tree.map(lambda leaf: leaf[row], (demonstration, chosen))
        task, start, _ = start_tasks(environment, chosen)
        words = recorded_words(policy, demonstration)[0][..., : environment.action_space.shape[0]]
        length = jnp.sum(demonstration.valid, axis=1)
        segment = -(-length // group_size)
        before = segment[:, None] * jnp.arange(group_size)[None]  # Number of the expert's turns, [n, M].
        turn = jnp.arange(words.shape[1])[None, None]
        script = jnp.where((turn < before[..., None])[..., None], words[:, None], -1)
        of_row = jnp.arange(before.size) // group_size
        each = jax.tree.map(lambda leaf: leaf[of_row], (task, start))
        number = (group[:, None] * group_size + jnp.arange(group_size)[None]).reshape(-1)
        rows = play(params, play_key, number, task=each[0], start=each[1], script=script.reshape(-1, *words.shape[1:]))
        first = jnp.zeros_like(before) if imitate_prefix else before - segment[:, None]
        shows = (turn >= first[..., None]) & (turn < before[..., None])
        rows = _with_shown(rows, shows.reshape(-1, words.shape[1]), policy.layout.observation).replace(
            group=group[of_row], keep=(before < length[:, None]).reshape(-1)
        )
        return state, rows, _metrics(rows, group_size)

    return make_task_collector(
        collect, source, num_groups, "num_groups", steps=num_groups * group_size, temperature=temperature
    )


def _with_shown(episode: Episode, turns: Array, observation: int) -> Episode:
    """Marks the tokens after the observation, in turns bool `[B, T]`, as sampled."""
    is_action = jnp.arange(episode.tokens.shape[2])[None, None] >= observation
    return episode.replace(action_mask=episode.action_mask | (turns[..., None] & is_action & episode.token_mask))


def _metrics(episode: Episode, group_size: int) -> Metrics:
    kept, success = (leaf.reshape(-1, group_size) for leaf in (episode.keep, episode.success))
    both = {"success_rate": (success[:, 0], kept[:, 0]), "restart_success_rate": (success, kept)}
    rates = {
        name: Mean(total=jnp.sum(won & of, dtype=jnp.float32), count=jnp.sum(of, dtype=jnp.float32))
        for name, (won, of) in both.items()
    }
    return dialogue_metrics(episode) | rates | count_experience(episode)
