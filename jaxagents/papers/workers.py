"""Several processes of this machine that share the work of one command by the leases of the store."""

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path


def run_workers(script: Path, arguments: Sequence[str], num_workers: int) -> list[int]:
    """Runs a script in several processes and waits for them; they end when this process does, by whatever signal.

    Args:
        script: that each of them runs.
        arguments: of the script; `worker=<number>` is added.
        num_workers: how many; they share the cores evenly.

    Returns:
        Their exit codes.
    """
    cores = max(1, (os.cpu_count() or 1) // num_workers)
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), *arguments, f"worker={number}"],
            stdin=subprocess.PIPE,  # Its end tells them of the end of this process.
            stdout=sys.stderr.fileno(),
            env={**os.environ, "PJRT_NPROC": os.environ.get("PJRT_NPROC", str(cores))},
            start_new_session=True,  # Ctrl-C is heard by this process alone, which says so once.
        )
        for number in range(num_workers)
    ]
    try:
        return [process.wait() for process in processes]
    finally:
        for process in processes:
            if process.stdin is not None:
                process.stdin.close()
            process.wait()


def end_with_parent() -> None:
    """Ends this process as soon as the one that started it as a worker is gone."""

    def watch() -> None:
        # Unbuffered: a lock of `sys.stdin` that is held at the end of the interpreter is fatal.
        while os.read(0, 4096):
            pass
        os._exit(143)

    threading.Thread(target=watch, daemon=True).start()
