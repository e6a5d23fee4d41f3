"""Checkpoints that are saved in the background and trusted only after their digest was verified.

A step is a folder written by orbax plus `<step>.digest.json` beside it (see `digests`). A kill at any moment
leaves every older step as it was, and at worst a newest one without a digest, which counts as never saved. What a
policy acts with is an item of its own, beside that of everything else, so that it can be read alone.
"""

import errno
import json
import logging
import shutil
import tempfile
import threading
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax

from jaxagents.training.checkpoints.digests import (
    TreeSpec,
    check_digest,
    compare_trees,
    describe_tree,
    digest_path,
    write_digest,
)
from jaxagents.training.checkpoints.snapshots import describe_target, restore_snapshot, take_snapshot
from jaxagents.training.full_disk import is_full_disk
from jaxagents.training.interrupts import interrupts_later
from jaxagents.training.processes import of_first_process
from jaxagents.types import PyTree

_ACTING, _OTHERS = "acting", "state"
_PROBE_BYTES = 2**16


class Restored(NamedTuple):
    """What `Checkpoints.restore` returns.

    Attributes:
        step: number of the step that was restored.
        state: pytree with the structure, shardings and leaf kinds of the abstract state.
        metadata: dict that was saved with it.
    """

    step: int
    state: PyTree
    metadata: dict[str, Any]


class Checkpoints(NamedTuple):
    """A folder of checkpoints; with several processes, every process calls every function, in the same order.

    Attributes:
        save: `(step, state, metadata, after=None, acting=()) -> None`, see `open_checkpoints`.
        restore: `(abstract_state, step=None, on_fallback=warnings.warn, acting=None) -> Restored | None`; None when
            there is no checkpoint at all.
        latest_metadata: `(acting=False) -> dict | None`, metadata of the newest step whose files hold, or with `acting`
            those that acting needs.
        steps: `() -> list of int`, ascending, the committed steps, whether they hold or not.
        under_way: `() -> Pending | None`, the last save, until the next call of `save`, `wait` or `restore`.
        wait: `() -> None`, returns when the last save is committed and has its digest.
        close: `() -> None`, waits and frees the threads. Call it in a `finally`, or use `contextlib.closing`: a process
            that ends without it loses the save under way.
    """

    save: Callable[..., None]
    restore: Callable[..., Restored | None]
    latest_metadata: Callable[..., dict[str, Any] | None]
    steps: Callable[[], list[int]]
    under_way: Callable[[], "Pending | None"]
    wait: Callable[[], None]
    close: Callable[[], None]


@dataclass(frozen=True)
class Pending:
    """A save under way: the thread that writes its digest, whether it did, and what went wrong in it."""

    step: int
    thread: threading.Thread | None = None
    holds: threading.Event = field(default_factory=threading.Event)
    errors: list[BaseException] = field(default_factory=list)


@dataclass(frozen=True)
class _Folder:
    directory: Path
    keep: int
    read_only: bool
    pending: list[Pending] = field(default_factory=list)  # at most one
    current: list[int] = field(default_factory=list)  # at most one: the step last saved or restored

    @cached_property
    def manager(self) -> Any:
        """Returns the manager of orbax, which takes long to import and is not needed before the first checkpoint."""
        ocp = _orbax()
        prefix = "-".join(self.directory.parts[-3:])  # Folders open at once must not meet at each other's barriers.
        multiprocessing = ocp.options.MultiprocessingOptions(primary_host=0, barrier_sync_key_prefix=prefix)
        with _errors_only() if self.read_only else nullcontext():  # orbax warns that this is what happens.
            options = ocp.CheckpointManagerOptions(
                create=not self.read_only,
                read_only=self.read_only,
                cleanup_tmp_directories=not self.read_only,
                multiprocessing_options=multiprocessing,
            )
            return ocp.CheckpointManager(self.directory, options=options)


