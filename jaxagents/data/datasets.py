"""Fixed data sets of experience in array worlds: files of arrays, and collectors that take no environment steps."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxagents.data.buffers import Buffer, make_uniform_buffer
from jaxagents.ops.distributions import is_bounded, squash, unsquash
from jaxagents.ops.returns import discounted_returns
from jaxagents.types import (
    Array,
    Box,
    Collector,
    Discrete,
    Environment,
    Metrics,
    Params,
    Policy,
    PyTree,
    Sample,
    State,
    Transition,
)

Dataset = Callable[[], Transition]
"""`() -> Transition` with leaves `[T, E, ...]`: E rows of T consecutive steps; it can be traced."""
FIELDS = ("observation", "action", "reward", "terminated", "truncated", "next_observation", "first")
"""Required fields of a data set file, `[T, E, ...]` each; `behavior_log_prob` and `action_mask` are optional."""
RETURN = "return_to_go"


def make_dataset_collector(
    environment: Environment,
    policy: Policy,
    *,
    dataset: Dataset,
    batch_size: int,
    sequence_length: int = 1,
    num_shards: int = 1,
    discount: float = 0.99,
) -> Collector:
    """Makes a collector of random sequences of a fixed data set, without environment steps.

    Args:
        environment: environment that defines the spaces.
        policy: not used to act.
        dataset: see `Dataset`.
        batch_size: number of sequences per batch, over all devices.
        sequence_length: n, number of steps per sequence.
        num_shards: number of equal shards: a multiple of the number of devices that divides the rows and the batch.
        discount: discount of the returns in `transition.extras["return_to_go"]`, which are the discounted rewards up to
            the end of the episode, or of the row if that is earlier.

    Returns:
        The collector; its batches are `Sample`s, for learners without a buffer (`buffer: null`). Its state holds the
        data, split over the devices.

    Raises:
        ValueError: the data do not match the environment's spaces, or a size is incompatible with another one.
    """
    del policy
    shapes = jax.eval_shape(dataset)
    require_spaces(shapes, environment)
    num_steps, num_rows = shapes.reward.shape
    capacity = num_steps * num_rows
    buffer = make_uniform_buffer(
        capacity=capacity, batch_size=batch_size, sequence_length=sequence_length, num_shards=num_shards
    )

    def init(key: Array, params: Params) -> State:
        del key, params
        transition = with_returns(dataset(), discount)
        example = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[2:], leaf.dtype), transition)
        return buffer.add(buffer.init(example, num_rows), transition)

    def collect(state: State, params: Params, key: Array) -> tuple[State, Sample, Metrics]:
        del params
        transition, weight, _ = buffer.sample(state, key)
        return state, Sample(transition=transition, weight=weight), {}

    jax.eval_shape(init, jax.random.key(0), None)  # Refuses sizes before anything is compiled.
    return Collector(init=init, collect=collect, steps_per_collect=batch_size, divided_option="num_shards")


def make_prior_buffer(
    *,
    dataset: Dataset,
    capacity: int,
    batch_size: int,
    prior_share: float = 0.5,
    sequence_length: int = 1,
    min_size: int = 1,
    num_shards: int = 1,
) -> Buffer:
    """Makes a replay buffer that takes a fraction of its samples from a fixed data set.

    Args:
        dataset: see `Dataset`; it must have the same arrays as rollouts.
        capacity: number of transitions to keep of what is played, see `make_uniform_buffer`.
        batch_size: number of sequences per sample, in total.
        prior_share: fraction of the samples that come from the data set, in (0, 1).
        sequence_length: see `make_uniform_buffer`.
        min_size: see `make_uniform_buffer`.
        num_shards: see `make_uniform_buffer`.

    Returns:
        The buffer; its state is a pair. In samples, those of the data set follow the others, shard by shard, so that a
        row has the same index among all of them for any number of devices.

    Raises:
        ValueError: the share leaves no samples for one of the two, or a size is incompatible with another one.

    References:
        Ball et al. (2023), Efficient online reinforcement learning with offline data, section 4.1.
    """
    num_prior = round(prior_share * batch_size)
    if not 0 < num_prior < batch_size:
        raise ValueError(
            f"`prior_share` must leave samples for both, got {prior_share} of {batch_size}; try 0.5, or another buffer."
        )
    sizes = {"sequence_length": sequence_length, "num_shards": num_shards}
    shape = jax.eval_shape(dataset).reward.shape
    played = make_uniform_buffer(capacity=capacity, batch_size=batch_size - num_prior, min_size=min_size, **sizes)
    prior = make_uniform_buffer(capacity=shape[0] * shape[1], batch_size=num_prior, **sizes)

    def init(transition: PyTree, num_envs: int) -> State:
        given = dataset().replace(previous_action=None, previous_reward=None)
        example = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[2:], leaf.dtype), given)
        _require_alike(example, transition)
        return played.init(transition, num_envs), prior.add(prior.init(transition, shape[1]), given)

    def add(state: State, transition: Transition) -> State:
        return played.add(state[0], transition), state[1]

    def sample(state: State, key: Array) -> tuple[Transition, Array, PyTree]:
        keys = jax.random.split(key)
        (new, new_weight, _), (old, old_weight, _) = played.sample(state[0], keys[0]), prior.sample(state[1], keys[1])
        shards = state[1].shard.size
        transition = jax.tree.map(partial(_join_shards, shards=shards, axis=1), new, old)
        return transition, _join_shards(new_weight, old_weight, shards=shards, axis=0), ()

    def set_priorities(state: State, indices: PyTree, priority: Array) -> State:
        del indices, priority
        return state

    return Buffer(
        init=init,
        add=add,
        sample=sample,
        set_priorities=set_priorities,
        can_sample=lambda state: played.can_sample(state[0]),
    )


def _join_shards(first: Array, second: Array, *, shards: int, axis: int) -> Array:
    """Appends each shard's part of `second` to its part of `first`; both have the shards side by side."""
    parts = [leaf.reshape(*leaf.shape[:axis], shards, -1, *leaf.shape[axis + 1 :]) for leaf in (first, second)]
    joined = jnp.concatenate(parts, axis=axis + 1)
    return joined.reshape(*first.shape[:axis], -1, *first.shape[axis + 1 :])


