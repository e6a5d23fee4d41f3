"""Actors of Ray: what arrives, with what weights, and what happens when their processes die."""

import os
import signal
import sys
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from jaxagents.environments.adapters import gymnasium as adapter
from jaxagents.networks.torsos import MLP
from jaxagents.policies.actor_critic import make_policy
from jaxagents.rollouts import actors
from jaxagents.rollouts.actors import ActorPool, make_actor_collector
from jaxagents.training.composition import compose
from jaxagents.training.launch import run
from tests import ROOT


@pytest.fixture(scope="module")
def parts():
    environment = adapter.make_environment("CartPole-v1")
    policy = make_policy(environment.observation_space, environment.action_space, encoder=MLP(hidden_sizes=(4,)))
    return environment, policy


@pytest.fixture(scope="module")
def ray():
    ray = pytest.importorskip("ray", reason="Ray comes with the extra `ray`")
    yield ray
    ray.shutdown()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_two_of_four_actors_are_killed_and_nothing_is_lost_or_counted_twice(ray, parts):
    environment, policy = parts
    params = jax.tree.map(np.asarray, policy.init(jax.random.key(0)))
    pool = ActorPool(environment, policy, num_actors=4, num_envs=2, num_steps=8, max_waiting=2)
    chunks = pool.take(params, 0, 4)
    victims = {chunk.stream: chunk.process for chunk in chunks}
    while len(victims) < 2:
        chunks += pool.take(params, 0, 1)
        victims = {chunk.stream: chunk.process for chunk in chunks}
    for process in list(victims.values())[:2]:
        os.kill(process, signal.SIGKILL)
    for update in range(1, 9):
        chunks += pool.take(params, update, 4)
        # Backpressure: nobody is asked for more than two chunks that the learner does not have.
        assert max(np.bincount([stream for stream, _ in pool.owed.values()])) <= 2
    new = dict.fromkeys(list(victims)[:2], 0)
    while not all(new.values()):  # New processes take their time to start; the others go on meanwhile.
        chunks += pool.take(params, pool.version + 1, 1)
        stream, process = chunks[-1].stream, chunks[-1].process
        new |= {stream: process} if stream in new and process != victims[stream] else {}
        assert len(chunks) < 20_000
    assert pool.restarts == 2
    received = sorted((chunk.stream, chunk.number) for chunk in chunks)
    assert len(received) == len(set(received))  # Nothing twice.
    owed = {(stream, number) for stream, number in pool.owed.values() if number >= 0}
    for stream in range(4):  # What was asked for has come or is to come, without a gap.
        numbers = {number for owner, number in {*received, *owed} if owner == stream}
        assert numbers == set(range(pool.next_number[stream])) and not owed & set(received)
    for stream, process in new.items():  # New processes went on with these streams, in new episodes.
        later = next(chunk for chunk in chunks if chunk.process == process and chunk.stream == stream)
        assert later.rollout.transition.first[0].all()
    assert sum(int(chunk.metrics["env_steps"].total) for chunk in chunks) == 16 * len(chunks)
    pool.close()


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore")
def test_a_run_learns_from_actors_that_lag(ray, tmp_path):
    world = ("world=gymnasium", "algorithm=impala", "collector=actors", "collector.num_actors=2")
    sizes = ("collector.num_steps=8", "training.total_steps=640", "evaluation.num_episodes=1")
    result = run(compose(ROOT / "configs", *world, *sizes, "devices.compilation_cache=null"), tmp_path / "run")
    assert result["steps"] == 640
    lines = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert "rollout/staleness" in lines and "rollout/restarts" in lines and "rollout/env_steps" in lines


