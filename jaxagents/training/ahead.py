"""Compiles programs of a run in a thread before they are called; XLA compiles without Python's interpreter lock."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax

from jaxagents.training.build import Stage
from jaxagents.training.chunks import counts_left, event_periods


class Ahead(NamedTuple):
    """Compilation in a thread beside the main thread.

    Attributes:
        train: `(index) -> None`, starts to compile the training of a stage.
        follow: `(index) -> None`, starts to compile its evaluation, and the training of the stage after it: to be
            called after the first update, which does not wait for them.
        wait: `(program) -> None`, returns when a `Runner.run` or an evaluation of a stage is compiled, or if its
            compilation was not started, and raises the error of a compilation. The call that follows uses the compiled
            program.
    """

    train: Callable[[int], None]
    follow: Callable[[int], None]
    wait: Callable[[Callable[..., Any]], None]


@contextmanager
def compile_ahead(stages: Sequence[Stage]) -> Iterator[Ahead]:
    """Opens a thread that compiles programs one after the other; those not begun at the end of the block are dropped.

    With several processes, and for programs in several parts, compilation takes place at the call.

    Args:
        stages: stages of an experiment.
    """
    pool, futures = ThreadPoolExecutor(1, "compiler"), dict[Callable[..., Any], Future[Any]]()

    def begin(program: Callable[..., Any], work: Callable[..., Any], *inputs: Any) -> None:
        if program not in futures:
            futures[program] = pool.submit(work, *inputs)

    def train(index: int) -> None:
        runner = stages[index].runner
        if runner.lower is not None and jax.process_count() == 1:
            begin(runner.run, runner.lower(counts_left(stages[index], {})).compile)

    def follow(index: int) -> None:
        stage = stages[index]
        if stage.runner.run not in futures or stage.evaluate_last in futures:
            return
        evaluations = [stage.evaluate] if event_periods(stage)["evaluate"] < stage.num_updates else []
        for evaluate in (*evaluations, stage.evaluate_last):
            begin(evaluate, _compile, evaluate, stage.runner.params(stage.runner.abstract))
        for later in stages[index + 1 : index + 2]:
            if later.runner.lower is not None:
                begin(later.runner.run, _compile, later.runner, counts_left(later, {}))

    def wait(program: Callable[..., Any]) -> None:
        if program in futures:
            futures[program].result()

    try:
        yield Ahead(train, follow, wait)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _compile(program: Any, inputs: Any) -> None:
    program.lower(inputs).compile()