def with_returns(transition: Transition, discount: float) -> Transition:
    """Adds `extras["return_to_go"]`, the discounted rewards up to the end of the episode or of the row."""
    nothing = jnp.zeros_like(transition.reward)
    ends = transition.terminated, transition.truncated
    returns = discounted_returns(transition.reward, *ends, nothing, discount=discount)
    return transition.replace(extras={**transition.extras, RETURN: returns})


def make_dataset_with_returns(dataset: Dataset, *, discount: float = 0.99) -> Dataset:
    """Makes a data set whose steps have `extras["return_to_go"]`, for replay learners that need it.

    Args:
        dataset: see `Dataset`.
        discount: see `with_returns`.
    """
    return lambda: with_returns(dataset(), discount)


def save_dataset(path: str | Path, dataset: Dataset, environment: Environment) -> None:
    """Writes a data set to a file of arrays, with actions in the units of the environment.

    Args:
        path: path of the file, `.npz`.
        dataset: see `Dataset`; its observations must be single arrays.
        environment: environment of the data; its name is also written.
    """
    transition = jax.jit(dataset)()
    space = environment.action_space
    if isinstance(space, Box) and is_bounded(space):
        transition = transition.replace(action=squash(transition.action, low=space.low, high=space.high))
    arrays: dict[str, Any] = {name: np.asarray(getattr(transition, name)) for name in (*FIELDS, "behavior_log_prob")}
    if transition.action_mask is not None:
        arrays["action_mask"] = np.asarray(transition.action_mask)
    np.savez_compressed(path, environment=np.asarray(environment.name), **arrays)


def load_dataset(path: str | Path, environment: Environment) -> Dataset:
    """Reads a data set that was written by `save_dataset`.

    Args:
        path: path of the file.
        environment: environment whose spaces the data must match.

    Returns:
        The data set.

    Raises:
        ValueError: there is no file, it lacks fields, or it does not match the spaces.
    """
    if not Path(path).is_file():
        raise ValueError(f"`path` must be a file of a data set, got {path}, which is none; see `save_dataset`.")
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    return from_arrays(arrays, environment)


