"""RoboFuME (Yang et al., 2023): a success classifier that judges practice without resets."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import optax

from jaxagents.learners.checks import check_positive
from jaxagents.learners.optimizers import apply_updates
from jaxagents.networks.heads import ValueHead
from jaxagents.networks.torsos import MLP
from jaxagents.ops.checks import require_positive
from jaxagents.types import Array, Params, Transition


def make_success_judge(
    dataset: Callable[[], Transition],
    *,
    hidden_sizes: Sequence[int] = (64, 64),
    num_updates: int = 2000,
    batch_size: int = 256,
    learning_rate: float = 3e-3,
    threshold: float = 0.5,
    seed: int = 0,
) -> Callable[[Array], Array]:
    """Trains a success classifier by maximum likelihood on `label_frames`, immediately.

    Args:
        dataset: `() -> Transition` with leaves `[T, E, ...]`, such as `make_demonstrations`.
        hidden_sizes: hidden sizes of the classifier.
        num_updates: number of updates of Adam.
        batch_size: number of observations per update.
        learning_rate: learning rate of Adam.
        threshold: probability from which an observation counts as a success, in (0, 1).
        seed: seed of parameters and batches.

    Returns:
        `(observation [..., D]) -> bool [...]`, which no longer learns.

    Raises:
        ValueError: a number is out of its range, or no demonstration succeeds.

    References:
        Yang et al. (2023), Robot fine-tuning made easy (RoboFuME), section 4.2.

    Deviation: a small network instead of a vision-language model, and all frames as they come, of which few are
        successes.
    """
    for name, count in {"num_updates": num_updates, "batch_size": batch_size}.items():
        require_positive(name, count)
    check_positive(learning_rate=learning_rate)
    if not 0.0 < threshold < 1.0:
        raise ValueError(f"`threshold` must be in (0, 1), got {threshold}; try 0.5.")
    encoder, head, optimizer = MLP(hidden_sizes=hidden_sizes, activation="relu"), ValueHead(), optax.adam(learning_rate)
    observation, success = jax.jit(lambda: label_frames(dataset()))()
    if not success.any():
        raise ValueError("`dataset` must have episodes that succeed, got none; try more steps, or less noise.")

    def apply(params: Params, observation: Array) -> Array:
        return head.apply(params["head"], encoder.apply(params["encoder"], observation))

    def loss(params: Params, rows: Array) -> Array:
        return jnp.mean(optax.sigmoid_binary_cross_entropy(apply(params, observation[rows]), success[rows]))

    def step(carry: tuple[Params, optax.OptState], key: Array) -> tuple[tuple[Params, optax.OptState], None]:
        grads = jax.grad(loss)(carry[0], jax.random.randint(key, (batch_size,), 0, success.shape[0]))
        return apply_updates(grads, *carry, optimizer)[:2], None

    @jax.jit
    def fit(key: Array) -> Params:
        encoder_key, head_key, batch_key = jax.random.split(key, 3)
        features, of_encoder = encoder.init_with_output(encoder_key, observation[:1])
        params = {"encoder": of_encoder, "head": head.init(head_key, features)}
        (params, _), _ = jax.lax.scan(step, (params, optimizer.init(params)), jax.random.split(batch_key, num_updates))
        return params

    params = fit(jax.random.key(seed))
    least = jnp.log(threshold / (1.0 - threshold))
    return lambda observation: apply(params, observation) > least


def label_frames(transition: Transition) -> tuple[Array, Array]:
    """Labels the observation after every step: the last frame of a successful episode, or another one.

    Args:
        transition: leaves `[T, E, ...]`; episodes terminate with success.

    Returns:
        Observations float32 `[T E, D]`, and float32 `[T E]`, 1.0 for success.
    """
    seen = transition.next_observation.astype(jnp.float32)
    return seen.reshape(transition.terminated.size, -1), transition.terminated.reshape(-1).astype(jnp.float32)
