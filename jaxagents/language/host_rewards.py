"""Rewards by a Python function that reads text: compiled runs decode completions on the host."""

import inspect
import math
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import serialization
from jax.experimental import io_callback

from jaxagents.language.collect import make_dialogue_collector
from jaxagents.ops.group_metrics import group_metrics
from jaxagents.types import (
    Array,
    Collector,
    Environment,
    Episode,
    EpisodeView,
    LanguagePolicy,
    Mean,
    Metrics,
    Params,
    PyTree,
)

RewardFunction = Callable[..., Sequence[float]]
"""`(*, prompts, completions, **columns) -> rewards`, each a list with an entry per turn; like TRL's functions."""


class Texts(NamedTuple):
    """Input of a reward function: one entry per turn that took place, with the turns of an episode in order.

    Attributes:
        prompts: everything that the policy saw before it spoke, one line per text.
        completions: the policy's text, a line for a thought and one for the action.
        columns: further lists by name: `completion_ids` (tokens, including marks), `episode` (row of the batch), `turn`
            (from 0), `world_reward`, `success` (of the episode), and one for every field of the task.
    """

    prompts: list[str]
    completions: list[str]
    columns: dict[str, list[Any]]


def make_rewarded_collector(
    environment: Environment,
    policy: LanguagePolicy,
    *,
    reward: RewardFunction,
    reward_seconds: float | None = 3600.0,
    dynamic_sampling: Callable[[EpisodeView], Array] | None = None,
    axis_name: str | None = None,
    **options: Any,
) -> Collector:
    """Makes a collector of dialogues that are rewarded by a Python function instead of the world.

    Once per update, the device passes its episodes to the host, and waits. Each of several devices calls the function
    with its own episodes; with several seeds, the calls are sequential. Evaluations are rewarded by it, too.

    Args:
        environment: unbatched text world of one player.
        policy: policy that acts.
        reward: see `RewardFunction` and `Texts`; it is called with keyword arguments.
        reward_seconds: time limit in seconds, after which a call that has not returned ends the run; None: no limit.
        dynamic_sampling: must be None.
        axis_name: see `collect.make_dialogue_collector`.
        **options: further arguments of `collect.make_dialogue_collector`.

    Returns:
        The collector. `episode_return` and `group_return_deviation` are computed from the function's rewards, and
        `world_return` from the world's.

    Raises:
        ValueError: there are several players, the function does not accept its arguments, or a filter would use the
            world's rewards. During a run: see `pay`.

    References:
        von Werra et al. (2020), TRL: Transformer Reinforcement Learning, `GRPOTrainer(reward_funcs=...)`.

    Deviation: an entry is a turn; in TRL it is a whole answer. None, with which TRL skips an entry, is refused.
    """
    if environment.num_players > 1:
        raise ValueError(
            f"`environment` must have one seat for `collector.reward`, got {environment.name} with "
            f"{environment.num_players}; try a reward on arrays, `learner.rewards`."
        )
    if dynamic_sampling is not None:
        raise ValueError(
            "`collector.dynamic_sampling` must be null with `collector.reward`, got a filter, which would look at the "
            "rewards of the world; try learner.group_filter, which looks at yours."
        )
    if reward_seconds is not None and not reward_seconds > 0.0:
        raise ValueError(f"`collector.reward_seconds` must be above 0, got {reward_seconds}; try 3600, or null.")
    require_keywords(reward)
    inner = make_dialogue_collector(environment, policy, axis_name=axis_name, **options)

    def collect(state: PyTree, params: Params, key: Array) -> tuple[PyTree, Episode, Metrics]:
        state, episode, metrics = inner.collect(state, params, key)
        episode = pay_on_host(policy, episode, reward=reward, seconds=reward_seconds)
        total, count = jnp.sum(episode.reward), jnp.float32(episode.reward.shape[0])
        changed = {"episode_return": Mean(total=total, count=count), "world_return": metrics["episode_return"]}
        if "group_return_deviation" in metrics:
            of_groups = group_metrics(episode)
            changed |= {name: of_groups[name] for name in ("group_return_deviation", "equal_return_rate")}
        return state, episode, dict(metrics) | changed

    return inner._replace(collect=collect)