@contextmanager
def _errors_only() -> Iterator[None]:
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _orbax() -> Any:
    with interrupts_later():
        import orbax.checkpoint as ocp
    return ocp


def open_checkpoints(directory: str | Path, keep: int = 3, read_only: bool = False) -> Checkpoints:
    """Opens a folder of checkpoints, such as `<run_dir>/checkpoints/last`.

    `save` copies the state to the host and returns; writing goes on in the background, so the caller may donate the
    state at once. An error of the background surfaces at the next `save`, `wait` or `close`. Steps must rise;
    saving the step that was last saved or restored does nothing. Steps on the disk at or above the saved one belong to
    an abandoned line (damaged, or resumed from before them) and are deleted. `after` is another folder, whose save
    under way must hold first: a kill at any moment leaves both saves, or not this one. `acting` are the paths of the
    leaves that a policy acts with (`jax.tree_util.keystr`).
    `restore` verifies the newest step and falls back to older ones; `on_fallback` is called with each step that is
    passed over; where the only step lacks its digest, the very first save was cut off, and there is nothing to restore.
    Given `acting`, the paths that were saved as such, it verifies and reads these leaves alone, not a byte of the
    others, which stay as they are in the abstract state.
    A leaf of the abstract state with a sharding is restored to it, on any number of devices; one without, as an
    array that is not bound to a device. With several processes, leaves that are no global array are those of process 0.

    Args:
        directory: local or shared folder, created if missing.
        keep: number of newest verified steps to keep; older ones are deleted only when a newer one has its digest.
        read_only: open the folder of a run that may be training: nothing is created, cleaned up or saved.

    Returns:
        The functions of the folder.

    Raises:
        ValueError: `keep` is less than 1, or `directory` is a URL, or is missing and `read_only`.
    """
    if keep < 1:
        raise ValueError(f"`keep` must be at least 1, got {keep}; try 3.")
    if "://" in str(directory):
        raise ValueError(f"`directory` must be a path, got {directory}; try mounting the bucket, as with gcsfuse.")
    directory = Path(directory).resolve()
    if read_only and not directory.is_dir():
        raise ValueError(f"`directory` must hold checkpoints, got {directory}; try `<run_dir>/checkpoints/last`.")
    if not read_only and jax.process_index() == 0:
        directory.mkdir(parents=True, exist_ok=True)
    folder = _Folder(directory=directory, keep=keep, read_only=read_only)
    return Checkpoints(
        save=_refuse_save if read_only else partial(_save, folder),
        restore=partial(_restore, folder),
        latest_metadata=partial(_latest_metadata, folder),
        steps=partial(_list_steps, directory),
        under_way=lambda: folder.pending[-1] if folder.pending else None,
        wait=partial(_wait, folder),
        close=partial(_close, folder),
    )


def _save(
    folder: _Folder,
    step: int,
    state: PyTree,
    metadata: dict[str, Any],
    after: Checkpoints | None = None,
    acting: Collection[str] = (),
) -> None:
    _wait(folder)
    earlier = None if after is None else after.under_way()
    step = int(step)
    if folder.current == [step]:
        return
    if folder.current and step < folder.current[0]:
        raise ValueError(f"`step` must rise, got {step} after {folder.current[0]}; try restore(step=...) to go back.")
    try:
        json.dumps(metadata)
    except TypeError as error:
        raise ValueError(f"`metadata` must be JSON, got {error}; try int(), float() or .tolist().") from error
    items = _by_item(describe_tree(state), acting)
    ocp = _orbax()
    content = {name: ocp.args.StandardSave(leaves) for name, leaves in _by_item(take_snapshot(state), acting).items()}
    arguments = ocp.args.Composite(metadata=ocp.args.JsonSave(metadata), **content)
    try:
        for abandoned in [old for old in folder.manager.all_steps() if old >= step]:
            if jax.process_index() == 0:
                digest_path(folder.directory, abandoned).unlink(missing_ok=True)
            folder.manager.delete(abandoned)
        folder.manager.save(step, args=arguments, force=True)
    except Exception as error:
        _raise_if_full(error, folder, step)
        raise
    folder.current[:] = [step]
    pending = Pending(step=step)
    if jax.process_index() == 0:
        thread = threading.Thread(target=_finish, args=(folder, pending, items, earlier), name=f"digest_{step}")
        pending = replace(pending, thread=thread)
        thread.start()
    folder.pending.append(pending)


