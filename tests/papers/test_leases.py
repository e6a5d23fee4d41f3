"""Leases: who has one keeps others out, until it ends, however that is."""

import errno
import signal
import subprocess
import sys

import pytest

from jaxagents.papers.leases import held_leases, leased, take_lease

HOLD = """
import sys, time
from jaxagents.papers.leases import take_lease
lease = take_lease(sys.argv[1], "a/run")
print("taken", flush=True)
time.sleep(600)
"""


def test_a_lease_keeps_others_out_until_it_is_released(tmp_path):
    lease = take_lease(tmp_path, "a/run")
    assert lease is not None and take_lease(tmp_path, "a/run") is None
    another = take_lease(tmp_path, "another")
    assert list(held_leases(tmp_path)) == ["a-run", "another"]
    lease.release()
    another.release()
    with leased(tmp_path, "a/run"):
        assert take_lease(tmp_path, "a/run") is None
    assert "a-run" not in held_leases(tmp_path)


def test_the_lease_of_a_killed_process_is_free_at_once(tmp_path):
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "taken\n"
        assert take_lease(tmp_path, "a/run") is None
        assert held_leases(tmp_path)["a-run"].startswith(f"process {process.pid} on ")
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert held_leases(tmp_path) == {}
    lease = take_lease(tmp_path, "a/run")
    assert lease is not None and list(held_leases(tmp_path)) == ["a-run"]


def test_a_file_that_its_holder_has_just_removed_is_no_lease(tmp_path):
    first = take_lease(tmp_path, "x")
    path = tmp_path / ".leases" / "x"
    path.unlink()  # What a release does first, while another process may have opened the file.
    second = take_lease(tmp_path, "x")
    assert second is not None and take_lease(tmp_path, "x") is None
    first._file.close()
    assert take_lease(tmp_path, "x") is None
    second.release()


def test_a_full_disk_leaves_nobody_with_the_lease(tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.write", full)
        with pytest.raises(OSError, match="No space left on device"):
            take_lease(tmp_path, "x")
    assert held_leases(tmp_path) == {} and list((tmp_path / ".leases").iterdir()) == []
    assert take_lease(tmp_path, "x") is not None
