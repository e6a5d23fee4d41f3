"""A world of conversations: the user's prompts, tools that are Python functions, rewards that read text.

Its words are the tokens of a checkpoint, so that no text has to be known in advance. Completions go to the host once
per turn, for all conversations at once; everything else is as in other text worlds.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxagents.environments.text.splits import hash_integers
from jaxagents.environments.timesteps import first_timestep
from jaxagents.language.chat import ChatLexicon
from jaxagents.language.chat_host import ChatHost, Sizes, Steps
from jaxagents.language.chat_template import TemplateReader, read_template
from jaxagents.language.host_rewards import RewardFunction
from jaxagents.language.lexicon import Frames
from jaxagents.language.plain_template import make_plain_reader
from jaxagents.language.prompt_rows import PromptRows, join_rows, read_prompt_rows
from jaxagents.language.tokenizers import with_marks
from jaxagents.language.tool_calls import Tool, is_class, make_method_tools, make_tool
from jaxagents.ops.checks import require_positive
from jaxagents.types import (
    Array,
    Box,
    Environment,
    LanguageModel,
    LanguagePolicy,
    Layout,
    Task,
    TextInterface,
    TimeStep,
    Tokenizer,
)


@struct.dataclass
class ChatState:
    """State of a conversation.

    Attributes:
        row: int32, row of the prompt.
        conversation: int32, number by which the host identifies it; -1 before the first turn.
        fingerprint: uint32, fingerprint of the prompt and all tokens so far.
        timestep: latest time step; a conversation that is over repeats it.
    """

    row: Array
    conversation: Array
    fingerprint: Array
    timestep: TimeStep


@dataclass(frozen=True, eq=False)
class ChatEnvironment(Environment):
    """A world of conversations.

    Attributes:
        host: host that calls tools and pays rewards.
        tokenizer: tokenizer whose tokens are the words.
    """

    host: ChatHost = None
    tokenizer: Tokenizer = None


def make_environment(
    path: str | Path | None = None,
    *,
    rows: Sequence[Mapping[str, Any]] = (),
    held_out_path: str | Path | None = None,
    held_out_fraction: float = 0.25,
    source: str | Path | None = None,
    tools: Sequence[Callable[..., Any] | Tool] = (),
    reward: RewardFunction | None = None,
    system: str | None = None,
    max_turns: int = 4,
    prompt_tokens: int = 512,
    completion_tokens: int = 256,
    result_tokens: int = 256,
    tool_seconds: float = 10.0,
    reward_seconds: float | None = 3600.0,
    enable_thinking: bool = False,
    vocab_size: int = 512,
) -> ChatEnvironment:
    """Makes a world of conversations about prompts.

    The policy answers a prompt. As long as it calls tools, they are run, and it reads their results in the format of
    the chat template; the first text without a call is its answer, and ends the conversation. Errors in a tool become a
    line of text for the model. Results are read, never learned.

    Args:
        path: path of the rows, see `prompt_rows.read_prompt_rows`.
        rows: the rows themselves, instead of a path.
        held_out_path: path of rows for evaluation; None: holds out a fraction of `path`.
        held_out_fraction: fraction of rows that is held out for evaluation.
        source: folder of a checkpoint's tokenizer and chat template; None: trains a small tokenizer on the rows.
        tools: Python functions, see `tool_calls.make_tool`; without tools, there is one turn. One of them may be a
            class, of which every conversation has an object whose public methods are tools, see `chat_host.ChatHost`. A
            nested list of tools, such as the result of `mcp_tools.mcp_tools`, is flattened.
        reward: `(*, prompts, completions, completion_ids, **columns) -> rewards`, like TRL's reward functions. It is
            called with the conversations that end in the same turn. None: 1 for the answer in the column `answer`.
        system: system text for rows without one.
        max_turns: largest number of assistant turns, including the answer.
        prompt_tokens: largest number of tokens of a prompt, including the schemas of tools.
        completion_tokens: largest number of tokens of an assistant turn.
        result_tokens: largest number of tokens of the results of one turn; longer results are shortened, with a note.
        tool_seconds: time limit in seconds of a call, and of making an object including its `reset`.
        reward_seconds: time limit in seconds of the reward function; None: no limit.
        enable_thinking: value of that option for chat templates that have it.
        vocab_size: vocabulary size of the tokenizer that is trained without a `source`.

    Returns:
        The environment; a reward of at least 1 is a `success`.

    Raises:
        ValueError: see `read_prompt_rows`, `make_tool` and `read_template`; or a size is too small; or no row is left
            for training or evaluation; or a prompt is too long; or there is neither a reward nor an answer.
    """
    for name, size in (("max_turns", max_turns), ("completion_tokens", completion_tokens), ("vocab_size", vocab_size)):
        require_positive(name, size)
    for name, size in (("prompt_tokens", prompt_tokens), ("result_tokens", result_tokens)):
        if size < 32:
            raise ValueError(f"`environment.{name}` must be at least 32, got {size}.")
    if not tool_seconds > 0.0:
        raise ValueError(f"`environment.tool_seconds` must be above 0, got {tool_seconds}; try 10.")
    found = read_prompt_rows(path, rows)
    train, held_out = _split(len(found.prompts), held_out_fraction if held_out_path is None else 0.0)
    if held_out_path is not None:
        other = read_prompt_rows(held_out_path)
        held_out = len(found.prompts) + np.arange(len(other.prompts), dtype=np.int32)
        found = join_rows(found, other)
    if not len(held_out):
        raise ValueError(
            "`environment.held_out_fraction` must leave rows for evaluations, got 0; try 0.25, or held_out_path."
        )
    _require_answers(found, reward)
    functions, methods, factory = _split_tools(tools)
    schemas = [tool.schema for tool in (*functions.values(), *methods)]
    reader = _reader(source, found, schemas, vocab_size, enable_thinking)
    sizes = Sizes(prompt_tokens, completion_tokens, result_tokens, max_turns if tools else 1)
    host = ChatHost(
        reader,
        found,
        tools=functions,
        factory=factory,
        reward=reward,
        sizes=sizes,
        system=system,
        tool_seconds=tool_seconds,
        reward_seconds=reward_seconds,
    )
    row, longest = host.longest()
    if longest - 1 > prompt_tokens:
        raise ValueError(
            f"`environment.prompt_tokens` must hold every prompt, got {prompt_tokens} for {longest - 1} tokens in "
            f"{found.places(row)}; try {longest - 1}, or leave such rows out."
        )
    return _make(host, train, held_out)


def make_chat_policy(
    environment: ChatEnvironment,
    *,
    model: Callable[[int], LanguageModel],
    tokenizer: Any = None,
) -> LanguagePolicy:
    """Makes a policy that speaks in a world of conversations.

    Args:
        environment: see `make_environment`; it determines the tokenizer, the chat template and the sizes.
        model: `(vocab_size) -> LanguageModel`.
        tokenizer: not used.

    Returns:
        The policy.

    Raises:
        ValueError: the environment is of another kind, or the model has fewer positions than a conversation needs.
    """
    del tokenizer
    if not isinstance(environment, ChatEnvironment):
        raise ValueError(
            f"`environment` must be a world of conversations for policy=chat, got {environment.name!r}; try "
            "world=chat, or policy=language_model."
        )
    host, tokens = environment.host, environment.tokenizer
    layout = Layout(
        prompt=host.sizes.prompt,
        observation=host.room,
        thought=0,
        action=host.sizes.completion,
        num_turns=host.sizes.turns,
        context_turns=host.sizes.turns,
    )
    network = model(tokens.vocab_size)
    if network.max_positions is not None and layout.length > network.max_positions:
        raise ValueError(
            f"`model.max_positions` must be at least the {layout.length} tokens of a conversation "
            f"({layout.prompt} prompt + {layout.num_turns} turns * ({layout.observation} results + {layout.action} "
            f"completion)), got {network.max_positions}; try a smaller environment.max_turns or prompt_tokens."
        )
    return LanguagePolicy(model=network, tokenizer=tokens, lexicon=_token_lexicon(host, tokens), layout=layout)


def _split(count: int, fraction: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns the training rows and the held-out rows, the same in every run."""
    if fraction == 0.0:
        return np.arange(count, dtype=np.int32), np.zeros(0, np.int32)
    if not 0.0 < fraction < 1.0:
        raise ValueError(f"`environment.held_out_fraction` must be above 0 and below 1, got {fraction}; try 0.25.")
    if count < 2:
        raise ValueError(
            "`environment.path` must hold at least 2 rows, one of them held out, got 1; try held_out_path."
        )
    order = np.random.default_rng(0).permutation(count).astype(np.int32)
    kept = min(max(round(fraction * count), 1), count - 1)
    return np.sort(order[kept:]), np.sort(order[:kept])


