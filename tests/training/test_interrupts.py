"""A second signal ends a process that waits for what no handler of Python can break off; none is lost at the start."""

import contextlib
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jaxagents.training.interrupts import hear_interrupts, watch_signals

# The main thread waits for ever in a function of C, as for a compiled program.
WAITS = """
import ctypes, signal
from jaxagents.training.interrupts import end_at_second_signal, hear_interrupts, when_interrupted
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGTERM, lambda number, frame: None)
mutex = ctypes.create_string_buffer(256)
with end_at_second_signal(), hear_interrupts(), when_interrupted(lambda: "this goes on"):
    ctypes.CDLL(None).pthread_mutex_lock(mutex)
    print("waits", flush=True)
    ctypes.CDLL(None).pthread_mutex_lock(mutex)
"""


@pytest.mark.parametrize(
    ("number", "code", "line"),
    [
        (signal.SIGINT, 130, "Interrupted; this goes on.\n"),
        (signal.SIGTERM, 143, "Ended by a second SIGTERM; this goes on.\n"),
    ],
)
def test_the_second_signal_ends_what_waits_for_ever(number, code, line):
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-c", WAITS], cwd=Path(__file__).parents[2], **options)
    try:
        assert process.stdout.readline() == "waits\n"
        time.sleep(0.3)
        process.send_signal(number)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        process.send_signal(number)
        assert (process.wait(20), process.stderr.read()) == (code, line)
    finally:
        process.kill()


@pytest.fixture
def heard():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # A shell may have its commands ignore it.
    yield
    signal.signal(signal.SIGINT, before)


class Dropping:
    """Python drops what is raised when it collects this."""

    def __del__(self):
        signal.raise_signal(signal.SIGINT)


def test_ctrl_c_that_python_drops_is_raised_again(heard):
    with pytest.raises(KeyboardInterrupt), hear_interrupts():
        Dropping()
        time.sleep(5)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_run_does_not_begin_after_ctrl_c_that_a_library_caught(heard):
    began = False
    with pytest.raises(KeyboardInterrupt), hear_interrupts():
        with contextlib.suppress(BaseException):  # As some imports do.
            signal.raise_signal(signal.SIGINT)
        with watch_signals():
            began = True
    assert not began
