"""Checkpoints of processes that are killed, and of two that share them."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.training.checkpoints.manager import open_checkpoints

SAVE_FOREVER = """
import sys, jax, jax.numpy as jnp
from jaxagents.training.checkpoints.manager import open_checkpoints
folder = open_checkpoints(sys.argv[1], keep=2)
restored = folder.restore(jax.eval_shape(lambda: {"w": jnp.zeros((50, 1000))}), on_fallback=print)
step = restored.step if restored else 0
while True:
    step += 1
    folder.save(step, {"w": jnp.full((50, 1000), step, jnp.float32)}, {"step": step})
    if step > 2:
        print("saving", flush=True)
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("tries", [2, pytest.param(12, marks=pytest.mark.exhaustive)])
def test_a_kill_at_any_moment_leaves_a_whole_checkpoint(tmp_path, tries):
    for attempt in range(tries):
        command = [sys.executable, "-c", SAVE_FOREVER, str(tmp_path)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        while process.stdout.readline() != b"saving\n":
            assert process.poll() is None
        time.sleep(random.Random(attempt).uniform(0.0, 0.25))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        with contextlib.closing(open_checkpoints(tmp_path, keep=2)) as folder:
            restored = folder.restore({"w": jnp.zeros((50, 1000))}, on_fallback=lambda message: None)
        np.testing.assert_array_equal(restored.state["w"], float(restored.step))
        assert restored.metadata == {"step": restored.step}


TWO_PROCESSES = """
import sys, jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec
directory, address, process = sys.argv[1], sys.argv[2], int(sys.argv[3])
jax.distributed.initialize(address, num_processes=2, process_id=process)
from jaxagents.training.checkpoints.manager import open_checkpoints
mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
split, same = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())
place = lambda x, to: jax.make_array_from_callback(x.shape, to, lambda index: x[index])
def make(value):
    keys = jax.jit(lambda: jax.random.split(jax.random.key(value), 4), out_shardings=split)()
    return {"x": place(np.arange(8.0, dtype=np.float32) + value, split), "w": place(np.full(3, value, np.int32), same),
            "keys": keys, "local": jnp.float32(value), "zero": place(np.zeros((0, 2), np.int8), same)}
folder, best = open_checkpoints(directory + "/last", keep=2), open_checkpoints(directory + "/best", keep=1)
update = jax.jit(lambda state: jax.tree.map(lambda x: x * 0 - 1, state), donate_argnums=0)
for step in (1, 2, 3):
    state = make(step)
    folder.save(step, state, {"step": step})
    best.save(step, state, {"step": step})
    update({name: state[name] for name in "xw"})
folder.wait(); best.wait()
if process == 0:
    with open(directory + "/last/3/metadata/metadata", "a") as file:
        file.write(" ")
messages = []
abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), make(0))
abstract["local"] = jnp.float32(0)
for opened, step in ((folder, 2), (best, 3)):
    restored = opened.restore(abstract, on_fallback=messages.append)
    assert restored.step == step and restored.metadata == {"step": step}, restored.step
    expected = make(step)
    for name in ("x", "w", "local"):
        pairs = zip(restored.state[name].addressable_shards, expected[name].addressable_shards)
        assert all((np.asarray(a.data) == np.asarray(b.data)).all() for a, b in pairs), name
    assert restored.state["keys"].sharding.is_equivalent_to(split, 1)
    assert jax.jit(lambda a, b: (jax.random.key_data(a) == jax.random.key_data(b)).all())(
        restored.state["keys"], expected["keys"])
assert len(messages) == (1 if process == 0 else 0), messages
try:
    folder.restore({"x": abstract["x"]}, on_fallback=messages.append)
except ValueError as error:
    assert "`checkpoint` must be whole" in str(error)
else:
    raise AssertionError("a foreign state was accepted")
folder.save(3, make(30), {"step": 30})
restored = folder.restore(abstract)
assert restored.step == 3 and restored.metadata == {"step": 30}
folder.close(); best.close()
print("done")
"""


@pytest.mark.slow
def test_two_processes_share_their_checkpoints(tmp_path):
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        address = f"localhost:{probe.getsockname()[1]}"
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=1"
    processes = [
        subprocess.Popen(
            ["timeout", "-k", "5", "120", sys.executable, "-c", TWO_PROCESSES, str(tmp_path), address, str(index)],
            env=os.environ | {"XLA_FLAGS": flags},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(2)
    ]
    for process, (output, errors) in zip(processes, [process.communicate() for process in processes]):
        assert process.returncode == 0, errors[-3000:]
        assert output.endswith("done\n")
    keys = jax.random.split(jax.random.key(30), 4)
    abstract = {"x": jnp.zeros(8), "w": jnp.zeros(3, jnp.int32), "keys": keys, "local": jnp.float32(0)}
    with contextlib.closing(open_checkpoints(tmp_path / "last")) as folder:
        restored = folder.restore({**abstract, "zero": jnp.zeros((0, 2), jnp.int8)})
        assert folder.steps() == [2, 3]
    np.testing.assert_array_equal(restored.state["x"], np.arange(8.0) + 30)
    np.testing.assert_array_equal(jax.random.key_data(restored.state["keys"]), jax.random.key_data(keys))