def _finish(folder: _Folder, pending: Pending, items: dict[str, TreeSpec], earlier: Pending | None) -> None:
    try:
        folder.manager.wait_until_finished()
    except Exception:  # orbax raises it again in the thread that waits
        return
    if earlier is not None:
        if earlier.thread is not None:
            earlier.thread.join()
        if not earlier.holds.is_set():
            return  # Its own folder raises why.
    try:
        write_digest(folder.directory, pending.step, items)
        pending.holds.set()
        _delete_old(folder)
    except Exception as error:
        pending.errors.append(error)


def _delete_old(folder: _Folder) -> None:
    steps = _list_steps(folder.directory)
    kept = [step for step in steps if digest_path(folder.directory, step).exists()][-folder.keep :]
    for step in set(steps) - set(kept):
        # The digest goes first: half a folder must not look like a damaged step.
        digest_path(folder.directory, step).unlink(missing_ok=True)
        shutil.rmtree(folder.directory / str(step))


def _wait(folder: _Folder) -> None:
    pending = folder.pending.pop() if folder.pending else None
    if pending is None:
        return
    if pending.thread is not None:
        pending.thread.join()
    try:
        folder.manager.wait_until_finished()
        if pending.errors:
            raise pending.errors[0]
    except Exception as error:
        folder.current.clear()
        _raise_if_full(error, folder, pending.step)
        raise


def _close(folder: _Folder) -> None:
    try:
        _wait(folder)
    finally:
        if "manager" in vars(folder):
            folder.manager.close()


def _refuse_save(step: int, state: PyTree, metadata: dict[str, Any], **options: Any) -> None:
    raise ValueError("`read_only` must be False to save, got True; try open_checkpoints(directory).")


def _raise_if_full(error: Exception, folder: _Folder, step: int) -> None:
    """Turns a full disk, however orbax wraps it, into an OSError that says so; removes what was half written."""
    if not is_full_disk(error) and not _has_no_room(folder.directory):
        return
    if jax.process_index() == 0:
        for temporary in folder.directory.glob(f"{step}.*tmp*"):
            shutil.rmtree(temporary, ignore_errors=True) if temporary.is_dir() else temporary.unlink()
    kept = [old for old in _list_steps(folder.directory) if old != step]
    rescue = f"the checkpoint of step {kept[-1]} is kept" if kept else "there is no earlier checkpoint"
    message = f"`run_dir` must have free space for the checkpoint of step {step}, got a full disk in {folder.directory}"
    message = f"{message}; {rescue}; try freeing space or a smaller `keep`, then resume."
    raise OSError(errno.ENOSPC, message) from error


def _has_no_room(directory: Path) -> bool:
    """Tells whether a folder and a small file cannot be made: orbax may name what came of a full disk, not the disk."""
    try:
        with tempfile.TemporaryDirectory(dir=directory, prefix=".room") as folder:
            (Path(folder) / "file").write_bytes(bytes(_PROBE_BYTES))
    except OSError as error:
        return is_full_disk(error)
    return False


