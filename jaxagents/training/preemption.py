"""The signal before a machine is taken away: the run saves a checkpoint and ends with an exit code of its own."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from jaxagents.training.interrupts import hear_interrupts

EXIT_CODE = 75
"""Of a run that was asked to end and can go on: EX_TEMPFAIL of sysexits.h, which says to try again."""
_ONE_SECONDS = 0.5  # Within which two signals are one: a sweep passes on what its jobs may have got themselves.


class Preempted(Exception):
    """A run ended before its time, at somebody else's request, after a checkpoint."""


@contextmanager
def watch_signals() -> Iterator[Callable[[], bool]]:
    """Listens for SIGTERM until the end of the block; a second one ends the process at once.

    Ctrl-C raises KeyboardInterrupt as ever, and once more when asked: Python drops what is raised while it collects
    garbage, which would leave the run going. So does one that was dropped before the block.

    Yields:
        `() -> bool`, True when it is time to save and end. With several processes, all must ask at the same moments of
        the run: the signal of one is heard by all.
    """
    from jaxagents.training.processes import any_process  # The command line reads this file before it needs jax.

    if threading.current_thread() is not threading.main_thread():
        yield lambda: any_process(False)  # Only the main thread may listen.
        return
    heard: list[float] = []

    def hear(number: int, frame: Any) -> None:
        now = time.monotonic()
        if heard and now - heard[0] >= _ONE_SECONDS:
            signal.signal(number, before or signal.SIG_DFL)  # None: it was not Python that listened.
            signal.raise_signal(number)
        heard[:] = heard or [now]

    with hear_interrupts(polled=True) as is_interrupted:

        def is_asked() -> bool:
            if is_interrupted():
                raise KeyboardInterrupt
            return any_process(bool(heard))

        before = signal.signal(signal.SIGTERM, hear)
        try:
            if is_interrupted():
                raise KeyboardInterrupt
            yield is_asked
        finally:
            signal.signal(signal.SIGTERM, before or signal.SIG_DFL)
