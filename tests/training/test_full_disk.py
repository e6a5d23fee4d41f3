"""A full disk is one line and exit code 1, whatever threads had to say of it."""

import errno
import logging
import shutil
import subprocess
import sys
import threading
from types import SimpleNamespace

import absl.logging
import pytest

from jaxagents.training.command import errors_in_one_line
from jaxagents.training.full_disk import describe_full_disk, is_full_disk
from jaxagents.training.interrupts import EndAtOnce
from tests import ROOT

FULL = OSError(errno.ENOSPC, "No space left on device", "/a/file")


def raised_from(error, cause):
    try:
        raise error from cause
    except type(error) as raised:
        return raised


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (FULL, "No space left on device: /a/file; free some space, and start the same command again."),
        (raised_from(ValueError("Event loop is closed"), FULL), "No space left on device: /a/file; free some"),
        (ValueError("RESOURCE_EXHAUSTED: No space left on device [28]"), "No space left on device; free some space"),
        (raised_from(RuntimeError("x"), OSError(errno.EDQUOT, "`run_dir` must have room")), "`run_dir` must have room"),
    ],
)
def test_a_full_disk_is_found_behind_other_errors(error, line):
    assert describe_full_disk(error).startswith(line)


def test_other_errors_are_none(capfd):
    assert not is_full_disk(raised_from(ValueError("x"), OSError(errno.EACCES, "denied")))
    assert describe_full_disk(RuntimeError("RESOURCE_EXHAUSTED: Out of memory")) is None
    with pytest.raises(SystemExit) as ended, errors_in_one_line(show_traceback=False):
        raise ValueError("x")
    assert (ended.value.code, type(ended.value)) == (2, SystemExit)


def test_threads_leave_it_to_the_main_thread_to_say(capfd):
    def fail():
        raise FULL

    with pytest.raises(EndAtOnce) as ended, errors_in_one_line(show_traceback=False):
        thread = threading.Thread(target=fail)
        thread.start()
        thread.join()
        closed = RuntimeError("Event loop is closed")
        sys.unraisablehook(SimpleNamespace(exc_type=RuntimeError, exc_value=closed, exc_traceback=None))
        logger = absl.logging.get_absl_logger()
        logger.handle(logger.makeRecord("absl", logging.ERROR, "/x/orbax/future.py", 1, "failed", (), None))
        raise ValueError("RESOURCE_EXHAUSTED") from FULL
    assert ended.value.code == 1
    assert capfd.readouterr().err.splitlines() == [
        "Error: No space left on device: /a/file; free some space, and start the same command again."
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "overrides"),
    [
        ("size=8m,nr_inodes=16", ["logging.tensorboard=false"]),
        ("size=8m,nr_inodes=60", ["logging.tensorboard=false"]),
        ("size=400k", ["logging.tensorboard=true", "training.checkpoint_every_steps=1e9", "training.total_steps=1e9"]),
    ],
    ids=["first", "later", "events"],
)
def test_a_run_on_a_full_disk_ends_in_one_line(tmp_path, tiny, one_device, options, overrides):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("mounting a file system needs root")
    command = [sys.executable, "experiments/train.py", *tiny, "training.total_steps=3200", *overrides]
    try:
        result = subprocess.run(
            [*command, f"run_dir={disk}/run"], cwd=ROOT, env=one_device, capture_output=True, text=True, timeout=120
        )
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
    lines = result.stderr.splitlines()
    assert (result.returncode, len(lines)) == (1, 2), result.stderr
    assert lines[-1].startswith("Error: ") and ("full disk" in lines[-1] or "No space" in lines[-1])