def pay_on_host(
    policy: LanguagePolicy, episode: Episode, *, reward: RewardFunction, seconds: float | None = None
) -> Episode:
    """Replaces rewards of episodes by those of a Python function, with a call of the host from a compiled program.

    Args:
        policy: policy with which the episodes were made.
        episode: B episodes.
        reward: see `RewardFunction`.
        seconds: time limit in seconds of a call; None: no limit.
    """
    read = episode.replace(behavior_log_prob=None, sampling_log_prob=None, position=None, fingerprint=None)
    shape = jax.ShapeDtypeStruct(episode.reward.shape, jnp.float32)
    paid = io_callback(lambda read: pay(reward, policy, read, seconds=seconds), shape, read)
    return episode.replace(reward=paid)


def pay(
    reward: RewardFunction, policy: LanguagePolicy, episode: Episode, *, seconds: float | None = None
) -> np.ndarray:
    """Computes the rewards of episodes by a Python function, on the host.

    Args:
        reward: see `RewardFunction`.
        policy: policy with which the episodes were made.
        episode: B episodes of T turns, arrays of NumPy or on a CPU.
        seconds: time limit in seconds of the function; None: no limit.

    Returns:
        float32 `[B, T]`, zero if there was no turn.

    Raises:
        ValueError: the function failed or took too long, or its result does not consist of one finite number for each
            turn.
    """
    episode = jax.tree.map(np.asarray, episode)
    texts, place = texts_of(policy, episode), np.nonzero(episode.valid)
    paid = np.zeros(episode.valid.shape, np.float32)
    paid[place] = ask_reward(reward, texts.prompts, texts.completions, texts.columns, seconds=seconds)
    return paid


def ask_reward(
    reward: RewardFunction,
    prompts: Sequence[Any],
    completions: Sequence[Any],
    columns: Mapping[str, Any],
    *,
    seconds: float | None = None,
    name: str = "collector.reward",
) -> np.ndarray:
    """Calls a reward function, and checks its result.

    Args:
        reward: see `RewardFunction`.
        prompts: prompt of each completion.
        completions: n completions.
        columns: further lists by name.
        seconds: time limit in seconds of the function; None: no limit.
        name: name of the setting of the function, for messages.

    Returns:
        float32 `[n]`.

    Raises:
        ValueError: see `pay`.
    """
    try:
        given = _within(seconds, reward, prompts=prompts, completions=completions, **columns)
    except _Late as error:
        raise ValueError(
            f"`{name}` must return within {seconds:g} seconds, got nothing yet from {_place_of(reward)}, "
            f"which is at {error}; try a longer `{name}_seconds`."
        ) from None
    except Exception as error:
        *_, frame = traceback.extract_tb(error.__traceback__)
        raise ValueError(
            f"`{name}` must return rewards, got {type(error).__name__}: {error} ({frame.filename}, line "
            f"{frame.lineno}: {frame.line})"
        ) from error
    return _numbers(given, len(completions), _place_of(reward), name)


def paid_alike(evaluator: Callable[..., Any], make_collector: Any) -> Callable[..., Any]:
    """Returns an evaluator whose episodes are rewarded by the same user function as in training, if there is one."""
    keywords = getattr(make_collector, "keywords", {})
    if (
        getattr(make_collector, "func", None) is not make_rewarded_collector
        or "pay" not in inspect.signature(evaluator).parameters
    ):
        return evaluator
    reward, seconds = keywords.get("reward"), keywords.get("reward_seconds")
    return partial(evaluator, pay=partial(pay_on_host, reward=reward, seconds=seconds))


class _Late(Exception):
    """Raised if a function has not returned in time; its text is the function's current place."""


