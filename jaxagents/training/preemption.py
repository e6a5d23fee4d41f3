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
def watch_signals() -> Iterator[Callable[[], bool]]:
    """Listens for SIGTERM until the end of the block; a second one ends the process at once.

    Yields:
        `() -> bool`, True when it is time to save and end. With several processes, all must ask at the same moments of
        the run: the signal of one is heard by all.
    """
    from jaxagents.training.processes import any_process  # The command line reads this file before it needs jax.

    if threading.current_thread() is not threading.main_thread():
        yield lambda: any_process(False)  # Only the main thread may listen.
        return
    heard = threading.Event()

    def hear(number: int, frame: Any) -> None:
        heard.set()
        signal.signal(number, before or signal.SIG_DFL)  # None: it was not Python that listened.

    before = signal.signal(signal.SIGTERM, hear)
    try:
        yield lambda: any_process(heard.is_set())
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)
