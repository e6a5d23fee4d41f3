"""Ctrl-C and SIGTERM in main programs: what is printed, what a second signal does, and how to exit at once."""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

INTERRUPTED = 130
"""Exit code after Ctrl-C."""
PREEMPTED = 75
"""Exit code of a run that was saved when it was asked to end: EX_TEMPFAIL of sysexits.h, which says to try again."""
TERMINATED = 143
"""Exit code after a second SIGTERM, where the run was not saved any more."""
SWEEP_JOB = "JAXAGENTS_SWEEP_NOTES"
"""Environment variable of the jobs of a sweep: the file in which they note how they ended."""

_REMINDER_SECONDS, _ONE_SECONDS = 0.05, 0.3  # Signals within the latter count as one.
_PASSED_ON_SECONDS = 0.5  # So do two SIGTERMs: a sweep forwards signals that its jobs may have received themselves.
_heard, _polled = threading.Event(), threading.Event()
_messages: list[Callable[[], str]] = []  # Messages of `when_interrupted`, the innermost last.


class Preempted(Exception):
    """A run was ended early by a signal, after saving a checkpoint."""


class EndAtOnce(SystemExit):
    """An exit that must not wait for threads of the process, which may be blocked for ever."""


@contextmanager
def when_interrupted(tell: Callable[[], str]) -> Iterator[None]:
    """Adds to the message of an interrupt, such as how to resume.

    Args:
        tell: returns the text; called after Ctrl-C.
    """
    _messages.append(tell)
    try:
        with interrupts_of_callbacks():
            yield
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(tell()) from error
    finally:
        _messages.pop()


@contextmanager
def interrupts_of_callbacks() -> Iterator[None]:
    """Raises KeyboardInterrupt for the runtime error that it turns into within a callback of a compiled program."""
    try:
        yield
    except RuntimeError as error:
        if "KeyboardInterrupt" not in str(error):
            raise
        raise KeyboardInterrupt from error


@contextmanager
def interrupts_at_once() -> Iterator[None]:
    """Ends the process with one line at Ctrl-C within the block, such as the imports of a main program."""
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, lambda number, frame: _end(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def interrupts_later() -> Iterator[None]:
    """Handles Ctrl-C at the end of the block: interrupting an import of compiled modules crashes the process."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before or signal.SIG_DFL)
    if heard:
        raise KeyboardInterrupt


@contextmanager
def hear_interrupts(polled: bool = False) -> Iterator[Callable[[], bool]]:
    """Raises KeyboardInterrupt after Ctrl-C as Python does, and again if Python drops it.

    An exception in a callback, such as of the garbage collector, is lost; `asyncio` and some libraries catch it.

    Args:
        polled: whether the block polls for interrupts itself and needs no reminder.

    Yields:
        `() -> bool`, whether Ctrl-C was pressed, dropped or not.
    """
    # A background parent makes its children ignore Ctrl-C; and one outer block is enough.
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        with _while_set(_polled if polled else threading.Event()):
            yield _heard.is_set
        return
    window = _seconds_of_one()
    first: list[float] = []

    def interrupt(number: int, frame: Any) -> None:
        now = time.monotonic()
        if first and now - first[0] < window:
            return
        first[:] = first or [now]
        _heard.set()
        raise KeyboardInterrupt

    def remind(dropped: Any) -> None:
        if not issubclass(dropped.exc_type, KeyboardInterrupt):
            hook(dropped)
            return
        first.clear()
        if not _polled.is_set():
            timers.append(threading.Timer(_REMINDER_SECONDS, os.kill, [os.getpid(), signal.SIGINT]))
            timers[-1].daemon = True
            timers[-1].start()

    hook = sys.unraisablehook
    timers: list[threading.Timer] = []
    _heard.clear()
    signal.signal(signal.SIGINT, interrupt)
    sys.unraisablehook = remind
    try:
        with _while_set(_polled if polled else threading.Event()):
            yield _heard.is_set
    finally:
        for timer in timers:
            timer.cancel()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.unraisablehook = hook
        _heard.clear()


@contextmanager
def watch_signals() -> Iterator[Callable[[], bool]]:
    """Listens for SIGTERM until the end of the block; a second one ends the process at once.

    Ctrl-C raises KeyboardInterrupt as usual, and again when polled: Python drops an exception that is raised during
    garbage collection, and the run would go on. The same holds for one that was dropped before the block.

    Yields:
        `() -> bool`, True when it is time to save and end. With several processes, all must call it at the same points
        of the run: a signal to one reaches all.
    """
    from jaxagents.training.processes import any_process  # The command line imports this file before it needs jax.

    if threading.current_thread() is not threading.main_thread():
        yield lambda: any_process(False)  # Only the main thread may handle signals.
        return
    heard: list[float] = []

    def hear(number: int, frame: Any) -> None:
        now = time.monotonic()
        if heard and now - heard[0] >= _PASSED_ON_SECONDS:
            signal.signal(number, before or signal.SIG_DFL)  # None: the handler was not installed by Python.
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


@contextmanager
def _while_set(event: threading.Event) -> Iterator[None]:
    event.set()
    try:
        yield
    finally:
        event.clear()


@contextmanager
def end_at_second_signal() -> Iterator[None]:
    """Ends the process at once at the second Ctrl-C or SIGTERM, even if it is blocked.

    Python's handlers run in the main thread, between two bytecode instructions: while it waits for a compiled program,
    which may wait for a user's function, they are not called. Hence a separate thread reads the signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    thread = threading.Thread(target=_listen, args=(reader, _seconds_of_one()), name="signals", daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(writer)  # This ends the thread.
        thread.join()


def _listen(reader: int, window: float) -> None:
    first: float | None = None
    with open(reader, "rb", buffering=0) as numbers:
        while read := numbers.read(1):
            if read[0] not in (signal.SIGINT, signal.SIGTERM):
                continue
            now = time.monotonic()
            first = now if first is None else first
            if now - first > max(window, _ONE_SECONDS):
                _end(read[0])


def _end(number: int) -> NoReturn:
    """Ends the process; locks of the main thread may be held, so nothing is printed through Python's streams."""
    hint = ""
    with contextlib.suppress(Exception):
        hint = f"; {_messages[-1]()}" if _messages else ""
    begin = "Interrupted" if number == signal.SIGINT else "Ended by a second SIGTERM"
    with contextlib.suppress(OSError):
        os.write(2, f"{begin}{hint}.\n".encode())
    os._exit(INTERRUPTED if number == signal.SIGINT else TERMINATED)


def _seconds_of_one() -> float:
    """Returns the seconds within which signals count as one: jobs of a sweep may get them from the terminal, too."""
    return 0.5 if os.environ.get(SWEEP_JOB) else 0.0


@contextmanager
def end_at_once(quiet: bool = True) -> Iterator[None]:
    """Ends an interrupted process without the interpreter's shutdown, which crashes while a device works.

    Args:
        quiet: whether threads print nothing, until the end, of the work that an interrupt broke off, such as a partial
            save.
    """
    from jaxagents.training.full_disk import quiet_threads  # Imported only after a main program handles Ctrl-C.

    with quiet_threads() if quiet else contextlib.nullcontext():
        try:
            yield
        except SystemExit as stop:
            if stop.code != INTERRUPTED and not isinstance(stop, EndAtOnce):
                raise
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError, ValueError):
                    stream.flush()
            os._exit(int(stop.code or 0))
