"""Leases, which mark what a worker is running. A lease ends with its process, however that ends."""

import fcntl
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

LEASES_FOLDER = ".leases"
_POLL_SECONDS = 0.05


class Lease:
    """An open lock on the file of a lease; it ends with `release`, or with the process."""

    def __init__(self, file: IO[str], path: Path) -> None:
        self._file, self._path = file, path

    def release(self) -> None:
        """Ends the lease; its file is removed first, so that nobody waits for a file that no longer exists."""
        self._path.unlink(missing_ok=True)
        self._file.close()


def take_lease(results: str | Path, name: str) -> Lease | None:
    """Takes a lease, unless someone else holds it.

    The lock is the kernel's (`flock`): a worker that was killed, by any signal, holds none. After locking, the file is
    compared with the one that has the name now, because the last holder may just have removed it.

    Args:
        results: folder of results.
        name: name of the leased resource.

    Returns:
        The lease; None if this or another process holds it.

    Raises:
        OSError: the file cannot be written, and so nobody holds the lease.
    """
    path = Path(results) / LEASES_FOLDER / name.replace("/", "-")
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        file = path.open("a+", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
        try:
            same = os.path.samestat(os.fstat(file.fileno()), path.stat())
        except FileNotFoundError:
            same = False
        if same:
            lease = Lease(file, path)
            try:
                file.truncate(0)
                os.write(file.fileno(), f"process {os.getpid()} on {socket.gethostname()}\n".encode())
            except OSError:  # The disk has no room for a line.
                lease.release()
                raise
            return lease
        file.close()


@contextmanager
def leased(results: str | Path, name: str) -> Iterator[None]:
    """Waits for a lease and holds it during a block, so that nobody else reads or writes the resource meanwhile."""
    while (lease := take_lease(results, name)) is None:
        time.sleep(_POLL_SECONDS)
    try:
        yield
    finally:
        lease.release()


def held_leases(results: str | Path) -> dict[str, str]:
    """Returns the holder of every lease by its name; leases of processes that have ended do not count."""
    held = {}
    for path in sorted((Path(results) / LEASES_FOLDER).glob("*")):
        try:
            with path.open("r", encoding="utf-8") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    held[path.name] = file.read().strip() or "another process"
        except OSError as error:
            print(f"`{path}` cannot be read: {error}", file=sys.stderr)
    return held
