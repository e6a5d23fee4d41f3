"""Several processes that share the work of one command, by the leases of the store: on this machine, or by Ray."""

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

EXECUTORS = ("processes", "ray")


def run_workers(script: Path, arguments: Sequence[str], num_workers: int, *, executor: str = "processes") -> list[int]:
    """Runs a script in several processes and waits for them; they end when this process does, by whatever signal.

    By Ray they run on the cluster of `RAY_ADDRESS`, or on this machine where that is not set. All nodes must have the
    code and see the folder of results, with file locks (NFS 4 has them).

    Args:
        script: that each of them runs.
        arguments: of the script; `worker=<number>` is added.
        num_workers: how many; they share the cores evenly.
        executor: "processes" of this machine, or "ray".

    Returns:
        Their exit codes.

    Raises:
        ValueError: another executor, or Ray is not installed.
    """
    if executor not in EXECUTORS:
        raise ValueError(f"`executor` must be {' or '.join(EXECUTORS)}, got {executor!r}.")
    if executor == "ray":
        return _run_on_ray(script, arguments, num_workers)
    cores = max(1, (os.cpu_count() or 1) // num_workers)
    processes = [
        subprocess.Popen(
            _command(script, arguments, number),
            stdin=subprocess.PIPE,  # Its end tells them of the end of this process.
            stdout=sys.stderr.fileno(),
            env={**os.environ, **_environment(cores)},
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


def _run_on_ray(script: Path, arguments: Sequence[str], num_workers: int) -> list[int]:
    try:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Reports nothing to anyone.
        import ray
    except ImportError as error:
        raise ValueError(
            "`executor` must be processes where Ray is missing, got ray; try pip install -e '.[ray]'."
        ) from error
    cluster = os.environ.get("RAY_ADDRESS")
    ray.init(**({"address": cluster} if cluster else {"include_dashboard": False, "object_store_memory": 100 * 2**20}))
    try:
        cores = max(1, min(int(node["Resources"].get("CPU", 1)) for node in ray.nodes() if node["Alive"]))
        cores = max(1, min(cores, int(ray.cluster_resources()["CPU"]) // num_workers))
        gpus = ray.cluster_resources().get("GPU", 0.0) / num_workers

        # Runs that are lost are missing, and the next command runs them: a task is not tried again.
        @ray.remote(num_cpus=cores, num_gpus=gpus if gpus < 1.0 else int(gpus), max_retries=0)
        def run(command: list[str], environment: dict[str, str], folder: str) -> int:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,  # Ends with the process of Ray, as that does with the command.
                stdout=sys.stderr.fileno(),
                env={**os.environ, **environment},
                cwd=folder,
            )
            return process.wait()

        given = (_environment(cores), os.getcwd())
        return ray.get([run.remote(_command(script, arguments, number), *given) for number in range(num_workers)])
    finally:
        ray.shutdown()


def _command(script: Path, arguments: Sequence[str], number: int) -> list[str]:
    return [sys.executable, str(script), *arguments, f"worker={number}"]


def _environment(cores: int) -> dict[str, str]:
    """Returns what a worker needs to keep to its share of the cores, and to find the code where this process does."""
    path = {"PYTHONPATH": os.environ["PYTHONPATH"]} if "PYTHONPATH" in os.environ else {}
    return {"PJRT_NPROC": os.environ.get("PJRT_NPROC", str(cores))} | path


def end_with_parent() -> None:
    """Ends this process as soon as the one that started it as a worker is gone."""

    def watch() -> None:
        # Unbuffered: a lock of `sys.stdin` that is held at the end of the interpreter is fatal.
        while os.read(0, 4096):
            pass
        os._exit(143)

    threading.Thread(target=watch, daemon=True).start()