def _within(seconds: float | None, function: Callable[..., Any], **arguments: Any) -> Any:
    """Calls a function in a thread, which is abandoned if it takes too long."""
    if seconds is None:
        return function(**arguments)
    results: Future[Any] = Future()

    def call() -> None:
        try:
            results.set_result(function(**arguments))
        except BaseException as error:  # Raised again by the caller.
            results.set_exception(error)

    thread = threading.Thread(target=call, name="reward", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        frame = sys._current_frames().get(thread.ident or 0)
        raise _Late(f"{frame.f_code.co_filename}, line {frame.f_lineno}" if frame else "its end")
    return results.result()


def texts_of(policy: LanguagePolicy, episode: Episode) -> Texts:
    """Decodes prompts and completions of every turn of episodes.

    Args:
        policy: policy with which they were made; the text that its chat template adds is left out.
        episode: B episodes of one player, NumPy arrays.

    Returns:
        The texts.
    """
    texts = Texts(prompts=[], completions=[], columns={"completion_ids": [], "episode": [], "turn": []})
    fields = serialization.to_state_dict(episode.task)
    tasks = fields if isinstance(fields, dict) else {"task": fields}
    decode, frames = policy.tokenizer.decode, getattr(policy.lexicon, "frames", None)
    for row in range(len(episode.valid)):
        prompt = episode.prompt_tokens[row][episode.prompt_mask[row]].tolist()
        started = decode(prompt if frames is None or not prompt else frames.text_of_prompt(prompt))
        lines: list[list[str]] = []
        for turn in np.flatnonzero(episode.valid[row]):
            tokens, sampled = episode.tokens[row, turn], episode.action_mask[row, turn]
            thought = sampled & episode.thought_mask[row, turn]
            room = slice(None if episode.layout is None else episode.layout.observation)
            read = tokens[room][(episode.token_mask[row, turn] & ~sampled)[room]].tolist()
            seen = decode(read if frames is None else frames.text_of_observation(read, bool(lines)))
            thoughts, action = (decode(tokens[mask].tolist()) for mask in (thought, sampled & ~thought))
            if frames is not None:  # A word after a mark may begin with a space.
                started, seen, thoughts, action = (text.strip() for text in (started, seen, thoughts, action))
            completion = [thoughts, action] if thought.any() else [action]
            known = lines if episode.layout is None else lines[len(lines) + 1 - episode.layout.context_turns :]
            before = [line for lines_of_turn in known for line in lines_of_turn]
            texts.prompts.append("\n".join([*([started] if started else []), *before, seen]))
            texts.completions.append("\n".join(completion))
            texts.columns["completion_ids"].append(tokens[sampled].tolist())
            texts.columns["episode"].append(row)
            texts.columns["turn"].append(int(turn))
            lines.append([seen, *completion])
    rows = texts.columns["episode"]
    columns = {
        name: [jax.tree.map(lambda leaf, row=row: leaf[row].tolist(), field) for row in rows]
        for name, field in tasks.items()
    }
    columns |= {"success": episode.success[rows].tolist(), "world_reward": episode.reward[episode.valid].tolist()}
    return texts._replace(columns=columns | texts.columns)


def require_keywords(reward: RewardFunction) -> None:
    """Refuses a function that cannot be called with prompts, completions and further columns."""
    signature = inspect.signature(reward)
    try:
        signature.bind(prompts=[], completions=[], any_other_column=[])
    except TypeError as error:
        name = getattr(getattr(reward, "func", reward), "__name__", "score")
        raise ValueError(
            f"`collector.reward` must take prompts, completions and further columns, got {name}{signature}; try "
            f"def {name}(prompts, completions, **columns)."
        ) from error


def _place_of(reward: RewardFunction) -> str:
    """Returns the name of a function, with its file and line if known."""
    function = getattr(reward, "func", reward)
    name, code = getattr(function, "__name__", type(function).__name__), getattr(function, "__code__", None)
    return name if code is None else f"{name} ({code.co_filename}, line {code.co_firstlineno})"


def _numbers(given: Any, count: int, where: str, name: str) -> np.ndarray:
    """Returns the rewards from a function as an array, after checks."""
    if not isinstance(given, Sequence | np.ndarray | jax.Array) or isinstance(given, str) or len(given) != count:
        length = f"{len(given)} of them" if hasattr(given, "__len__") and not isinstance(given, str) else repr(given)
        raise ValueError(
            f"`{name}` must return a list of {count} rewards, one per completion, got {length} from {where}."
        )
    for index, value in enumerate(given):
        try:
            finite = math.isfinite(value)
        except TypeError:
            finite = False
        if not finite:
            raise ValueError(f"`{name}` must return finite numbers, got {value!r} for completion {index} from {where}.")
    return np.asarray(given, np.float32)