def from_arrays(arrays: dict[str, np.ndarray], environment: Environment) -> Dataset:
    """Makes a data set from arrays `[T, E, ...]`, with actions in the units of the environment.

    Args:
        arrays: arrays with the names in `FIELDS`; arrays that are not fields of a `Transition` are ignored.
        environment: environment whose spaces the data must match.

    Raises:
        ValueError: fields are missing, lengths differ, or the data do not match the spaces; the message lists all
            problems of one of these kinds.
    """
    missing = [name for name in FIELDS if name not in arrays]
    if missing:
        raise ValueError(
            f"`dataset` must have the fields {', '.join(FIELDS)}, got none for {', '.join(missing)}; it has "
            f"{', '.join(sorted(arrays))}."
        )
    leading = arrays["reward"].shape
    wrong = [f"{name} {arrays[name].shape}" for name in FIELDS if arrays[name].shape[:2] != leading]
    if len(leading) != 2 or wrong:
        raise ValueError(f"`dataset` must have arrays [T, E, ...] like reward {leading}, got {', '.join(wrong)}.")
    space, action = environment.action_space, arrays["action"]
    if isinstance(space, Box) and is_bounded(space):
        action = np.asarray(unsquash(jnp.asarray(action, jnp.float32), low=space.low, high=space.high))
    given: dict[str, Any] = {name: arrays[name] for name in FIELDS} | {
        "action": action,
        "reward": np.float32(arrays["reward"]),
    }
    given |= {"behavior_log_prob": arrays.get("behavior_log_prob", np.zeros(leading, np.float32))}
    transition = Transition(**given | {"action_mask": arrays.get("action_mask")})
    require_spaces(transition, environment)
    return lambda: jax.tree.map(jnp.asarray, transition)


def require_spaces(transition: PyTree, environment: Environment) -> None:
    """Refuses experience whose observations or actions do not match an environment.

    Args:
        transition: leaves `[T, E, ...]`, as arrays or `ShapeDtypeStruct`s.
        environment: environment that defines the spaces.

    Raises:
        ValueError: something differs; the message lists the differences.
    """
    wrong = []
    for name in ("observation", "next_observation"):
        wrong += _differences(name, getattr(transition, name), environment.observation_space)
    wrong += _differences("action", transition.action, environment.action_space)
    space, action = environment.action_space, transition.action
    if isinstance(space, Discrete):
        if not np.issubdtype(action.dtype, np.integer):
            wrong.append(f"action of {action.dtype} for integers")
        elif (
            isinstance(action, np.ndarray) and action.size and not 0 <= action.min() <= action.max() < space.num_values
        ):
            wrong.append(f"actions {action.min()} to {action.max()} for {space.num_values} of them")
    if wrong:
        raise ValueError(
            f"`dataset` must be of the spaces of {environment.name!r}, got {'; '.join(wrong)}; try the world that it "
            "was made in."
        )


def _differences(name: str, found: Any, space: PyTree) -> list[str]:
    if jax.tree.structure(found) != jax.tree.structure(space):  # type: ignore[operator]
        return [f"{name} with entries {jax.tree.structure(found)} for {jax.tree.structure(space)}"]
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(space), strict=True)
    return [f"{name} {leaf.shape[2:]} for {one.shape}" for leaf, one in pairs if leaf.shape[2:] != tuple(one.shape)]


def _require_alike(example: PyTree, transition: PyTree) -> None:
    """Refuses a data set whose arrays differ from those of rollouts."""
    ours, theirs = _shapes_by_path(example), _shapes_by_path(transition)
    names = sorted(name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name))
    if names:
        wrong = "; ".join(f"{name} {ours.get(name, 'missing')} for {theirs.get(name, 'none')}" for name in names)
        raise ValueError(f"`dataset` must have the arrays that rollouts have, got {wrong}.")


def _shapes_by_path(tree: PyTree) -> dict[str, tuple[Any, ...]]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path): (leaf.shape, leaf.dtype) for path, leaf in leaves}
