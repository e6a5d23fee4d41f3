"""Processes of several hosts: how they meet, what they agree on before they compute, and what one's end does to all."""

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

_Result = TypeVar("_Result")
_SILENCE_SECONDS = 30  # After which a process is taken for dead, and for which the others wait for it to end.


def join_processes(
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    timeout_seconds: int = 300,
) -> None:
    """Joins the processes of several hosts; without arguments, the environment of Slurm, Open MPI or a TPU decides.

    Args:
        coordinator_address: host:port of process 0.
        num_processes: of all hosts.
        process_id: of this one, from 0.
        timeout_seconds: after which a process gives up that does not find the others.

    Raises:
        ValueError: some but not all arguments are given, or nothing says who the others are.
        ConnectionError: nobody was at the address in time; where too few were, the process ends in one line.
    """
    given = (coordinator_address, num_processes, process_id)
    if any(value is not None for value in given) and any(value is None for value in given):
        raise ValueError(
            "`devices.coordinator_address`, `devices.num_processes` and `devices.process_id` must be given together, "
            f"got {given}; give all three or none."
        )
    wanted = f"all {num_processes} processes" if num_processes else "all processes of the cluster"
    message = (
        f"{wanted} must meet at {coordinator_address or 'the coordinator'} within `devices.timeout_seconds`, got none "
        f"or too few in {timeout_seconds} s; are all started, and is the port open?"
    )
    if process_id and coordinator_address and not _finds_listener(coordinator_address, timeout_seconds):
        raise ConnectionError(message)
    # The runtime ends a process that waited too long with a stack of its own functions, and cannot be caught.
    alarm = threading.Timer(timeout_seconds, _end, [message])
    alarm.daemon = True
    alarm.start()
    jax.config.update("jax_enable_preemption_service", False)  # It takes SIGTERM, too, and lets nobody else.
    try:
        jax.distributed.initialize(
            *given,
            initialization_timeout=timeout_seconds + _SILENCE_SECONDS,
            heartbeat_timeout_seconds=_SILENCE_SECONDS,
            shutdown_timeout_seconds=_SILENCE_SECONDS,
        )
    except ValueError as error:
        raise ValueError(
            "`devices.coordinator_address`, `devices.num_processes` and `devices.process_id` must be given where the "
            f"environment names no cluster (Slurm, Open MPI, TPU), and fit each other, got {given} ({error})."
        ) from error
    finally:
        alarm.cancel()


@contextmanager
def exit_with_partners() -> Iterator[None]:
    """Ends this process, in one line and with exit code 1, where the runtime fails, as when another one is gone.

    What would be closed on the way out waits for the other one: there is no way out but this. Where the runtime says
    nothing, it ends the process itself after 30 seconds without a sign of life of the other one.
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if jax.process_count() == 1:
            raise
        _end(
            f"all {jax.process_count()} processes must stay until the end, got an error of the runtime in process "
            f"{jax.process_index()}, most likely because one is gone; the last checkpoint is kept: start again with "
            f"the same `run_dir`, on any number of processes that divides the rows ({str(error).partition(chr(10))[0]})"
        )


def _end(message: str) -> None:
    print(f"Error: {message}", file=sys.stderr, flush=True)
    os._exit(1)


def _finds_listener(address: str, timeout_seconds: int) -> bool:
    """Waits until somebody listens at host:port, and tells whether anybody does."""
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + timeout_seconds
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=5).close()
            return True
        except OSError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.2)


def of_first_process(work: Callable[[], Any]) -> Any:
    """Lets process 0 do something alone, and tells every process what came of it.

    Args:
        work: `() -> result` that JSON can write, called on process 0 only.

    Returns:
        The result, on every process.

    Raises:
        ValueError: `work` raised an error, which process 0 raises as it was.
    """
    result = on_all_processes(lambda: work() if jax.process_index() == 0 else None)
    return result if jax.process_count() == 1 else _exchange(result)[0]


def on_all_processes(work: Callable[[], _Result]) -> _Result:
    """Lets every process do something of its own; a process that fails ends all of them.

    Without this, the others would wait for ever for the first collective operation of the one that is gone.

    Args:
        work: `() -> result` without collective operations.

    Returns:
        The result of this process.

    Raises:
        ValueError: `work` raised an error on another process; the one where it did raises it as it was.
    """
    if jax.process_count() == 1:
        return work()
    error = None
    try:
        result = work()
    except Exception as raised:  # Whatever it is, the others must know of it.
        error = raised
    messages = _exchange(None if error is None else str(error))
    if error is not None:
        raise error
    for process, message in enumerate(messages):
        if message is not None:
            raise ValueError(f"{message} (said by process {process})")
    return result


def any_process(value: bool) -> bool:
    """Tells whether a value is true on any process; all of them must ask."""
    if jax.process_count() == 1:
        return value
    return bool(multihost_utils.process_allgather(np.bool_(value)).any())


def _exchange(value: Any) -> list[Any]:
    """Returns the values of all processes, in their order."""
    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    sizes = multihost_utils.process_allgather(np.int32(text.size))
    rows = multihost_utils.process_allgather(np.pad(text, (0, int(sizes.max()) - text.size)))
    return [json.loads(row[:size].tobytes()) for row, size in zip(rows, sizes, strict=True)]
