"""Loads the policy of a run directory. Of checkpoints, only the parameters for acting are read."""

import warnings
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import cache, partial
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple

import jax

from jaxagents.language.conversation import make_answer
from jaxagents.language.player import make_player
from jaxagents.language.replies import make_reply, refuse_text
from jaxagents.learners.reward_model import make_model_reward
from jaxagents.training.acting import make_act
from jaxagents.training.build import Experiment, Stage, build
from jaxagents.training.checkpoints.manager import Restored, open_checkpoints
from jaxagents.training.loop import checkpoint_folder
from jaxagents.training.resuming import require_fields, tokenizer_of
from jaxagents.training.run_directory import CONFIG_FILE, load_config
from jaxagents.training.speaking import Score, make_score, make_speak
from jaxagents.training.trust import require_trusted, trusting
from jaxagents.types import Array, Carry, Environment, Episode, LanguagePolicy, Params, Policy, Stateful

_ONE_DEVICE = {"mode": "jit", "num_devices": 1}  # Whatever the run was trained on.
_KINDS = ("best", "last")


def warn(text: str) -> None:
    """Warns in one line, without the source line that a warning would show."""
    warnings.warn_explicit(text, UserWarning, filename="load_policy", lineno=1)


class LoadedPolicy(NamedTuple):
    """A trained policy.

    Attributes:
        act: `(observation, carry=None, first=None, action_mask=None, key=None, reward=None) -> (action, carry)`, see
            `acting.make_act`; for a language policy `(observation, carry=None, first=None, prompt=None, key=None) ->
            (action, carry)`, all but the carry and the key in word ids, see `language.conversation.make_answer`.
        policy: policy that `act` applies.
        params: parameters of the policy.
        environment: environment in which the run is evaluated.
        config: resolved config of the run.
        play: for a language policy, `(key, num_episodes=1, *, greedy=True, held_out=True, level=None) -> Episode`,
            whole episodes in `environment`; None for others.
        reply: for a language policy, `(text, carry=None, *, prompt=None, key=None) -> (text, carry)`, from an
            observation in words to the action that answers it, see `language.replies.make_reply`; None for others.
        speak: for a language policy, `(messages, *, key=None, max_tokens=64) -> text`, an answer to free text, see
            `training.speaking.make_speak`; None for others.
        score: for a language policy, `(messages) -> Score`, log-probabilities of a conversation's tokens, see
            `training.speaking.make_score`; None for others.
    """

    act: Callable[..., tuple[Array, Carry]]
    policy: Policy | LanguagePolicy
    params: Params
    environment: Environment
    config: dict[str, Any]
    play: Callable[..., Episode] | None = None
    reply: Callable[..., tuple[str, Any]] | None = None
    speak: Callable[..., str] | None = None
    score: Callable[..., Score] | None = None


class LoadedStage(NamedTuple):
    """A stage of a run with one of its checkpoints.

    Attributes:
        stage: stage as it was trained, on one device.
        params: parameters of the policy; with several seeds, every leaf has a leading seed axis.
        num_seeds: size of the seed axis; 0 if there is none.
        which: "best" or "last", the kind of checkpoint that was found.
        step: number of the checkpoint, in updates of the stage.
        config: resolved config of the run.
    """

    stage: Stage
    params: Params
    num_seeds: int
    which: str
    step: int
    config: dict[str, Any]


def load_policy(
    path: str | Path,
    which: str = "best",
    step: int | None = None,
    *,
    stage: str | None = None,
    seed_index: int = 0,
    trust: bool | str | Sequence[str] | None = None,
    on_fallback: Callable[[str], Any] = warn,
) -> LoadedPolicy:
    """Loads the policy of a run onto one device, whatever it was trained on.

    Args:
        path: run directory; the run may still be training.
        which: see `load_stage`.
        step: see `load_stage`.
        stage: see `load_stage`.
        seed_index: index of the copy to load, if the run has several seeds.
        trust: modules of other code that the run may name, such as "my_world"; True: all; None: those already trusted.
        on_fallback: see `load_stage`.

    Returns:
        The policy.

    Raises:
        ValueError: see `load_stage`, or `seed_index` is out of range.
    """
    with trusting(trust):
        loaded = load_stage(path, which, step, stage=stage, on_fallback=on_fallback)
    num_seeds = max(loaded.num_seeds, 1)
    if not 0 <= seed_index < num_seeds:
        raise ValueError(f"`seed_index` must be below the {num_seeds} seeds of the run, got {seed_index}.")
    params = jax.tree.map(lambda leaf: leaf[seed_index], loaded.params) if loaded.num_seeds else loaded.params
    policy, environment = loaded.stage.policy, loaded.stage.environment
    play = reply = speak = score = None
    if isinstance(policy, LanguagePolicy):
        act_on: Callable[..., Any] = refuse_text(make_answer(policy, environment.action_space.shape[0]))
        play = _make_play(environment, policy, params)
        reply = _bind("reply", make_reply(policy, environment), params)
        speak = _bind("speak", make_speak(policy), params)
        score = _bind("score", make_score(policy), params)
    else:
        act_on = make_act(policy, environment)
    return LoadedPolicy(
        act=_bind("act", act_on, params),
        policy=policy,
        params=params,
        environment=environment,
        config=loaded.config,
        play=play,
        reply=reply,
        speak=speak,
        score=score,
    )


