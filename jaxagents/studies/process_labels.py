"""Selecting the best of several episodes by outcomes, steps, or both, judged by probes of a policy's own states."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxagents.ops.probes import Probe, fit_probe
from jaxagents.ops.process import first_error, propagate_errors, ternary_labels
from jaxagents.policies.contexts import hidden_after_turns
from jaxagents.studies.distances import make_measured
from jaxagents.types import Array, Environment, Episode, LanguagePolicy, Params, Task


class Judged(NamedTuple):
    """Episodes of n tasks with G each: features `[n G, T, D]`, labels and valid `[n G, T]`, success `[n G]`."""

    features: Array
    label: Array
    valid: Array
    success: Array


def run(
    seed: int,
    *,
    environment: Environment,
    policy: LanguagePolicy,
    params: Params,
    num_tasks: int = 256,
    group_size: int = 8,
    step_weight: float = 1.0,
) -> dict[str, float]:
    """Trains reward models of outcomes and of steps, with which it selects among episodes of held-out tasks.

    The outcome model is the probability of success; the step model is `p(1) - p(-1)` for ternary labels, averaged over
    the steps of an episode; both are linear in the policy's hidden state after a turn. The episode with the largest
    score is selected.

    Args:
        seed: seed of the tasks and of sampling.
        environment: deterministic text world with one seat, whose `text.distance` is known.
        policy: policy that acts and is probed.
        params: parameters of the policy.
        num_tasks: number of training tasks, whose episodes are labelled, and of held-out tasks.
        group_size: number of episodes of each task.
        step_weight: weight of the step model relative to the outcome model.

    Returns:
        Success of the first episode (`success_one`), of the selections by outcomes (`success_outcome`), steps
        (`success_steps`), both (`success_both`) and outcomes with binary steps (`success_both_binary`), and the share
        of tasks with any success (`success_any`); `step_accuracy` and `first_error_accuracy` of the step model, the
        accuracy of always predicting the most frequent label (`step_accuracy_constant`), and the share of steps with
        each label.

    Raises:
        ValueError: the distance is not known.

    References:
        Fan et al. (2026), "AgentProcessBench: Diagnosing Step-Level Process Quality in Tool-Using Agents".
    """
    judged = jax.jit(make_judged(environment, policy, group_size))
    interface: Any = environment.text
    samplers = (environment.sample_task, interface.sample_held_out_task)
    task_keys = jax.random.split(jax.random.key(seed), (2, num_tasks + 1))
    labelled, held_out = (
        judged(params, keys[0], jax.vmap(sample)(keys[1:])) for keys, sample in zip(task_keys, samplers, strict=True)
    )
    compared = jax.jit(compare, static_argnames="group_size")(labelled, held_out, step_weight, group_size=group_size)
    return {name: float(value) for name, value in compared.items()}


def make_judged(
    environment: Environment, policy: LanguagePolicy, group_size: int
) -> Callable[[Params, Array, Task], Judged]:
    """Makes `(params, key, tasks) -> Judged`: episodes, replayed to find the distance of every step from the goal."""
    measure = make_measured(environment, policy, group_size)

    def judged(params: Params, key: Array, task: Task) -> Judged:
        episode, actions, distance = measure(params, task, *jax.random.split(key, 3))
        before, after = distance[:, :-1], distance[:, 1:]
        same = (episode.fingerprint[:, :, None] == episode.fingerprint[:, None, :]) & jnp.all(
            actions[:, :, None] == actions[:, None, :], axis=-1
        )
        repeated = jnp.any(same & jnp.tril(jnp.ones(same.shape[1:], bool), -1)[None], axis=2)
        label = ternary_labels(before, after, episode.action_valid, repeated)
        label = propagate_errors(label, before, after)
        return Judged(_features(policy, params, episode, group_size), label, episode.valid, episode.success)

    return judged


def compare(labelled: Judged, held_out: Judged, step_weight: Array | float, *, group_size: int) -> dict[str, Array]:
    """Fits the reward models to labelled episodes, and computes what they select of held-out ones; see `run`."""
    outcome = fit_probe(
        _last(labelled), labelled.success.astype(jnp.int32), jnp.ones_like(labelled.success), num_classes=2
    )
    ternary, binary = _of_steps(labelled, labelled.label + 1, 3), _of_steps(labelled, labelled.label > 0, 2)
    of_outcome = jnp.exp(outcome.log_prob(_last(held_out))[:, 1])
    steps = jnp.exp(ternary.log_prob(held_out.features))
    of_steps = _mean(steps[..., 2] - steps[..., 0], held_out.valid)
    of_binary = _mean(2.0 * jnp.exp(binary.log_prob(held_out.features))[..., 1] - 1.0, held_out.valid)
    success = held_out.success.reshape(-1, group_size).astype(jnp.float32)

    def chosen(score: Array) -> Array:
        best = jnp.argmax(score.reshape(-1, group_size), axis=1)
        return jnp.mean(jnp.take_along_axis(success, best[:, None], axis=1))

    guess, valid = jnp.argmax(steps, axis=-1) - 1, held_out.valid
    found = first_error(guess, valid) == first_error(held_out.label, valid)
    shares = {
        f"share_{name}": jnp.mean(held_out.label == label, where=valid)
        for name, label in (("good", 1), ("neutral", 0), ("bad", -1))
    }
    return shares | {
        "success_one": jnp.mean(success[:, 0]),
        "success_any": jnp.mean(jnp.max(success, axis=1)),
        "success_outcome": chosen(of_outcome),
        "success_steps": chosen(of_steps),
        "success_both": chosen(of_outcome + step_weight * of_steps),
        "success_both_binary": chosen(of_outcome + step_weight * of_binary),
        "step_accuracy": jnp.mean(guess == held_out.label, where=valid),
        "step_accuracy_constant": jnp.max(jnp.stack(list(shares.values()))),
        "first_error_accuracy": jnp.mean(found),
    }


def _features(policy: LanguagePolicy, params: Params, episode: Episode, group_size: int) -> Array:
    """Reads the episodes one task at a time, which takes less memory than all at once."""
    groups = jax.tree.map(lambda leaf: leaf.reshape(leaf.shape[0] // group_size, group_size, *leaf.shape[1:]), episode)
    features = jax.lax.map(lambda group: hidden_after_turns(policy.model, params, group), groups)
    return features.reshape(-1, *features.shape[2:])


def _of_steps(judged: Judged, label: Array, num_classes: int) -> Probe:
    features = judged.features.reshape(-1, judged.features.shape[-1])
    return fit_probe(features, label.reshape(-1).astype(jnp.int32), judged.valid.reshape(-1), num_classes=num_classes)


def _last(judged: Judged) -> Array:
    last = jnp.maximum(jnp.sum(judged.valid, axis=1) - 1, 0)
    return jnp.take_along_axis(judged.features, last[:, None, None], axis=1)[:, 0]


def _mean(score: Array, valid: Array) -> Array:
    return jnp.sum(jnp.where(valid, score, 0.0), axis=1) / jnp.maximum(jnp.sum(valid, axis=1), 1)
