"""The signal before a machine is taken away: the run saves a checkpoint and ends with an exit code of its own."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

EXIT_CODE = 75
"""Of a run that was asked to end and can go on: EX_TEMPFAIL of sysexits.h, which says to try again."""


class Preempted(Exception):
    """A run ended before its time, at somebody else's request, after a checkpoint."""


@contextmanager
def watch_signals() -> Iterator[Callable[[int], bool]]:
    """Listens for SIGTERM until the end of the block; a second one ends the process at once.

    With several processes, the signal of one is heard by all, and all agree on the step at which they stop.

    Yields:
        `(step) -> bool`, True when it is time to save and end; `step` rises, and every process asks at the same ones.
    """
    import jax  # The command line reads this file before it knows whether it computes anything.
    from jax.experimental import multihost_utils

    if jax.process_count() > 1:
        yield multihost_utils.reached_preemption_sync_point  # The service of `jax.distributed` has the signal.
        return
    if threading.current_thread() is not threading.main_thread():
        yield lambda step: False  # Only the main thread may listen.
        return
    heard = threading.Event()

    def hear(number: int, frame: Any) -> None:
        heard.set()
        signal.signal(number, before)

    before = signal.signal(signal.SIGTERM, hear)
    try:
        yield lambda step: heard.is_set()
    finally:
        signal.signal(signal.SIGTERM, before)
