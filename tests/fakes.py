"""Stand-ins of tests: experience, worlds, learners that only count or listen, tokenizers, and random strategies."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct

from jaxagents.environments.timesteps import first_timestep
from jaxagents.games.strategies import normalize
from jaxagents.policies import contexts
from jaxagents.types import Box, Environment, Learner, Rollout, Sample, TimeStep, Transition

# Compiled: outside of `jax.jit`, every operation is a program of its own.
score_tokens = jax.jit(contexts.score_tokens, static_argnames=("model", "layout", "fields"))


def make_transition(shape=None, **fields):
    """Makes steps `[T, B]` that are zero and false but for some fields; observations stay where they are.

    Args:
        shape: `[T, B]`; None takes that of the rewards or flags that are given.
        **fields: of `Transition`.
    """
    flags = ("terminated", "truncated", "first")
    given = [jnp.shape(fields[name]) for name in flags if name in fields]
    shape = shape or (jnp.shape(fields["reward"]) if "reward" in fields else given[0])
    zeros, no = jnp.zeros(shape), jnp.zeros(given[0] if given else shape, bool)
    defaults = dict.fromkeys(("observation", "action", "behavior_log_prob", "reward"), zeros) | dict.fromkeys(flags, no)
    return Transition(**defaults | {"next_observation": fields.get("observation", zeros)} | fields)


def make_rollout(shape=None, *, carry=(), **fields):
    """Makes a rollout of `make_transition`."""
    return Rollout(transition=make_transition(shape, **fields), carry=carry)


def make_sample(shape=None, *, weight=None, carry=(), **fields):
    """Makes sequences of `make_transition`, each with weight 1 where none is given."""
    transition = make_transition(shape, **fields)
    return Sample(transition, jnp.ones(transition.reward.shape[1]) if weight is None else weight, carry)


def make_world(reset, step, observation_space, action_space, max_steps, **fields):
    """Makes an environment of one task; `fields` are others of `Environment`."""
    defaults = {"name": "world", "sample_task": lambda key, level=None: ()}
    spaces = {"observation_space": observation_space, "action_space": action_space}
    return Environment(reset=reset, step=step, max_steps=max_steps, **spaces, **defaults | fields)


def play_actions(reset, step, task, actions, key):
    """Plays actions from a task; returns the last state, and the time steps from that of the reset on."""
    state, timestep = reset(key, task)
    timesteps = [timestep]
    for action in actions:
        state, timestep = step(key, state, jnp.asarray(action))
        timesteps.append(timestep)
    return state, timesteps


def make_follow():
    """Makes a world of one step, in which the best action is the first number of the observation."""

    def reset(key, task):
        seen = jax.random.uniform(key, (2,), minval=-0.9, maxval=0.9)
        return seen, first_timestep(seen)

    def step(key, state, action):
        end = jnp.ones((), bool)
        return state, TimeStep(state, -jnp.square(action[0] - state[0]), terminated=end, truncated=~end)

    return make_world(reset, step, Box((2,)), Box((1,), -1.0, 1.0), 1)


def play_levels(*shares):
    """Makes a rollout of four episodes of one step on each level, of which these shares are won; None: none ended."""
    success = jnp.stack([jnp.arange(4) < round(4 * (share or 0.0)) for share in shares], axis=1)
    ended = jnp.broadcast_to(jnp.array([share is not None for share in shares]), success.shape)
    return make_rollout(terminated=ended, first=success >= 0, extras={"success": success.astype(jnp.float32)})


def with_numbers(state, **numbers):
    """Changes numbers in the settings of a learner's state."""
    numbers = state.settings.numbers | jax.tree.map(jnp.float32, numbers)
    return state.replace(settings=state.settings.replace(numbers=numbers))


def halves(batch):
    """Splits the environments of a rollout or a sample over two devices: leaves `[2, ...]`."""
    if isinstance(batch, Sample):
        rows = jax.tree.map(lambda leaf: leaf.reshape(2, -1, *leaf.shape[1:]), (batch.weight, batch.carry))
        return Sample(halves(batch.transition), *rows)
    return jax.tree.map(lambda leaf: jnp.stack(jnp.split(leaf, 2, axis=1)), batch)


