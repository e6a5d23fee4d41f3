"""The signal before a machine is taken away: the run saves a checkpoint and ends with an exit code of its own."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

EXIT_CODE = 75
"""Of a run that was asked to end and can go on: EX_TEMPFAIL of sysexits.h, which says to try again."""


class Preempted(Exception):
    """A run ended before its time, at somebody else's request, after a checkpoint."""


@contextmanager
def watch_signals() -> Iterator[Callable[[], bool]]:
    """Listens for SIGTERM until the end of the block; a second one ends the process at once.

    Ctrl-C raises KeyboardInterrupt as ever, and once more when asked: Python drops what is raised while it collects
    garbage, which would leave the run going.

    Yields:
        `() -> bool`, True when it is time to save and end. With several processes, all must ask at the same moments of
        the run: the signal of one is heard by all.
    """
    from jaxagents.training.processes import any_process  # The command line reads this file before it needs jax.

    if threading.current_thread() is not threading.main_thread():
        yield lambda: any_process(False)  # Only the main thread may listen.
        return
    heard, interrupted = threading.Event(), threading.Event()

    def hear(number: int, frame: Any) -> None:
        heard.set()
        signal.signal(number, before or signal.SIG_DFL)  # None: it was not Python that listened.

    def interrupt(number: int, frame: Any) -> NoReturn:
        interrupted.set()
        raise KeyboardInterrupt

    def is_asked() -> bool:
        if interrupted.is_set():
            raise KeyboardInterrupt
        return any_process(heard.is_set())

    def tell(dropped: Any) -> None:
        if not issubclass(dropped.exc_type, KeyboardInterrupt):
            hook(dropped)

    hook, before = sys.unraisablehook, signal.signal(signal.SIGTERM, hear)
    # A parent that works in the background has its children ignore Ctrl-C.
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    try:
        if is_default:
            signal.signal(signal.SIGINT, interrupt)
            sys.unraisablehook = tell
        yield is_asked
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)
        if is_default:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            sys.unraisablehook = hook
