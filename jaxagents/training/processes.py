"""Processes of several hosts: how they connect, what they agree on before computing, and how all end with one."""

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
_SILENCE_SECONDS = 30  # After this a process counts as dead; so long the others wait for it to end.


def join_processes(
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    timeout_seconds: int = 300,
) -> None:
    """Joins the processes of several hosts; by default, by the environment of Slurm, Open MPI or a TPU.

    Args:
        coordinator_address: host:port of process 0.
        num_processes: number of processes of all hosts.
        process_id: index of this process, from 0.
        timeout_seconds: time in seconds after which a process that does not find the others gives up.

    Raises:
        ValueError: some but not all arguments are given, or nothing identifies the other processes.
        ConnectionError: no process answered at the address in time; if too few joined, the process ends with one line.
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
    # The runtime ends a process that waited too long with its own stack trace, which cannot be caught.
    alarm = threading.Timer(timeout_seconds, _end, [message])
    alarm.daemon = True
    alarm.start()
    jax.config.update("jax_enable_preemption_service", False)  # It handles SIGTERM, too, and excludes other handlers.
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
    """Ends this process, in one line and with exit code 1, if the runtime fails, as when another process is gone.

    Normal cleanup would wait for the other process, so the process ends without it. If the runtime reports nothing, it
    ends the process itself after 30 seconds without a sign of life of the other one.
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
    """Waits until a process listens at host:port, and tells whether one does."""
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
    """Lets process 0 alone do some work, and sends the result to every process.

    Args:
        work: `() -> result` as JSON data, called on process 0 only.

    Returns:
        The result, on every process.

    Raises:
        ValueError: `work` raised an error; process 0 raises the original one.
    """
    result = on_all_processes(lambda: work() if jax.process_index() == 0 else None)
    return result if jax.process_count() == 1 else _exchange(result)[0]


def on_all_processes(work: Callable[[], _Result]) -> _Result:
    """Lets every process do some work; if one fails, all end.

    Otherwise, the others would wait for ever in the first collective operation for the failed process.

    Args:
        work: `() -> result` without collective operations.

    Returns:
        The result of this process.

    Raises:
        ValueError: `work` raised an error on another process; the process where it did raises the original one.
    """
    if jax.process_count() == 1:
        return work()
    error = None
    try:
        result = work()
    except Exception as raised:  # Whatever it is, the others must be told.
        error = raised
    messages = _exchange(None if error is None else str(error))
    if error is not None:
        raise error
    for process, message in enumerate(messages):
        if message is not None:
            raise ValueError(f"{message} (said by process {process})")
    return result


def any_process(value: bool) -> bool:
    """Tells whether a value is true on any process; all processes must call it."""
    if jax.process_count() == 1:
        return value
    return bool(multihost_utils.process_allgather(np.bool_(value)).any())


def _exchange(value: Any) -> list[Any]:
    """Returns the values of all processes, in the order of the processes."""
    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    sizes = multihost_utils.process_allgather(np.int32(text.size))
    rows = multihost_utils.process_allgather(np.pad(text, (0, int(sizes.max()) - text.size)))
    return [json.loads(row[:size].tobytes()) for row, size in zip(rows, sizes, strict=True)]
