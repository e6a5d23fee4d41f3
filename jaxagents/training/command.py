"""Main functions of `experiments/`: errors in one line, and sweeps in which every job is a separate process."""

import difflib
import gc
import json
import logging
import os
import select
import shlex
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import wraps
from pathlib import Path
from typing import Any

import hydra
import yaml
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, InstantiationException, MissingConfigException, OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from jaxagents.training.arguments import (
    name_folders,
    parse_overrides,
    quote_lists,
    quote_names,
    require_one_choice,
    require_options,
    require_values,
)
from jaxagents.training.composition import (
    ARGUMENTS_FILE,
    folders_of,
    misfits_explained,
    register_resolvers,
    resume_arguments,
)
from jaxagents.training.full_disk import describe_full_disk, quiet_threads
from jaxagents.training.interrupts import (
    INTERRUPTED,
    PREEMPTED,
    SWEEP_JOB,
    EndAtOnce,
    Preempted,
    end_at_once,
    end_at_second_signal,
    hear_interrupts,
    interrupts_later,
    interrupts_of_callbacks,
)
from jaxagents.training.methods import needs_explained, require_methods
from jaxagents.training.sweep_jobs import TRACEBACK, close_sweep, end_with_sweep, ending_at_sigterm, run_process
from jaxagents.training.trust import trust_argument, trusting
from jaxagents.training.yaml_files import describe_yaml, require_readable

# A suite that is not installed is an error of the user, too.
_MISTAKES = (
    *(ValueError, ImportError, HydraException, OmegaConfBaseException, yaml.YAMLError, OverflowError),
    *(FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError, PermissionError),
)
_FAILURES = (FloatingPointError, OSError)  # A run that diverged, a full disk.
_MOST_NAMES = 12  # Names that an error lists if none is similar.
_ASIDE = ("hydra", "when_quick", "warm_start", "stages")  # Sections whose settings are not settings of the run.
# The names here of settings of TRL and verl.
_OF_OTHERS = {
    "beta": "learner.reference=true '+learner.regularizers.kl={_target_: jaxagents.losses.regularizers.kl_k3, ...}'",
    "epsilon": "loss.clip_epsilon",
    "kl_coef": "learner.reference=true '+learner.regularizers.kl={_target_: jaxagents.losses.regularizers.kl_k3, ...}'",
    "lr": "optimizer.learning_rate",
    "max_completion_length": "policy.thought_tokens or policy.action_tokens",
    "num_generations": "collector.group_size",
    "num_iterations": "learner.num_epochs",
    "reward_funcs": "collector=rewarded 'collector.reward={_target_: my_rewards.score, _partial_: true}'",
}
# Settings that another option of their section has.
_OF_OPTIONS = {"collector.reward": _OF_OTHERS["reward_funcs"]}
# Functions that errors suggest to callers, and what a user of the command line uses instead.
_IN_ARGUMENTS = {"`make_twin_q`": "algorithm=sac, td3, or ppo", "`make_cem`": "evaluation=cem"}