def _bind(name: str, function: Callable[..., Any], params: Params) -> Callable[..., Any]:
    """Binds a function to these parameters; unlike a partial, its `help` shows its arguments."""

    def bound(*args: Any, **kwargs: Any) -> Any:
        return function(params, *args, **kwargs)

    described: Any = bound
    _, *others = signature(function).parameters.values()
    described.__signature__ = signature(function).replace(parameters=others)
    described.__name__ = described.__qualname__ = name
    described.__doc__ = function.__doc__
    return described


def load_params(path: str | Path | None, which: str = "last") -> Params:
    """Loads the parameters of a run, such as those of a teacher.

    Args:
        path: run directory.
        which: see `load_stage`.

    Returns:
        The parameters of the first seed.

    Raises:
        ValueError: see `load_policy`, or no directory is given.
    """
    if path is None:
        raise ValueError("`path` must be the directory of a run, got nothing; try learner.teacher.path=runs/<run>.")
    return load_policy(path, which).params


def load_reward(path: str | Path | None, which: str = "best", **options: Any) -> Stateful:
    """Loads a reward model, as a reward for policy gradients (`learner.rewards`).

    Args:
        path: run directory of a run with `learner=reward_model`; its tokenizer must be that of the policy.
        which: see `load_stage`.
        **options: arguments of `learners.reward_model.make_model_reward`.

    Returns:
        The slot.

    Raises:
        ValueError: see `load_policy`; no directory is given, or the model has no value head.
    """
    if path is None:
        raise ValueError(
            "`path` must be the directory of a run, got nothing; try learner.rewards.model.path=runs/<run>."
        )
    loaded: Any = load_policy(path, which)
    return make_model_reward(loaded.policy.model, loaded.params, **options)


def _make_play(environment: Environment, policy: LanguagePolicy, params: Params) -> Callable[..., Episode]:
    player = cache(partial(make_player, environment, policy))  # Compiled once for every choice of settings.

    def play(
        key: Array, num_episodes: int = 1, *, greedy: bool = True, held_out: bool = True, level: int | None = None
    ) -> Episode:
        """Plays whole episodes on held-out tasks, or on training tasks; `greedy=False` samples."""
        return player(num_episodes=num_episodes, greedy=greedy, held_out=held_out, level=level)(params, key)

    return play


def load_stage(
    path: str | Path,
    which: str = "best",
    step: int | None = None,
    *,
    stage: str | None = None,
    on_fallback: Callable[[str], Any] = warn,
) -> LoadedStage:
    """Rebuilds a stage that a run trained, and restores a checkpoint whose digest is valid.

    Without a name, the stage is the last one that has a checkpoint; `on_fallback` is called if that is not the run's
    end.

    Args:
        which: "best": the checkpoint of the best evaluation, or the last one if that is missing or damaged; "last": the
            newest one that is intact.
        step: number of one of the last checkpoints, in updates; it overrides `which`.
        stage: name of the stage; None: see above.
        on_fallback: function called with the reason if another checkpoint than the requested one is used.

    Returns:
        The stage and its parameters.

    Raises:
        ValueError: `path` is not a run directory, names functions of others, see `require_trusted`, holds no intact
            checkpoint, or its config was changed.
    """
    if which not in _KINDS:
        raise ValueError(f"`which` must be best or last, got {which!r}.")
    run_dir = _require_run_dir(path)
    config = load_config(run_dir / CONFIG_FILE)
    require_trusted(config, str(run_dir / CONFIG_FILE))
    experiment = build({**config, "devices": _ONE_DEVICE})
    index = _choose_stage(run_dir, experiment, stage, on_fallback)
    saved = _saved_tokenizer(checkpoint_folder(run_dir, experiment, index, "last"))
    policy_of_stage: Any = experiment.stages[index].policy
    if saved is not None and saved != policy_of_stage.tokenizer.data:
        experiment = build({**config, "devices": _ONE_DEVICE}, tokenizer=saved)
    chosen = experiment.stages[index]
    found, restored = _find_checkpoint(
        partial(checkpoint_folder, run_dir, experiment, index), chosen, which, step, on_fallback
    )
    if restored is None:
        raise ValueError(
            f"`path` must hold a checkpoint, got {run_dir}, where none is saved yet; try again when the run has done "
            f"{chosen.training.checkpoint_every_steps} steps."
        )
    require_fields(restored.metadata, f"in {run_dir}", ("run_hash",))
    if restored.metadata["run_hash"] != experiment.run_digest:
        raise ValueError(
            f"`path` must hold the config that its checkpoints were made with, got {run_dir / CONFIG_FILE}, which was "
            "changed; try the `config` in the checkpoint's metadata."
        )
    params = chosen.runner.params(restored.state)
    return LoadedStage(chosen, params, num_seeds=experiment.num_seeds, which=found, step=restored.step, config=config)


