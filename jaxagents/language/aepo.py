"""AEPO (Wang et al., 2025): steers the entropy of a language policy with samples at other temperatures."""

import jax
import jax.numpy as jnp

from jaxagents.language.collect import count_experience, dialogue_metrics
from jaxagents.language.dialogue import make_dialogue
from jaxagents.ops.checks import check_counts
from jaxagents.ops.episodes import group_success
from jaxagents.ops.rows import first_row, rows_of_all_devices, where_rows
from jaxagents.types import Array, Collector, Environment, Episode, LanguagePolicy, Mean, Metrics, Params, PyTree

UNKNOWN = -1.0


def make_entropy_control_collector(
    environment: Environment,
    policy: LanguagePolicy,
    *,
    num_groups: int,
    group_size: int,
    target_entropy: float,
    max_control: int,
    control_share: float = 0.25,
    high_temperature: float = 1.2,
    low_temperature: float = 0.8,
    num_rows: int | None = None,
    level: int | None = None,
    axis_name: str | None = None,
) -> Collector:
    """Makes a collector that replaces some episodes by successful ones sampled at a higher or lower temperature.

    Further groups are played at the high temperature if the entropy of the last batch was below the target, else at the
    low one. Control samples are successful episodes from those groups in which some failed. Up to `max_control` of
    them, or half as many if the entropy is not below the target, replace the last episodes of the batch, and are marked
    in `control`. `ops.credit_shaping.controlled`, a slot of `learner.credits`, determines their advantage.

    Args:
        environment: unbatched text world.
        policy: policy that acts.
        num_groups: number of tasks per batch, over all devices.
        group_size: number of episodes per task.
        target_entropy: target of the entropy, in nats per token (paper: 0.25 to 1).
        max_control: m, largest number of control samples per batch, over all devices (paper: 60 of 2560).
        control_share: number of groups played at another temperature, relative to `num_groups` (paper: a quarter).
        high_temperature: temperature that raises the entropy (paper: 1.2).
        low_temperature: temperature that lowers the entropy (paper: 0.8).
        num_rows: number of episodes that are played at once, over all devices; None: all of them.
        level: level of the tasks.
        axis_name: mapped device axis over which the entropy is computed and control samples are chosen.

    Returns:
        The collector; its steps are all episodes that are played. Its metrics are those of the batch before the
        replacement, `sampled_entropy` (mean of `-log p` of its tokens), `entropy_error` (distance from the target),
        `temperature` and `control_fraction`.

    Raises:
        ValueError: a setting is out of range, or see `make_dialogue`.

    References:
        Wang et al. (2025), "Arbitrary Entropy Policy Optimization: Entropy Is Controllable in Reinforcement
        Fine-tuning", section 4 and the released code.

    Deviation: control samples are of additional tasks; the released code samples a quarter of the batch's tasks again.
    """
    _check(num_groups, group_size, target_entropy, max_control, control_share, high_temperature, low_temperature)
    play = make_dialogue(environment, policy, group_size=group_size, level=level, bootstrap=True)
    num_further = max(1, round(control_share * num_groups))
    steps = (num_groups + num_further) * group_size

    def init(key: Array, params: Params) -> PyTree:
        del key, params
        group = jnp.arange(num_groups, dtype=jnp.int32)
        return {"group": group, "entropy": jnp.full(num_groups, UNKNOWN)}

    def collect(state: PyTree, params: Params, key: Array) -> tuple[PyTree, Episode, Metrics]:
        group, last = state["group"], state["entropy"][0]
        local = group.shape[0]
        rows = None if num_rows is None else max(1, num_rows * local // num_groups)
        episode = play(params, key, group, rows)
        below = last < target_entropy
        temperature = jnp.where(below, high_temperature, low_temperature).astype(jnp.float32)
        # Devices have equal numbers of further groups; any surplus of the last devices is unused.
        share = -(-num_further * local // num_groups)
        further = first_row(share, axis_name) + jnp.arange(share, dtype=jnp.int32)
        control = play(params, key, num_groups + further, rows, temperature=temperature)
        limit = jnp.where(last == UNKNOWN, 0, jnp.where(below, max_control, max_control // 2))
        wanted = jnp.repeat(further < num_further, group_size)
        mixed, replaced = mix_in(episode, control, limit, wanted, axis_name=axis_name)
        entropy = sampled_entropy(episode)
        whole = entropy if axis_name is None else jax.lax.psum(entropy, axis_name)
        metrics = {
            "sampled_entropy": entropy,
            "entropy_error": jnp.abs(whole.value - target_entropy),
            "temperature": temperature,
            "control_fraction": jnp.mean(replaced),
        }
        rounds = (local + share) * num_groups * group_size / (local * steps)
        if rounds != 1.0:  # Unused episodes count, too.
            metrics["rounds"] = jnp.float32(rounds)
        state = state | {"entropy": jnp.full(local, whole.value)}
        return state, mixed, dialogue_metrics(episode) | metrics | count_experience(episode, control)

    return Collector(init=init, collect=collect, steps_per_collect=steps, divided_option="num_groups")


def sampled_entropy(episode: Episode) -> Mean:
    """Computes the mean of `-log p` over sampled tokens, an unbiased estimate of the entropy at temperature 1."""
    total = -jnp.sum(jnp.where(episode.action_mask, episode.behavior_log_prob, 0.0))
    return Mean(total=total, count=jnp.sum(episode.action_mask, dtype=jnp.float32))


def mix_in(
    episode: Episode, control: Episode, limit: Array, wanted: Array | None = None, *, axis_name: str | None = None
) -> tuple[Episode, Array]:
    """Replaces the last episodes of a batch by successful episodes from groups with mixed outcomes.

    Args:
        episode: B episodes of this device.
        control: C episodes of this device, of other groups; over all devices at most as many as can be replaced.
        limit: int32 `[]`, largest number of replaced episodes, over all devices.
        wanted: bool `[C]`, control episodes that may be used; None: all.
        axis_name: mapped device axis over which the batch is spread.

    Returns:
        The episodes with `control`, and which were replaced, both bool `[B]`.
    """
    num_episodes = episode.success.shape[0]
    useful = control.success & (group_success(control) < 1.0)
    useful = useful if wanted is None else useful & wanted
    useful, offered = rows_of_all_devices((useful, control), axis_name)
    first_useful = jnp.argsort(~useful, stable=True)
    num_all = num_episodes * (1 if axis_name is None else jax.lax.axis_size(axis_name))
    rank = num_all - 1 - first_row(num_episodes, axis_name) - jnp.arange(num_episodes)
    replaced = rank < jnp.minimum(limit, jnp.sum(useful))
    source = first_useful[jnp.minimum(rank, useful.shape[0] - 1)]

    mixed = jax.tree.map(lambda old, new: where_rows(replaced, new[source], old), episode, offered)
    return mixed.replace(control=replaced), replaced


def _check(
    num_groups: int,
    group_size: int,
    target_entropy: float,
    max_control: int,
    control_share: float,
    high_temperature: float,
    low_temperature: float,
) -> None:
    check_counts(num_groups=num_groups, group_size=group_size, max_control=max_control)
    if target_entropy < 0.0:
        raise ValueError(f"`target_entropy` must not be negative, got {target_entropy}; try 0.5.")
    if not 0.0 < control_share <= 1.0:
        raise ValueError(f"`control_share` must be in (0, 1], got {control_share}; try 0.25.")
    if not 0.0 < low_temperature <= high_temperature:
        raise ValueError(
            "`low_temperature` must be positive and at most `high_temperature`, "
            f"got {low_temperature} and {high_temperature}; try 0.8 and 1.2."
        )
