"""The sampling temperature at which a policy has a target entropy, before reinforcement learning starts."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxagents.language.collect import make_dialogue_collector
from jaxagents.language.dialogue import make_dialogue
from jaxagents.ops.checks import require_positive
from jaxagents.policies.contexts import score_tokens, to_rows, unfold
from jaxagents.policies.temperatures import at_temperature
from jaxagents.types import Array, Collector, Environment, Episode, LanguagePolicy, Mean, Metrics, Params, PyTree


def make_entropy_scan(
    environment: Environment, policy: LanguagePolicy, *, num_episodes: int, level: int | Sequence[int] | None = None
) -> Callable[[Params, Array, Array], Array]:
    """Makes the function that measures the entropy of a policy at several temperatures.

    `H_T = mean over sampled tokens of -sum_v p_T(v) log p_T(v)`, with `p_T = softmax(logits / T)`, from which the
    tokens are also drawn.

    Args:
        environment: unbatched text world.
        policy: policy that acts.
        num_episodes: number of training tasks, the same at all temperatures, each played once at every temperature.
        level: level of the tasks; a list is cycled through.

    Returns:
        `(params, key, temperatures [K]) -> entropies [K]`, in nats per token.

    Raises:
        ValueError: the count is not positive, or see `make_dialogue`.

    References:
        Liu et al. (2025), "AceReason-Nemotron 1.1: Advancing Math and Code Reasoning through SFT and RL Synergy"
        (temperature-adjusted entropy).
    """
    require_positive("num_episodes", num_episodes)
    index = jnp.arange(num_episodes, dtype=jnp.int32)

    def measure(params: Params, key: Array, temperature: Array) -> Array:
        tempered = at_temperature(policy, temperature)
        episode = make_dialogue(environment, tempered, level=level)(params, key, index)
        return mean_entropy(tempered, params, episode)

    def scan(params: Params, key: Array, temperatures: Array) -> Array:
        return jax.lax.map(partial(measure, params, key), temperatures)

    return scan


def mean_entropy(policy: LanguagePolicy, params: Params, episode: Episode) -> Array:
    """Computes the mean entropy at sampled tokens, in nats per token.

    Args:
        policy: policy that scores.
        params: parameters of the policy.
        episode: B episodes.

    Returns:
        float32 `[]`.
    """
    scored = score_tokens(policy.model, params, to_rows(episode), episode.layout, fields=("entropy",))
    entropy = unfold(episode.layout, scored).entropy
    return jnp.sum(entropy, where=episode.action_mask) / jnp.sum(episode.action_mask, dtype=jnp.float32)


def choose_temperature(
    entropies: np.ndarray, temperatures: Sequence[float], *, target: float, tolerance: float
) -> np.float32:
    """Selects the temperature whose entropy is nearest to a target.

    Args:
        entropies: `[K]`, measured at each temperature.
        temperatures: K temperatures.
        target: target of the entropy, in nats per token.
        tolerance: largest distance from the target that is accepted, in nats per token.

    Returns:
        One of the temperatures.

    Raises:
        ValueError: none of the entropies is that close.
    """
    distance = np.abs(np.asarray(entropies, np.float64) - target)
    nearest = int(np.argmin(distance))
    if not distance[nearest] <= tolerance:
        measured = ", ".join(f"{h:.3g} at {t:g}" for t, h in zip(temperatures, entropies, strict=True))
        raise ValueError(
            f"`target` must be within {tolerance:g} of the entropy at one of the temperatures, got {target:g} and "
            f"{measured} (nats per token); try further `temperatures`, or one of these entropies."
        )
    return np.float32(temperatures[nearest])


def make_tempered_collector(
    environment: Environment,
    policy: LanguagePolicy,
    *,
    temperature: float | None = None,
    temperatures: Sequence[float] = (0.4, 0.6, 0.8, 1.0, 1.2, 1.4),
    target: float = 0.3,
    tolerance: float = 0.1,
    num_episodes: int = 256,
    axis_name: str | None = None,
    **options: Any,
) -> Collector:
    """Makes a collector of dialogues at a temperature that is selected for the policy from which the stage starts.

    The temperature is an array in the state, so that runs at different temperatures are one compiled program, and it is
    stored in the episodes, as `extras["temperature"]` `[B]`: `learners.tempered` scores the policy at the same one.
    Their `behavior_log_prob` and `sampling_log_prob` are both those of the tempered policy.

    Args:
        environment: unbatched text world.
        policy: policy that acts.
        temperature: fixed temperature; None: selects one of `temperatures` by `choose_temperature`.
        temperatures: positive temperatures that are measured, see `make_entropy_scan`.
        target: target of the entropy, in nats per token. Paper: 0.3.
        tolerance: see `choose_temperature`.
        num_episodes: number of episodes of the measurement at every temperature; they do not count as experience.
        axis_name: see `make_dialogue_collector`.
        **options: further arguments of `make_dialogue_collector`.

    Returns:
        The collector. A metric reports the `temperature`.

    Raises:
        ValueError: temperatures are not positive, there is a partner, or see `make_dialogue_collector`; at the start of
            a stage, see `choose_temperature`.

    References:
        Liu et al. (2025), "AceReason-Nemotron 1.1: Advancing Math and Code Reasoning through SFT and RL Synergy".
    """
    given = tuple(temperatures) if temperature is None else (temperature,)
    if not given or min(given) <= 0.0:
        name = "temperatures" if temperature is None else "temperature"
        raise ValueError(f"`{name}` must be positive, got {given}; try 0.6 to 1.4.")
    if options.get("partner"):
        raise ValueError("`partner` must be false for one temperature, got true; try collector=dialogue.")
    level = options.get("level")
    scan = make_entropy_scan(environment, policy, num_episodes=num_episodes, level=level)
    choose = partial(choose_temperature, temperatures=given, target=target, tolerance=tolerance)

    def at(temperature: Array | float) -> Collector:
        return make_dialogue_collector(environment, at_temperature(policy, temperature), axis_name=axis_name, **options)

    plain = at(1.0)

    def init(key: Array, params: Params) -> PyTree:
        inner_key, scan_key = jax.random.split(key)
        inner = plain.init(inner_key, params)
        if temperature is None:
            entropies = scan(params, scan_key, jnp.asarray(given, jnp.float32))
            # Only the host can refuse a measurement; it is called once, before the first update.
            shape = jax.ShapeDtypeStruct((), jnp.float32)
            chosen = jax.pure_callback(choose, shape, entropies, vmap_method="sequential")
        else:
            chosen = jnp.float32(temperature)
        return {"inner": inner, "temperature": jnp.broadcast_to(chosen, inner["group"].shape)}

    def collect(state: PyTree, params: Params, key: Array) -> tuple[PyTree, Episode, Metrics]:
        chosen = state["temperature"]
        inner, episode, metrics = at(chosen[0]).collect(state["inner"], params, key)
        episode = episode.replace(extras={"temperature": jnp.full(episode.success.shape, chosen[0])})
        own_metrics = {"temperature": Mean(total=jnp.sum(chosen), count=jnp.float32(chosen.shape[0]))}
        return state | {"inner": inner}, episode, {**metrics, **own_metrics}

    # The selected temperature is known only when a stage starts.
    tempering = {"temperature": float("nan") if temperature is None else temperature}
    return plain._replace(init=init, collect=collect, tempering=tempering)
