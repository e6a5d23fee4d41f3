"""Full disks: how they are distinguished from other errors, and reported in one line instead of one per thread."""

import errno
import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import absl.logging

_CODES = (errno.ENOSPC, errno.EDQUOT)
_WORDS = ("No space left on device", "Disk quota exceeded")
_OF_THREADS = ("orbax", "tensorstore", "asyncio", "concurrent")  # The main thread raises their errors again.


def is_full_disk(error: BaseException) -> bool:
    """Tells whether an error, or one of its causes, says that a disk has no space, inodes or quota left."""
    return any(
        getattr(one, "errno", None) in _CODES or any(words in str(one) for words in _WORDS) for one in _chain(error)
    )


def describe_full_disk(error: BaseException) -> str | None:
    """Returns a message in one line for an error that a full disk has caused; None for other errors."""
    if not is_full_disk(error):
        return None
    causes = [one for one in _chain(error) if isinstance(one, OSError) and one.errno in _CODES]
    for one in causes:
        if str(one.strerror).startswith("`"):
            return str(one.strerror)
    place = next((f": {one.filename}" for one in causes if one.filename), "")
    return f"No space left on device{place}; free some space, and start the same command again."


@contextmanager
def quiet_threads() -> Iterator[None]:
    """Keeps threads from printing errors of checkpoints, logs and full disks, which the main thread raises, too."""
    thread_hook, hook, raises = threading.excepthook, sys.unraisablehook, logging.raiseExceptions
    # Orbax logs to the first logger; errors of its tasks go to the others.
    loggers = [absl.logging.get_absl_logger(), *map(logging.getLogger, ("asyncio", "concurrent.futures"))]

    def is_other(record: logging.LogRecord) -> bool:
        return record.levelno < logging.ERROR or not any(f"/{name}/" in record.pathname for name in _OF_THREADS)

    # Tensorstore calls it with what its threads could not hand to a closed event loop.
    def tell(dropped: Any) -> None:
        if not (dropped.exc_type is RuntimeError and str(dropped.exc_value) == "Event loop is closed"):
            hook(dropped)

    def tell_of_thread(arguments: Any) -> None:
        if arguments.exc_value is None or not is_full_disk(arguments.exc_value):
            thread_hook(arguments)

    for logger in loggers:
        logger.addFilter(is_other)
    threading.excepthook, sys.unraisablehook, logging.raiseExceptions = tell_of_thread, tell, False
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(is_other)
        threading.excepthook, sys.unraisablehook, logging.raiseExceptions = thread_hook, hook, raises


def _chain(error: BaseException) -> list[BaseException]:
    """Returns an error and its causes."""
    found: list[BaseException] = []
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop(0)
        if one is not None and one not in found:
            found.append(one)
            waiting += [one.__cause__, one.__context__]
    return found