def _require_answers(rows: PromptRows, reward: RewardFunction | None) -> None:
    if reward is not None:
        return
    answers = rows.columns.get("answer", [None] * len(rows.prompts))
    if None in answers:
        raise ValueError(
            f"`answer` must stand in every row where there is no `environment.reward`, got none in "
            f"{rows.places(answers.index(None))}; try "
            "'environment.reward={_target_: my_rewards.score, _partial_: true}'."
        )


def _split_tools(tools: Sequence[Any]) -> tuple[dict[str, Tool], list[Tool], Callable[[], Any] | None]:
    """Returns the tools that are functions by name, the tools that are methods of a class, and the class."""
    several = [isinstance(tool, Sequence) and not isinstance(tool, str | Tool) for tool in tools]  # Such as MCP tools.
    tools = [one for tool, is_list in zip(tools, several) for one in (tool if is_list else [tool])]
    classes = [tool for tool in tools if is_class(tool)]
    if len(classes) > 1:
        raise ValueError(f"`environment.tools` must have at most one class, got {len(classes)}; try one that has both.")
    functions = [make_tool(tool) for tool in tools if not is_class(tool)]
    methods = [tool for one in classes for tool in make_method_tools(one)]
    names = [tool.name for tool in (*functions, *methods)]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"`environment.tools` must have different names, got {twice[0]!r} twice.")
    return {tool.name: tool for tool in functions}, methods, classes[0] if classes else None


