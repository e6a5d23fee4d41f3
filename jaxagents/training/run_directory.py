"""Run directories: the config that a directory belongs to, and the lock of the process that writes to it."""

import datetime
import errno
import fcntl
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from jaxagents.data.files import write_whole
from jaxagents.training.config import changed_keys, config_hash, run_hash

CONFIG_FILE = "config.yaml"
LOCK_FILE = ".lock"
_MOST_KEYS = 5  # Number of keys that an error names.


def load_config(path: str | Path) -> dict[str, Any]:
    """Reads a resolved config.

    Raises:
        ValueError: the file is not a config, for example because it was truncated or written in another encoding.
    """
    try:
        config: Any = OmegaConf.to_container(OmegaConf.load(path))
        found = f"a {type(config).__name__} of {len(config)} items"
    except (yaml.YAMLError, UnicodeError, OmegaConfBaseException) as error:
        config, found = None, " ".join(str(error).split())
    if not isinstance(config, dict) or not config:
        raise ValueError(
            f"`{path}` must be the config that a run wrote, got {found}; the metadata of the run's checkpoints have a "
            "copy under `config`, and resume=<run directory> writes it anew."
        )
    return config


def save_config(path: str | Path, config: Mapping[str, Any]) -> None:
    """Writes a resolved config as YAML, atomically."""
    write_whole(Path(path), OmegaConf.to_yaml(OmegaConf.create(dict(config))))


@contextmanager
def locked(run_dir: str | Path) -> Iterator[None]:
    """Keeps other processes from writing to a run directory; the lock also ends if the process is killed.

    Args:
        run_dir: directory of the run; it is created if it is missing.

    Raises:
        ValueError: another process holds the lock.
    """
    path = Path(run_dir) / LOCK_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise ValueError(
                f"`run_dir` must be free, got {run_dir}, to which {file.read().strip() or 'another process'} writes; "
                "try another `run_dir`, or wait until that one has ended."
            ) from None
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
                raise
            print(f"{run_dir} cannot be locked: start no second process in it.", file=sys.stderr)
        file.truncate(0)
        now = datetime.datetime.now().isoformat(" ", "seconds")
        file.write(f"process {os.getpid()} on {socket.gethostname()}, started {now},")
        file.flush()
        yield


def _read_claim(path: Path) -> dict[str, Any] | None:
    """Returns the config that a run directory holds; None if it is missing, or damaged, which is reported."""
    try:
        return load_config(path) if path.exists() else None
    except ValueError:
        print(f"{path} is damaged, and is written anew.", file=sys.stderr)
        return None


def claim(run_dir: str | Path, resolved: Mapping[str, Any]) -> None:
    """Writes the resolved config of a run, and refuses a directory with checkpoints of another config.

    Lengths and periods may differ, in which case the run is resumed, see `config.run_hash`.

    Args:
        run_dir: directory of the run.
        resolved: resolved config of the run.

    Raises:
        ValueError: the configs differ; names the keys.
    """
    run_dir = Path(run_dir)
    path = run_dir / CONFIG_FILE
    before = _read_claim(path)
    if before is not None and config_hash(before) == config_hash(resolved):
        return
    has_checkpoints = any(run_dir.glob("checkpoints/**/*.digest.json"))
    if before is not None and has_checkpoints and run_hash(before) != run_hash(resolved):
        changed = changed_keys(before, resolved)
        more = f" and {len(changed) - _MOST_KEYS} more" if len(changed) > _MOST_KEYS else ""
        raise ValueError(
            f"`run_dir` must be new or of the same config, got {run_dir}, which differs in "
            f"{', '.join(changed[:_MOST_KEYS])}{more}; try another `run_dir`, or set these back."
        )
    run_dir.mkdir(parents=True, exist_ok=True)
    save_config(path, resolved)
