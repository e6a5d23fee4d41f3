"""Ctrl-C in the mains: what is said, and how a process ends that works in the background."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

INTERRUPTED = 130
"""Exit code after Ctrl-C."""


@contextmanager
def when_interrupted(tell: Callable[[], str]) -> Iterator[None]:
    """Says more than that the command was interrupted, such as how it goes on.

    Args:
        tell: returns the words, asked for after Ctrl-C.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(tell()) from error


@contextmanager
def interrupts_later() -> Iterator[None]:
    """Hears Ctrl-C at the end of the block: an import of compiled modules that is broken off crashes the process."""
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
def end_at_once() -> Iterator[None]:
    """Ends a process that was interrupted without the end of the interpreter, which crashes where a device works."""
    try:
        yield
    except SystemExit as stop:
        if stop.code != INTERRUPTED:
            raise
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(INTERRUPTED)