def _reader(
    source: str | Path | None, rows: PromptRows, schemas: Sequence[Any], vocab_size: int, thinks: bool
) -> TemplateReader:
    if source is not None:
        return read_template(source, thinks=thinks)
    texts = [str(prompt) for prompt in rows.prompts[:10_000]]
    texts += [str(answer) for answer in rows.columns.get("answer", [])[:10_000]]
    return make_plain_reader([*texts, *(json.dumps(schema) for schema in schemas)], vocab_size=vocab_size)


def _make(host: ChatHost, train: np.ndarray, held_out: np.ndarray) -> ChatEnvironment:
    """Makes the environment of conversations on a host."""
    reader, sizes = host.reader, host.sizes
    marks = dict.fromkeys(("pad", "end", "observation", "think", "act"), reader.end)
    stops = [token for token in reader.stops if token != reader.end]
    tokenizer = with_marks(reader.tokenizer.backend_tokenizer, marks, name=str(reader.folder), stops=stops)

    def sampler(rows: np.ndarray) -> Callable[..., Task]:
        def sample(key: Array, level: Array | None = None) -> Task:
            del level
            return {"row": jnp.asarray(rows)[jax.random.randint(key, (), 0, len(rows))]}

        return sample

    def prompt(task: Task) -> Array:
        shape = jax.ShapeDtypeStruct((sizes.prompt,), jnp.int32)
        tokens: Array = jax.pure_callback(host.prompts, shape, task["row"], vmap_method="broadcast_all")
        return tokens

    def reset(key: Array, task: Task) -> tuple[ChatState, TimeStep]:
        del key
        flags = {"success": jnp.zeros((), bool), "valid": jnp.ones((), bool)}
        opening = jnp.full(host.room, -1, jnp.int32).at[-1].set(host.opening)
        timestep, row = first_timestep(opening, info=flags), task["row"].astype(jnp.int32)
        state = ChatState(row=row, conversation=jnp.int32(-1), fingerprint=hash_integers(row), timestep=timestep)
        return state, timestep

    def step(key: Array, state: ChatState, action: Array) -> tuple[ChatState, TimeStep]:
        del key
        before = state.timestep
        live = ~(before.terminated | before.truncated) & (action[0] >= 0)
        steps = _step_on_host(host, state, action, live)
        after = before.replace(
            observation=jnp.where(live, steps.observation, before.observation),
            reward=jnp.where(live, steps.reward, 0.0),
            terminated=jnp.where(live, steps.over & ~steps.cut, before.terminated),
            truncated=jnp.where(live, steps.cut, before.truncated),
            info={
                "success": jnp.where(live, steps.success, before.info["success"]),
                "valid": jnp.where(live, steps.valid, False),
            },
        )
        hashed = hash_integers(state.fingerprint[None], action, jnp.asarray(steps.observation))
        state = ChatState(
            row=state.row,
            conversation=jnp.where(live, steps.conversation, state.conversation),
            fingerprint=jnp.where(live, hashed, state.fingerprint),
            timestep=after,
        )
        return state, after

    text = TextInterface(
        words=(),
        actions=None,
        expert=_no_expert,
        fingerprint=lambda state: state.fingerprint,
        sample_held_out_task=sampler(held_out),
        prompt=prompt,
    )
    return ChatEnvironment(
        name="chat",
        sample_task=sampler(train),
        reset=reset,
        step=step,
        observation_space=Box((host.room,), dtype=np.int32),
        action_space=Box((sizes.completion,), dtype=np.int32),
        max_steps=sizes.turns,
        text=text,
        host=host,
        tokenizer=tokenizer,
    )