def _require_run_dir(path: str | Path | None) -> Path:
    if path not in (None, "") and (Path(path) / CONFIG_FILE).is_file():
        return Path(path).resolve()
    near = Path("runs" if path is None else path)
    found = [file for depth in ("*", "*/*") for file in near.glob(f"{depth}/{CONFIG_FILE}") if file.parts[-2][0] != "."]
    newest = (
        max(found, key=lambda file: file.stat().st_mtime).parent if found else "the `run_dir` that training printed"
    )
    raise ValueError(
        f"`path` must be a run directory, with a {CONFIG_FILE} in it, got {path or 'nothing'}; try {newest}."
    )


def _choose_stage(run_dir: Path, experiment: Experiment, wanted: str | None, on_fallback: Callable[[str], Any]) -> int:
    """Returns the index of the named stage, or of the last one with a checkpoint, and reports the latter."""
    names = [stage.name for stage in experiment.stages]
    if wanted is not None:
        if wanted not in names:
            raise ValueError(f"`stage` must be one of the run, got {wanted!r}; try {' or '.join(names)}.")
        return names.index(wanted)
    for index in reversed(range(len(names))):
        folder = checkpoint_folder(run_dir, experiment, index, "last")
        metadata = None
        if folder.is_dir():
            with closing(open_checkpoints(folder, read_only=True)) as checkpoints:
                metadata = checkpoints.latest_metadata(acting=True)
        if metadata is None:
            continue
        require_fields(metadata, f"in {folder}", ("finished", "update"))
        if not metadata["finished"]:
            update, end = metadata["update"], experiment.stages[index].num_updates
            on_fallback(f"This is the stage {names[index]}, of which {update} of {end} updates are saved.")
        elif index + 1 < len(names):
            on_fallback(f"This is the stage {names[index]}: {' and '.join(names[index + 1 :])} saved nothing yet.")
        return index
    return 0


def _saved_tokenizer(folder: Path) -> bytes | None:
    """Returns the tokenizer that the parameters were trained with, as training it again may give another one."""
    if not folder.is_dir():
        return None
    with closing(open_checkpoints(folder, read_only=True)) as checkpoints:
        return tokenizer_of(checkpoints.latest_metadata(acting=True))


def _find_checkpoint(
    folder_of: Callable[[str], Path], stage: Stage, which: str, step: int | None, on_fallback: Callable[[str], Any]
) -> tuple[str, Restored | None]:
    """Returns the kind of the checkpoint, and the checkpoint; None if there is none at all."""
    reason = None
    if which == "best" and step is None:
        reason = f"{folder_of('best')} holds none."
        try:
            restored = _restore(folder_of("best"), stage, None, on_fallback)
        except ValueError as error:
            restored, reason = None, str(error)
        if restored is not None:
            return "best", restored
    restored = _restore(folder_of("last"), stage, step, on_fallback)
    if reason is not None and restored is not None:
        on_fallback(f"The last checkpoint is used, not the best one: {reason}")
    return "last", restored


def _restore(folder: Path, stage: Stage, step: int | None, on_fallback: Callable[[str], Any]) -> Restored | None:
    if not folder.is_dir():
        return None
    with closing(open_checkpoints(folder, read_only=True)) as checkpoints:
        runner = stage.runner
        return checkpoints.restore(runner.abstract, step=step, on_fallback=on_fallback, acting=runner.acting)