def command(
    config_name: str,
    *,
    lists: Sequence[str] = (),
    options: Sequence[str] = (),
    trains: bool = False,
) -> Callable[[Callable[[DictConfig], None]], Callable[[], None]]:
    """Turns a function of the composed config into the main function of a script in `experiments/`.

    Errors that a user can fix are printed as one line on stderr, with exit code 2 for an error in the arguments, 1 for
    a run that failed, 130 after Ctrl-C, and 75 after SIGTERM, in which case the run was saved and can be resumed.
    `HYDRA_FULL_ERROR=1` shows the traceback instead. With `-m`, every combination is a separate process: no setting of
    one affects the next, one that fails does not stop the others, and the exit code is 1 if any of them failed. Options
    may name modules in the current folder.

    Args:
        config_name: name of the file in `configs`, beside the folder of the script.
        lists: options that are always lists, see `quote_lists`.
        options: options such as "--list" that the script itself handles; they are suggested for similar unknown
            options.
        trains: whether `resume=<run directory>` stands for the arguments of that run, see `resume_arguments`.

    Returns:
        The decorator.
    """

    def decorate(task: Callable[[DictConfig], None]) -> Callable[[], None]:
        show_traceback = os.environ.get(TRACEBACK) == "1"
        # Determined here, since a launcher sends the code to its processes without the name of its file.
        script = Path(task.__code__.co_filename).absolute()

        @wraps(task)
        def run_job(config: DictConfig) -> float | None:
            if HydraConfig.get().mode == RunMode.MULTIRUN:
                return run_process(script, show_traceback)
            with errors_in_one_line(show_traceback):
                with interrupts_later():
                    import jax  # noqa: F401
                explained = needs_explained(HydraConfig.get().overrides.task, *folders_of(sys.argv[1:]), configs)
                with explained, trusting(OmegaConf.select(config, "trust")):
                    task(config)
            return None

        register_resolvers()
        configs = script.parents[1] / "configs"
        start = hydra.main(version_base="1.3", config_path=str(configs), config_name=config_name)(run_job)

        @wraps(task)
        @_until_unread()
        @end_at_once(quiet=not show_traceback)
        @end_at_second_signal()
        @hear_interrupts()
        def main() -> None:
            # Imports and tracing make many long-lived objects; scanning them takes a tenth of the time.
            gc.set_threshold(50_000, 20, 100)
            end_with_sweep()
            with errors_in_one_line(show_traceback):
                require_options(sys.argv[1:], options)
                require_values(sys.argv[1:])
                require_one_choice(sys.argv[1:], configs)
                require_readable(sys.argv[1:])
                arguments = resume_arguments(sys.argv[1:]) if trains else sys.argv[1:]
                folders: list[str | Path] = [*folders_of(arguments), configs]
                require_methods(arguments, *folders)
                sys.argv[1:] = name_folders(quote_names(quote_lists(arguments, lists)))
            if os.getcwd() not in sys.path:  # For a user's modules that options name.
                sys.path.append(os.getcwd())
            if not show_traceback:
                os.environ[TRACEBACK] = "1"  # Hydra raises errors instead of printing them.
            # A launcher may run jobs in separate processes: they record in a file how they ended.
            ending = ending_at_sigterm(sys.argv)
            with ending, tempfile.NamedTemporaryFile(mode="r", encoding="utf-8") as notes:
                os.environ[SWEEP_JOB] = notes.name
                try:
                    with errors_in_one_line(show_traceback), misfits_explained(config_name, arguments, *folders):
                        start()
                finally:
                    del os.environ[SWEEP_JOB]
                    if not show_traceback:
                        del os.environ[TRACEBACK]
                jobs = [json.loads(line) for line in notes]
            if jobs:
                close_sweep(jobs, compare=main_command("compare") if trains else None)

        return main

    return decorate


@contextmanager
def errors_in_one_line(show_traceback: bool) -> Iterator[None]:
    """Ends the process with a line on stderr in place of a traceback, if the user can fix what went wrong.

    Args:
        show_traceback: whether to show the traceback as usual.
    """
    # These loggers print errors reported below: a function that a module lacks, and host errors within a program.
    loggers = [logging.getLogger(name) for name in ("hydra.utils", "jax._src.callback")]
    logged: list[Any] = []

    def hear(record: logging.LogRecord) -> bool:
        logged.append(record.exc_info and record.exc_info[1])
        return show_traceback

    for logger in loggers:
        logger.addFilter(hear)
    try:
        with nullcontext() if show_traceback else _full_disk_in_one_line(), interrupts_of_callbacks():
            yield
    except KeyboardInterrupt as error:
        if show_traceback:
            raise
        _stop(f"Interrupted; {error}." if str(error) else "Interrupted.", INTERRUPTED)
    except Preempted as ended:
        _stop(str(ended), PREEMPTED)
    except (*_MISTAKES, *_FAILURES) as error:
        if show_traceback or (isinstance(error, BrokenPipeError) and not _is_read()):
            raise
        _stop(f"Error: {describe_error(error)}", 2 if isinstance(error, _MISTAKES) else 1)
    except RuntimeError:
        if show_traceback or not logged or not isinstance(logged[-1], ValueError):
            raise
        _stop(f"Error: {describe_error(logged[-1])}", 1)
    finally:
        for logger in loggers:
            logger.removeFilter(hear)


@contextmanager
def _full_disk_in_one_line() -> Iterator[None]:
    with quiet_threads():
        try:
            yield
        except Exception as error:
            full = describe_full_disk(error)
            if full is None:
                raise
            print(f"Error: {full}", file=sys.stderr, flush=True)
            raise EndAtOnce(1) from error  # Threads of checkpoints wait for those that failed.