def _restore(
    folder: _Folder,
    abstract_state: PyTree,
    step: int | None = None,
    on_fallback: Callable[[str], Any] = warnings.warn,
    acting: Collection[str] | None = None,
) -> Restored | None:
    _wait(folder)
    wanted, target = describe_tree(abstract_state), describe_target(abstract_state)
    if acting is not None:
        wanted, target = ({name: tree[name] for name in acting if name in tree} for tree in (wanted, target))
    found = _choose(folder, wanted, step, on_fallback, acting=acting is not None)
    if found is None:
        return None
    chosen, own_item = found
    ocp = _orbax()
    arguments = {name: ocp.args.StandardRestore(part) for name, part in _by_item(target, own_item).items() if part}
    saved = folder.manager.restore(chosen, args=ocp.args.Composite(**arguments)) if arguments else {}
    snapshot = {name: leaf for item in arguments for name, leaf in saved[item].items()}
    state = restore_snapshot(snapshot, abstract_state, only=acting)
    if acting is None:
        folder.current[:] = [chosen]
    return Restored(step=chosen, state=state, metadata=_read_metadata(folder.directory, chosen))


def _by_item(tree: dict[str, Any], acting: Collection[str]) -> dict[str, dict[str, Any]]:
    """Splits leaves by path into the items that they are saved in; there is always one."""
    own = {name: leaf for name, leaf in tree.items() if name in acting}
    others = {name: leaf for name, leaf in tree.items() if name not in acting}
    return {name: leaves for name, leaves in ((_ACTING, own), (_OTHERS, others)) if leaves} or {_OTHERS: {}}


def _latest_metadata(folder: _Folder, acting: bool = False) -> dict[str, Any] | None:
    _wait(folder)
    found = _choose(folder, tree=None, step=None, on_fallback=lambda message: None, acting=acting)
    return None if found is None else _read_metadata(folder.directory, found[0])


def _choose(
    folder: _Folder, tree: TreeSpec | None, step: int | None, on_fallback: Callable[[str], Any], *, acting: bool
) -> list[Any] | None:
    """Process 0 verifies, and every process gets the step and what acts in it, or raises the same error."""
    return of_first_process(lambda: _newest_good_step(folder.directory, tree, step, on_fallback, acting))


def _newest_good_step(
    directory: Path, tree: TreeSpec | None, step: int | None, on_fallback: Callable[[str], Any], acting: bool
) -> list[Any] | None:
    steps = _list_steps(directory)
    if step is not None and step not in steps:
        raise ValueError(f"`step` must be a checkpoint in {directory}, got {step}; try one of {steps}.")
    reasons = []
    for candidate in reversed(steps) if step is None else [step]:
        reason, items = check_digest(directory, candidate, unread=_OTHERS if acting else None)
        own = items.get(_ACTING, {})
        if reason is None and tree is not None:
            reason = compare_trees(own if acting else own | items.get(_OTHERS, {}), tree)
        if reason is None:
            return [candidate, list(own)]
        reasons.append(f"step {candidate}: {reason}")
        if step is None:
            message = f"The checkpoint of step {candidate} in {directory} is not used: {reason}"
            on_fallback(f"{message}; looking for an older one.")
    first_save_was_cut_off = step is None and len(steps) == 1 and not digest_path(directory, steps[0]).exists()
    if not steps or first_save_was_cut_off:
        return None
    hint = ""
    if any(" leaf " in reason for reason in reasons):
        hint = (
            " A run of an earlier jaxagents cannot be resumed: evaluate it (evaluate.py path=<run directory>), or "
            "begin a run with its parameters (start_from=<run directory>)."
        )
    raise ValueError(
        f"`checkpoint` must be whole and made with the same configuration, got {'; '.join(reasons)} (in {directory}); "
        f"try the configuration of the run, an older `step`, or another `run_dir` to start from scratch.{hint}"
    )


def _read_metadata(directory: Path, step: int) -> dict[str, Any]:
    path = directory / str(step) / "metadata" / "metadata"
    try:
        metadata = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"`{path}` must hold JSON, got {error}; try an older `step`, or another `run_dir`.") from error
    if not isinstance(metadata, dict):
        raise ValueError(f"`{path}` must hold a JSON object, got {type(metadata).__name__}; try another `run_dir`.")
    return metadata


def _list_steps(directory: Path) -> list[int]:
    return sorted(int(path.name) for path in directory.iterdir() if path.name.isdecimal() and path.is_dir())