def test_what_does_not_fit_is_refused(parts):
    pytest.importorskip("ray", reason="Ray comes with the extra `ray`")
    options = {"num_actors": 2, "num_envs": 1, "num_steps": 1}
    with pytest.raises(ValueError, match="`num_chunks` must be at most 4, what actors owe, got 5"):
        make_actor_collector(*parts, num_chunks=5, **options)
    with pytest.raises(ValueError, match="`num_chunks` must be at least 1, got 0"):
        make_actor_collector(*parts, num_chunks=0, **options)
    with pytest.raises(ValueError, match="`max_lag` must not be negative, got -1"):
        make_actor_collector(*parts, num_chunks=1, max_lag=-1, **options)
    with pytest.raises(ValueError, match="try devices=jit"):
        make_actor_collector(*parts, num_chunks=1, axis_name="devices", **options)


class Lost(Exception):
    """What Ray raises for an actor that is gone."""


def stand_in(wait, get):
    """Returns a module like Ray; what its actors are asked for is `(arguments,)`, or `()` for their start."""

    def call(*arguments):
        return (arguments,) if arguments else ()

    def remote(kind):
        return SimpleNamespace(options=lambda **options: SimpleNamespace(remote=start))

    def start(payload, num_envs, num_steps, stream, life):
        # References are told apart by who was asked.
        asked = SimpleNamespace(remote=lambda *given: (stream, *call(*given)))
        return SimpleNamespace(ready=asked, play=asked)

    return SimpleNamespace(
        is_initialized=lambda: True,
        put=lambda value: value,
        cloudpickle=SimpleNamespace(dumps=lambda value: b""),
        remote=remote,
        wait=lambda references, **options: (wait(references), []),
        get=get,
        exceptions=SimpleNamespace(RayActorError=Lost, ObjectLostError=Lost),
    )


@pytest.mark.parametrize(
    ("answers", "error", "message"),
    [
        (False, TimeoutError, "`collector.timeout_seconds` must be longer .*, got 0.5 and no chunk of 2 actors; try"),
        (True, RuntimeError, "Actor 0 has died 3 times in a row: killed"),
    ],
)
def test_actors_that_hang_or_die_at_once_end_the_run(parts, monkeypatch, answers, error, message):
    def die(reference):
        raise Lost("killed")

    ray = stand_in(lambda references: references[:1] if answers else [], die)
    monkeypatch.setattr(actors, "import_suite", lambda module, extra: ray)
    pool = ActorPool(*parts, num_actors=2, num_envs=1, num_steps=1, timeout_seconds=0.5)
    with pytest.raises(error, match=message):
        pool.take({}, 0, 1)


@pytest.mark.parametrize("max_lag", [None, 1])
def test_what_was_played_too_long_ago_is_discarded_and_played_anew(parts, monkeypatch, max_lag):
    slow = {"answers": False}

    def wait(references):  # The second actor starts, and then says nothing for a while.
        ready = [each for each in references if each[0] == 0 or len(each) == 1 or slow["answers"]]
        return sorted(ready, key=lambda each: (len(each), each[0] if slow["answers"] else 0))[-1:]

    def get(reference):
        stream, *asked = reference
        if not asked:
            return None
        _, number, version, _ = asked[0]
        return actors.Chunk(stream, number, version, process=0, rollout=None, metrics={})

    monkeypatch.setattr(actors, "import_suite", lambda module, extra: stand_in(wait, get))
    pool = ActorPool(*parts, num_actors=2, num_envs=1, num_steps=1, max_waiting=1, max_lag=max_lag)
    chunks = [chunk for update in range(4) for chunk in pool.take((), update, 1)]
    assert [chunk.stream for chunk in chunks] == [0] * 4
    slow["answers"] = True
    (late,) = pool.take((), 4, 1)
    assert (late.stream, late.number) == (1, 0)
    assert (pool.version - late.version, pool.discarded) == ((4, 0) if max_lag is None else (0, 1))


def test_without_ray_it_says_how_to_install_it(parts, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ModuleNotFoundError, match=r"`ray` must be installed .* `pip install 'jaxagents\[ray\]'`"):
        make_actor_collector(*parts, num_actors=1, num_chunks=1, num_envs=1, num_steps=1)