def _step_on_host(host: ChatHost, state: ChatState, action: Array, live: Array) -> Steps:
    number, value, flag = (jax.ShapeDtypeStruct((), dtype) for dtype in (jnp.int32, jnp.float32, bool))
    read = jax.ShapeDtypeStruct((host.room,), jnp.int32)
    shapes: dict[str, Any] = dict(zip(Steps._fields, (number, read, value, flag, flag, flag, flag), strict=True))
    steps: Steps = jax.pure_callback(
        host.step,
        Steps(**shapes),
        state.row,
        state.conversation,
        action,
        live,
        vmap_method="broadcast_all",  # type: ignore[arg-type]
    )
    return steps


def _no_expert(key: Array, state: ChatState) -> Any:
    raise ValueError(
        "`collector` must not ask an expert in world=chat, which has none; try collector=transcripts, which imitates "
        "conversations of yours."
    )


def _token_lexicon(host: ChatHost, tokenizer: Tokenizer) -> ChatLexicon:
    """Returns a lexicon whose words are tokens."""

    def write(tokens: Array, length: int) -> tuple[Array, Array]:
        mask = tokens >= 0
        return jnp.where(mask, tokens, tokenizer.marks["pad"])[:length], mask[:length]

    def read(tokens: Array, mask: Array, num_words: int) -> tuple[Array, Array]:
        # Sampled tokens are at the front, including the end token.
        return jnp.where(mask, tokens, -1)[:num_words], mask[0]

    def refuse(text: str) -> np.ndarray:
        raise ValueError(f"`text` must be spoken to by `speak` in world=chat, got {text!r} for `reply`.")

    frames = Frames(
        prompt=write,
        observation=lambda tokens, begun, *, length: write(tokens, length),
        thought=write,
        action=write,
        openings=(),
        opening=host.opening,
        text_of_prompt=lambda ids: ids,
        text_of_observation=lambda ids, begun: ids,
    )
    return ChatLexicon(
        words=(),
        tokenizer=tokenizer,
        render=write,
        parse=read,
        max_tokens=lambda words: words if isinstance(words, int) else len(words),
        text=lambda ids: tokenizer.decode([i for i in np.asarray(ids).tolist() if i >= 0]),
        encode_words=refuse,
        later=(),
        frames=frames,
        reads_cut=True,
        chat=host.template,
    )
