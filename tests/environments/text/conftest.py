"""The fixture `hand`: plays text worlds by hand, and finds shortest ways by trying everything."""

import functools
import itertools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text import guess_number
from jaxagents.environments.text.builder import make_text_world
from jaxagents.environments.text.grammar import make_grammar
from jaxagents.environments.text.texts import number, pick, text
from jaxagents.environments.text.words import pad_to, sentence
from jaxagents.environments.text.world import Status, World
from tests.fakes import play_actions

KEY = jax.random.key(0)
MOST = 256
"""States that are tried at once."""


@functools.cache
def compiled(environment):
    return jax.jit(environment.reset), jax.jit(environment.step)


def action_ids(environment, spoken):
    """Word ids of what is said, the longest phrase of the word table first: int32 `[M]`."""
    words, ids, rest = environment.text.words, [], spoken.split()
    while rest:
        count = next(n for n in range(len(rest), 0, -1) if " ".join(rest[:n]) in words)
        ids.append(words.index(" ".join(rest[:count])))
        rest = rest[count:]
    return jnp.asarray(pad_to(np.asarray(ids, np.int32), environment.action_space.shape[0]))


def play(environment, task, spoken):
    """Plays actions; returns the texts that are seen, the time steps and the last state."""
    reset, step = compiled(environment)
    state, timesteps = play_actions(reset, step, task, [action_ids(environment, action) for action in spoken], KEY)
    return [sentence(environment.text.words, one.observation) for one in timesteps], timesteps, state


def prompt(environment, task):
    """Returns the prompt as text."""
    return sentence(environment.text.words, jax.jit(environment.text.prompt)(task))


@functools.cache
def _expand(environment):
    def one(state, action):
        following, timestep = environment.step(KEY, state, action)
        over = timestep.terminated | timestep.truncated
        return following, environment.text.fingerprint(following), timestep.info["success"], over

    return jax.jit(jax.vmap(jax.vmap(one, in_axes=(None, 0)), in_axes=(0, None)))


def row_of(tree, index):
    """Returns the leaves at an index."""
    return jax.tree.map(lambda leaf: leaf[index], tree)


def fewest_actions(environment, state, actions, limit):
    """Finds the fewest of some actions to a success by breadth-first search; inf where `limit` is not enough."""
    frontier, met = jax.tree.map(lambda leaf: np.asarray(leaf)[None], state), set()
    for count in range(1, limit + 1):
        size, found = jax.tree.leaves(frontier)[0].shape[0], []
        for first in range(0, size, MOST):
            batch = row_of(frontier, np.minimum(np.arange(first, first + MOST), size - 1))
            following, names, success, over = jax.device_get(_expand(environment)(batch, jnp.asarray(actions)))
            if success.any():
                return count
            for row, column in itertools.product(range(min(MOST, size - first)), range(len(actions))):
                name = int(names[row, column])
                if name not in met and not over[row, column]:
                    met.add(name)
                    found.append(row_of(following, (row, column)))
        if not found:
            return np.inf
        frontier = jax.tree.map(lambda *leaves: np.stack(leaves), *found)
    return np.inf


@functools.cache
def _sampler(environment, held_out):
    sample = environment.text.sample_held_out_task if held_out else environment.sample_task
    return jax.jit(jax.vmap(sample, in_axes=(0, None)))


def drawn_tasks(environment, count, level, *, held_out=False):
    """Draws tasks of a level, with leaves `[count, ...]`."""
    return jax.device_get(_sampler(environment, held_out)(jax.random.split(KEY, count), jnp.int32(level)))


def wander(environment, task, num_steps, key):
    """Returns the states of an episode of random actions, as far as it goes."""
    reset, step = compiled(environment)
    draw = jax.jit(environment.text.draw)
    state, timestep = reset(key, task)
    states = [state]
    for step_key in jax.random.split(key, num_steps):
        state, timestep = step(step_key, state, draw(step_key, state))
        if timestep.terminated | timestep.truncated:
            break
        states.append(state)
    return states


PLACES = ("desk", "bed", "shelf", ("door", "1"))


def make_rooms():
    """A key lies in one of four places; go there and take it, within four turns. Held out are pairs of places."""
    grammar = make_grammar("go to {place}", "take", place=PLACES)

    def play(key, state, verb, args):
        return {
            "task": state["task"],
            "at": jnp.where(verb == 0, args[0, 0], state["at"]),
            "taken": state["taken"] | ((verb == 1) & (state["at"] == state["task"]["key"])),
        }

    def expert(key, state):
        there = state["at"] == state["task"]["key"]
        args = jnp.where(there, grammar.args(), grammar.args(state["task"]["key"]))
        return there.astype(jnp.int32), args, text("key at", pick(PLACES, state["task"]["key"]))

    def sample(key, level):
        places = jax.random.randint(key, (2,), 0, 4)
        return {"key": places[0], "start": places[1], "level": level}

    return World(
        name="rooms",
        grammar=grammar,
        max_steps=4,
        num_levels=2,
        sample=sample,
        start=lambda key, task: {"task": task, "at": task["start"], "taken": jnp.bool_(False)},
        allowed=lambda state: jnp.append(jnp.arange(4) != state["at"], state["at"] >= 0),
        play=play,
        status=lambda state: Status(
            success=state["taken"],
            over=state["taken"],
            progress=(1.0 * (state["at"] == state["task"]["key"]) + state["taken"]) / 2,
            parts={"there": 1.0 * (state["at"] == state["task"]["key"])},
        ),
        tell=lambda state, seat: text("you are at", pick(PLACES, state["at"]), "."),
        prompt=lambda task: text("find", number(task["key"] + 1, 1)),
        expert=expert,
        distance=lambda state: 2.0 - (state["at"] == state["task"]["key"]) - state["taken"],
    )


def tiny_worlds():
    """Returns two small worlds by name: one whose actions are listed, and one of numbers."""
    return {"rooms": make_rooms(), "guess_number": guess_number.make_environment((7,), max_steps=3).text.rules}


def run_expert(environment, count=16, *, held_out=False, seed=0):
    """Lets the expert play tasks of all levels; returns the time steps, leaves `[B, T + 1, ...]`, and the tasks."""
    interface = environment.text
    sample = interface.sample_held_out_task if held_out else environment.sample_task

    def play(key, level):
        task_key, reset_key, key = jax.random.split(key, 3)
        task = sample(task_key, level)
        first = environment.reset(reset_key, task)

        def step(state, key):
            following = environment.step(key, state, interface.expert(key, state)[0])
            return following[0], (following[1], interface.fingerprint(following[0]))

        _, (steps, prints) = jax.lax.scan(step, first[0], jax.random.split(key, environment.max_steps))
        steps = jax.tree.map(lambda one, rest: jnp.concatenate([one[None], rest]), first[1], steps)
        return steps, task, prints

    keys = jax.random.split(jax.random.key(seed), count)
    return jax.device_get(jax.jit(jax.vmap(play))(keys, jnp.arange(count) % interface.num_levels))


@pytest.fixture(scope="session")
def tiny():
    return types.SimpleNamespace(
        worlds=tiny_worlds(),
        run_expert=run_expert,
        make=functools.cache(lambda world, **kw: make_text_world(world, **kw)),
    )


@pytest.fixture(scope="session")
def hand():
    return types.SimpleNamespace(
        action_ids=action_ids,
        play=play,
        prompt=prompt,
        fewest_actions=fewest_actions,
        drawn_tasks=drawn_tasks,
        wander=wander,
        row_of=row_of,
    )