def how_to_go_on(run_dir: Path) -> str:
    """Says how an interrupted run can be resumed."""
    if not (run_dir / ARGUMENTS_FILE).is_file():
        return "nothing is trained yet"
    stored = parse_overrides([*OmegaConf.load(run_dir / ARGUMENTS_FILE)])
    trust = trust_argument({override.key_or_group: override.value() for override in stored})
    return f"{main_command('train')} resume={shlex.quote(str(run_dir))}{trust} goes on from the last checkpoint"


def main_command(name: str) -> str:
    """Returns how a main function is called: by its script, or by the wheel's command if this one was."""
    is_installed = Path(sys.argv[0]).name.startswith("jaxagents-")
    return f"jaxagents-{name}" if is_installed else f"python experiments/{name}.py"


@contextmanager
def _until_unread() -> Iterator[None]:
    """Exits silently if nobody reads the output any more, as after `--help | head`."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        if _is_read():
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # For the remaining output.
        raise SystemExit(128 + signal.SIGPIPE) from None


def _is_read() -> bool:
    """Returns False if stdout is a pipe whose other end is closed."""
    try:
        stdout = sys.stdout.fileno()
    except (OSError, ValueError):  # The stdout of a notebook.
        return True
    poll = select.poll()
    poll.register(stdout, 0)
    return not any(event & select.POLLERR for _, event in poll.poll(0))


def _sections_with(key: str, section: DictConfig) -> Iterator[str]:
    """Yields the dotted names of the sections of a config that have a key."""
    for name in map(str, section):
        if OmegaConf.is_missing(section, name) or OmegaConf.is_interpolation(section, name):
            continue
        if isinstance(section[name], DictConfig):
            if key in section[name]:
                yield section[name]._get_full_key(None)
            yield from _sections_with(key, section[name])


def _stop(message: str, code: int) -> None:
    print(message, file=sys.stderr, flush=True)
    raise SystemExit(code)


def describe_error(error: BaseException) -> str:
    """Returns the message of an error in one line, with the nearest names if a name is unknown."""
    cause = error.__cause__
    if isinstance(error, InstantiationException) and cause is not None:
        message = describe_error(cause)
        return (
            message if isinstance(cause, _MISTAKES) else f"{_first_line(str(error))} {type(cause).__name__}: {message}"
        )
    if isinstance(error, MissingConfigException) and error.options:
        group, _, name = str(error.missing_cfg_file).rpartition("/")
        return f"`{group}` must be a file of configs/{group}, got {name!r}; try {nearest_names(name, error.options)}."
    if isinstance(error, OverrideParseException):
        return f"Arguments must be written as key=value, with lists as [1,2], got {error.override!r}."
    if isinstance(error, MissingMandatoryValue):
        return f"`{error.full_key}` must be given, got nothing; try {error.full_key}=..."
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.strerror}: {error.filename}"
    parent = getattr(cause, "parent_node", None)
    if isinstance(error, HydraException) and isinstance(cause, OmegaConfBaseException) and parent is not None:
        section = f"`{parent._get_full_key(None)}`" if parent._get_full_key(None) else "The config"
        hint = f"; try {_offers(str(cause.key), parent)}" if isinstance(parent, DictConfig) and len(parent) else ""
        return f"{section} has no key {cause.key!r}{hint}."
    if isinstance(error, yaml.YAMLError):
        return f"A file must be YAML{describe_yaml(error)}."
    message = " ".join(str(error).split()) or type(error).__name__
    for function, argument in _IN_ARGUMENTS.items():
        message = message.replace(function, argument)
    return message


def _offers(key: str, parent: DictConfig) -> str:
    """Returns hints for a setting that a section lacks: another name, another section, or another spelling."""
    if key in _OF_OTHERS:
        return _OF_OTHERS[key]
    if (whole := f"{parent._get_full_key(None)}.{key}") in _OF_OPTIONS:
        return _OF_OPTIONS[whole]
    root: Any = parent._get_root()
    sections = [name for name in _sections_with(key, root) if name.partition(".")[0] not in _ASIDE]
    if sections:
        return " or ".join(f"{name}.{key}" for name in sections[:3])
    return nearest_names(key, [str(name) for name in parent if name != "hydra" and not str(name).startswith("_")])


def nearest_names(name: str, known: Sequence[str]) -> str:
    """Returns the most similar names, as "this or that"; if none is similar, all names, or the first of many."""
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    others = len(known) - _MOST_NAMES
    if near or others <= 0:
        return " or ".join(near or sorted(known))
    return f"{' or '.join(sorted(known)[:_MOST_NAMES])} or one of {others} others"


def _first_line(text: str) -> str:
    return text.partition("\n")[0]