def require_agreement(alone, shared, state, batch, pick, *, rtol=1e-4, atol=1e-5):
    """Updates on one device and on two, and compares what they learn.

    Args:
        alone: the learner on one device.
        shared: on devices whose axis is "device".
        state: from which both begin.
        batch: a rollout or a sample, of which each of two devices gets half.
        pick: `(state, metrics) -> pytree` of what is compared; of the priorities of rows, those of both are compared.
    """
    key = jax.random.key(0)
    expected, expected_metrics = jax.jit(alone.update)(state, key, batch)
    found, metrics = jax.jit(jax.vmap(shared.update, (None, None, 0), axis_name="device"))(state, key, halves(batch))
    if "priority" in metrics:
        np.testing.assert_allclose(metrics.pop("priority").reshape(-1), expected_metrics.pop("priority"), rtol=rtol)
    for device in range(2):
        one = jax.tree.map(lambda leaf, device=device: leaf[device], pick(found, metrics))
        jax.tree.map(partial(np.testing.assert_allclose, rtol=rtol, atol=atol), one, pick(expected, expected_metrics))


def require_equal_states(alone, shared, state, rollout):
    """Updates on one device and on two, whose states must be equal to the last bit; returns that of one."""
    key = jax.random.key(0)
    expected, _ = alone.update(state, key, rollout)
    found, _ = jax.vmap(shared.update, (None, None, 0), axis_name="device")(state, key, halves(rollout))
    jax.tree.map(lambda two, one: np.testing.assert_array_equal(two, jnp.stack([one, one])), found, expected)
    return expected


@struct.dataclass
class Counted:
    """State of `COUNTING`: parameters, and the count that schedules of optimisers keep."""

    params: jax.Array
    schedule: optax.ScaleByScheduleState


def _count_from(key, start=None):
    start = jnp.float32(0.0) if start is None else getattr(start, "params", start)
    return Counted(params=start, schedule=optax.ScaleByScheduleState(jnp.int32(0)))


def _count(state, key, batch):
    schedule = optax.ScaleByScheduleState(state.schedule.count + 1)
    return Counted(params=state.params + 1.0, schedule=schedule), {"loss": jnp.float32(1.0)}


COUNTING = Learner(init=_count_from, update=_count)
"""A learner whose parameter is the number of its updates, on top of that of an earlier stage."""


@struct.dataclass
class Heard:
    """State of `LISTENER`."""

    params: jax.Array


LISTENER = Learner(
    init=lambda key, start=None: Heard(params=jnp.zeros((2, 3))),
    update=lambda state, key, batch: (Heard(params=batch.transition.reward), {"loss": jnp.float32(0.0)}),
)
"""A learner whose parameters are the rewards of its last rollout."""


def byte_pairs(vocab_size, *texts, add_prefix_space=False, **options):
    """Returns a tokenizer of `tokenizers`: byte pairs of bytes, with merges that are frequent in some texts."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    backend.decoder = decoders.ByteLevel()
    options |= {"initial_alphabet": sorted(pre_tokenizers.ByteLevel.alphabet()), "show_progress": False}
    backend.train_from_iterator([*texts] * 3, trainers.BpeTrainer(vocab_size=vocab_size, **options))
    return backend


def jitted(environment):
    """Compiles every function of a text world: outside of `jax.jit`, a loop of `lax` is compiled at each call."""
    names = ("expert", "fingerprint", "sample_held_out_task", "prompt", "draw", "distance")
    functions = {name: getattr(environment.text, name) for name in names}
    text = {name: jax.jit(function) for name, function in functions.items() if function is not None}
    own = {name: jax.jit(getattr(environment, name)) for name in ("sample_task", "reset", "step")}
    return replace(environment, text=replace(environment.text, **text), **own)


@jax.jit
def random_profile(game, key):
    """Draws policies whose distributions of actions are uniform over all distributions."""
    keys = jax.random.split(key, game.num_players)
    drawn = [jax.random.exponential(key, seat.mask.shape) for key, seat in zip(keys, game.seats)]
    return tuple(normalize(seat, weights) for seat, weights in zip(game.seats, drawn))
