"""What the processes of several hosts agree on before they compute together: one result, or one refusal for all."""

import json
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

_Result = TypeVar("_Result")


def of_first_process(work: Callable[[], Any]) -> Any:
    """Lets process 0 do something alone, and tells every process what came of it.

    Args:
        work: `() -> result` that JSON can write, called on process 0 only.

    Returns:
        The result, on every process.

    Raises:
        ValueError: `work` raised an error, which process 0 raises as it was.
    """
    result = on_all_processes(lambda: work() if jax.process_index() == 0 else None)
    return result if jax.process_count() == 1 else _exchange(result)[0]


def on_all_processes(work: Callable[[], _Result]) -> _Result:
    """Lets every process do something of its own; a process that fails ends all of them.

    Without this, the others would wait for ever for the first collective operation of the one that is gone.

    Args:
        work: `() -> result` without collective operations.

    Returns:
        The result of this process.

    Raises:
        ValueError: `work` raised an error on another process; the one where it did raises it as it was.
    """
    if jax.process_count() == 1:
        return work()
    error = None
    try:
        result = work()
    except Exception as raised:  # Whatever it is, the others must hear of it.
        error = raised
    messages = _exchange(None if error is None else str(error))
    if error is not None:
        raise error
    for process, message in enumerate(messages):
        if message is not None:
            raise ValueError(f"{message} (said by process {process})")
    return result


def _exchange(value: Any) -> list[Any]:
    """Returns the values of all processes, in their order."""
    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    sizes = multihost_utils.process_allgather(np.int32(text.size))
    rows = multihost_utils.process_allgather(np.pad(text, (0, int(sizes.max()) - text.size)))
    return [json.loads(row[:size].tobytes()) for row, size in zip(rows, sizes, strict=True)]
