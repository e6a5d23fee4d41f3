"""Conversations on the host: the user's prompts, tool calls, their results, and rewards of answers."""

import inspect
import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from jaxagents.language.chat_template import TemplateReader, make_chat_template
from jaxagents.language.host_rewards import RewardFunction, ask_reward
from jaxagents.language.prompt_rows import PromptRows
from jaxagents.language.tool_calls import Result, Tool, bind_tools, make_method_tools, run_calls
from jaxagents.language.tool_format import (
    Call,
    ToolFormat,
    UnreadableCall,
    call_messages,
    parse_calls,
    read_tool_format,
    render_results,
    shortest_call,
)

_MOST_CALLS = 8  # Largest number of calls per turn.
_LONGEST_TOKEN = 16  # In characters; of a long text, only as much is tokenised as could fit.
_SMALLEST_ROOM = 16  # In tokens, for a result.
_MEASURED = 64  # Number of longest prompts by characters that are tokenised to find the longest by tokens.


class Sizes(NamedTuple):
    """Numbers of tokens and turns of a conversation.

    Attributes:
        prompt: largest number of tokens of a prompt.
        completion: largest number of tokens of an assistant turn, including the one that ends it.
        result: largest number of tokens of the tool results of one turn.
        turns: largest number of assistant turns.
    """

    prompt: int
    completion: int
    result: int
    turns: int


class Steps(NamedTuple):
    """Results of the latest turns of B conversations.

    Attributes:
        conversation: int32 `[B]`, number by which the host identifies the conversation.
        observation: int32 `[B, K]`, tokens of results, right-aligned after -1s; all -1 if the conversation is over.
        reward: float32 `[B]`, rewards.
        success: bool `[B]`, whether the reward is at least 1.
        valid: bool `[B]`, whether the completion is intact: not cut off, and without calls that cannot be made.
        over: bool `[B]`, whether the conversation is over.
        cut: bool `[B]`, whether it is over because of a limit.
    """

    conversation: np.ndarray
    observation: np.ndarray
    reward: np.ndarray
    success: np.ndarray
    valid: np.ndarray
    over: np.ndarray
    cut: np.ndarray


@dataclass
class _Conversation:
    """A conversation in progress: what follows the prompt, as messages and as tokens."""

    row: int
    tools: Mapping[str, Tool] = field(default_factory=dict)
    owner: Any = None  # Object of the conversation whose methods are tools.
    messages: list[dict[str, Any]] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    turns: int = 0
    calls: list[Call | str] = field(default_factory=list)  # Calls of the last turn; a text is an error message.


class ChatHost:
    """Conversations about the rows of a table of prompts.

    Args:
        reader: reader of the chat template.
        rows: prompts and columns.
        tools: tools by name.
        factory: makes an object for every conversation, whose public methods are tools, too; its method `reset`, if it
            has one, receives the columns of the row before the first call.
        reward: rewards the conversations that end in the same turn; None: compares the answer with the column `answer`.
        sizes: sizes of a conversation; without tools it has one turn.
        system: system text for rows that have none.
        tool_seconds: time limit in seconds of a call, and of making an object including its `reset`.
        reward_seconds: time limit in seconds of the reward function; None: no limit.
    """

    def __init__(
        self,
        reader: TemplateReader,
        rows: PromptRows,
        *,
        tools: Mapping[str, Tool],
        factory: Callable[[], Any] | None = None,
        reward: RewardFunction | None,
        sizes: Sizes,
        system: str | None,
        tool_seconds: float,
        reward_seconds: float | None,
    ) -> None:
        self.reader, self.rows, self.tools, self.reward, self.sizes = reader, rows, tools, reward, sizes
        self.system, self.tool_seconds, self.reward_seconds = system, tool_seconds, reward_seconds
        self.factory, self.methods = factory, [] if factory is None else make_method_tools(factory)
        tools = {**tools, **{tool.name: tool for tool in self.methods}}
        self.schemas = [tool.schema for tool in tools.values()]
        self.template = make_chat_template(reader)
        self.format: ToolFormat | None = read_tool_format(reader, self.schemas) if tools else None
        if tools and (fewest := len(self._encode(shortest_call(reader, self.schemas))) + 1) > sizes.completion:
            raise ValueError(
                f"`environment.completion_tokens` must hold a call, at least {fewest} tokens without arguments, got "
                f"{sizes.completion}; try {4 * fewest}."
            )
        self.frame = len(self._encode(render_results(reader, [""], self.schemas))) if tools else 0
        self.room = sizes.result + self.frame if tools and sizes.turns > 1 else 1
        self.opening = self._read_row(0)[-1]
        self.tokens_of_row = lru_cache(maxsize=8192)(self._tokens_of_row)
        self._numbers, self._lock = itertools.count(), threading.Lock()
        self._open: dict[int, _Conversation] = {}
        self._special = [token for token in reader.tokenizer.all_special_tokens if token not in reader.think_tags]
        added = {str(token) for token in reader.tokenizer.added_tokens_decoder.values()}
        self._marks = sorted((mark for mark in added if len(mark) > 1), key=len, reverse=True)
        extra = () if factory is None else ("environments",)
        self._pays_objects = reward is not None and _require_columns(reward, rows, extra)

    def messages_of(self, row: int) -> list[dict[str, Any]]:
        """Returns the messages of a row's prompt."""
        prompt = self.rows.prompts[row]
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
        if self.system is not None and messages[0]["role"] not in ("system", "developer"):
            messages.insert(0, {"role": "system", "content": self.system})
        return messages

    def longest(self) -> tuple[int, int]:
        """Returns the row of the longest prompt and its number of tokens, among the longest ones by characters."""
        length = [len(str(prompt)) for prompt in self.rows.prompts]
        longest = np.argsort(np.negative(length), kind="stable")[:_MEASURED]
        count, row = max((len(self._read_row(int(row))), int(row)) for row in longest)
        return row, count

    def prompts(self, row: np.ndarray) -> np.ndarray:
        """Returns the tokens of prompts without the last one, int32 `[..., P]` for rows `[...]`, padded with -1."""
        row = np.asarray(row)
        tokens = np.full((row.size, self.sizes.prompt), -1, np.int32)
        for index, one in enumerate(row.reshape(-1).tolist()):
            found = self.tokens_of_row(one)
            tokens[index, : len(found)] = found
        return tokens.reshape(*row.shape, self.sizes.prompt)

    def step(self, row: np.ndarray, conversation: np.ndarray, completion: np.ndarray, live: np.ndarray) -> Steps:
        """Responds to completions in conversations `[...]`: calls tools, or pays the reward and ends the conversation.

        Args:
            row: int32 `[...]`, rows of the prompts.
            conversation: int32 `[...]`, numbers from the last step; -1 begins a conversation.
            completion: int32 `[..., A]`, tokens of the assistant's turn, padded with -1.
            live: bool `[...]`, conversations with a completion.

        Returns:
            The results, leaves `[...]`.
        """
        row, conversation, completion, live = (np.asarray(x) for x in (row, conversation, completion, live))
        shape, size = live.shape, live.size
        number = conversation.reshape(-1).astype(np.int32).copy()
        completion = completion.reshape(size, -1)
        steps = Steps(
            conversation=number,
            observation=np.full((size, self.room), -1, np.int32),
            reward=np.zeros(size, np.float32),
            success=np.zeros(size, bool),
            valid=np.ones(size, bool),
            over=np.zeros(size, bool),
            cut=np.zeros(size, bool),
        )
        places = np.flatnonzero(live).tolist()
        self._begin(number, row.reshape(-1), [place for place in places if int(number[place]) not in self._open])
        for place in places:
            tokens = completion[place][completion[place] >= 0].tolist()
            closed, valid = self._hear(self._open[number[place]], tokens)
            one = self._open[number[place]]
            steps.valid[place] = valid
            steps.cut[place] = not closed or (bool(one.calls) and one.turns >= self.sizes.turns)
            steps.over[place] = steps.cut[place] or not one.calls
        self._answer([place for place in places if not steps.over[place]], steps)
        self._pay([place for place in places if steps.over[place]], steps)
        return Steps(*(leaf.reshape((*shape, *leaf.shape[1:])) for leaf in steps))

    def _begin(self, number: np.ndarray, row: np.ndarray, places: Sequence[int]) -> None:
        """Begins conversations, and stores their numbers; their objects are made in parallel, as calls are run.

        Raises:
            ValueError: an object cannot be made, or not within the time limit of a call.
        """
        begun = [_Conversation(int(row[place]), self.tools) for place in places]
        if self.factory is not None:
            tools = [{"reset": Tool("reset", {}, partial(self._make_object, one))} for one in begun]
            made = run_calls(tools, [Call("reset", {})] * len(begun), seconds=self.tool_seconds)
            for one, result in zip(begun, made):
                if result.text.startswith("Error:"):
                    got = result.text.removeprefix("Error: ").removeprefix("reset failed with ").rstrip(".")
                    where = self.rows.places(one.row)
                    raise ValueError(f"`environment.tools` must make an object for {where}, got {got}.")
        with self._lock:
            for place, one in zip(places, begun):
                number[place] = next(self._numbers) % 2**31
                self._open[int(number[place])] = one

    def _make_object(self, one: _Conversation) -> None:
        owner = self.factory() if self.factory is not None else None
        if hasattr(owner, "reset"):
            owner.reset(**{name: column[one.row] for name, column in self.rows.columns.items()})
        one.owner, one.tools = owner, {**self.tools, **bind_tools(self.methods, owner)}

    def _hear(self, one: _Conversation, tokens: list[int]) -> tuple[bool, bool]:
        """Records a completion; returns whether it has an end token, and whether it is intact."""
        closed = bool(tokens) and tokens[-1] in self.reader.stops
        one.tokens += tokens
        one.turns += 1
        one.calls = []
        spoken, valid = tokens[:-1] if closed else tokens, closed
        completion: str = self.reader.tokenizer.decode(spoken, skip_special_tokens=False)
        text, calls = completion, []  # type: str, list[Call]
        if closed and self.format is not None:
            try:
                text, calls = parse_calls(self.format, completion)
                one.calls = [
                    *calls[:_MOST_CALLS],
                    *["Error: at most 8 calls fit into a turn."] * (len(calls) > _MOST_CALLS),
                ]
            except UnreadableCall as error:
                one.calls, valid = [str(error)], False
        for token in self._special:
            text = text.replace(token, "")
        message = {"role": "assistant", "content": text}
        one.messages.append(message | ({"tool_calls": call_messages(calls)} if calls else {}))
        return closed, valid

    def _answer(self, places: Sequence[int], steps: Steps) -> None:
        """Calls the tools, and writes their results in the format of the template."""
        open_ones = [self._open[int(steps.conversation[place])] for place in places]
        calls = [(one.tools, call) for one in open_ones for call in one.calls if isinstance(call, Call)]
        made = run_calls([tools for tools, _ in calls], [call for _, call in calls], seconds=self.tool_seconds)
        results = iter(made)
        for place, one in zip(places, open_ones):
            found = [Result(call, allowed=True) if isinstance(call, str) else next(results) for call in one.calls]
            ids = [call.id if isinstance(call, Call) else "" for call in one.calls]
            texts, tokens = self._write_results([self._disarm(result.text) for result in found], ids)
            steps.valid[place] &= all(result.allowed for result in found)
            steps.observation[place, self.room - len(tokens) :] = tokens
            names = [call.name if isinstance(call, Call) else "" for call in one.calls]
            one.messages += [{"role": "tool", "name": name, "content": text} for name, text in zip(names, texts)]

    def _write_results(self, texts: list[str], ids: Sequence[str] = ()) -> tuple[list[str], list[int]]:
        """Returns shortened results that fit, and the tokens of the turn that contains them."""
        room = self.sizes.result // len(texts)
        while room >= _SMALLEST_ROOM:
            cut = [self._shorten(text, room) for text in texts]
            tokens = self._render(cut, ids)
            if len(tokens) <= self.room:
                return cut, tokens
            room -= max(-(-(len(tokens) - self.room) // len(texts)), room // 8)
        refusal = "Error: these results do not fit."
        tokens = self._render([refusal], ids[:1])
        return [refusal] * len(texts), tokens if len(tokens) <= self.room else self._render(["Error"], ids[:1])

    def _render(self, texts: Sequence[str], ids: Sequence[str]) -> list[int]:
        """Returns the tokens of results, merged into one if the template supports only one call per turn."""
        try:
            return self._encode(render_results(self.reader, texts, self.schemas, ids))
        except ValueError:
            if len(texts) == 1:
                raise
            return self._encode(render_results(self.reader, ["\n".join(texts)], self.schemas, ids[:1]))

    def _shorten(self, text: str, room: int) -> str:
        """Returns a text shortened to at most `room` tokens, with a note on its full length."""
        seen = text[: room * _LONGEST_TOKEN]
        written = self.reader.tokenizer(seen, add_special_tokens=False, return_offsets_mapping=True)
        if len(seen) == len(text) and len(written["input_ids"]) <= room:
            return text
        note = f" ... [{len(text):,} characters are too long]"
        keep = max(min(room, len(written["input_ids"])) - len(self._encode(note)), 0)
        return text[: written["offset_mapping"][keep][0] if keep < len(written["input_ids"]) else len(seen)] + note

    def _disarm(self, text: str) -> str:
        """Breaks up the texts of special tokens, with which a result could forge a turn."""
        for mark in self._marks:
            text = text.replace(mark, f"{mark[0]} {mark[1:]}")
        return text

    def _pay(self, places: Sequence[int], steps: Steps) -> None:
        if not places:
            return
        with self._lock:
            ended = [self._open.pop(int(steps.conversation[place])) for place in places]
        rows = [one.row for one in ended]
        texts = [one.messages[-1]["content"] for one in ended]
        columns: dict[str, Any] = {name: [column[row] for row in rows] for name, column in self.rows.columns.items()}
        if self.reward is None:
            paid = [float(_plain(text) == _plain(answer)) for text, answer in zip(texts, columns["answer"])]
        else:
            objects = {"environments": [one.owner for one in ended]} if self._pays_objects else {}
            # As in TRL: a prompt of messages, or with tools, gets completions as messages.
            spoken = [bool(self.schemas) or not isinstance(self.rows.prompts[row], str) for row in rows]
            paid = ask_reward(
                self.reward,
                [
                    self.messages_of(row) if as_messages else self.rows.prompts[row]
                    for row, as_messages in zip(rows, spoken)
                ],
                [one.messages if as_messages else text for one, text, as_messages in zip(ended, texts, spoken)],
                columns | {"completion_ids": [one.tokens for one in ended]} | objects,
                seconds=self.reward_seconds,
                name="environment.reward",
            ).tolist()
        steps.reward[places] = paid
        steps.success[places] = steps.reward[places] >= 1.0

    def _read_row(self, row: int) -> list[int]:
        try:
            return self.template.encode_prompt(self.messages_of(row), self.schemas)
        except ValueError as error:
            raise ValueError(f"{error} ({self.rows.places(row)})") from error

    def _tokens_of_row(self, row: int) -> list[int]:
        tokens = self._read_row(row)
        if len(tokens) > self.sizes.prompt + 1 or tokens[-1] != self.opening:
            raise ValueError(
                f"`environment.prompt_tokens` must hold every prompt, got {self.sizes.prompt} for {len(tokens) - 1} in "
                f"{self.rows.places(row)}; try {len(tokens) - 1}."
            )
        return tokens[:-1]

    def _encode(self, text: str) -> list[int]:
        return list(self.reader.tokenizer(text, add_special_tokens=False)["input_ids"])


def _plain(text: Any) -> str:
    """Returns a text in the form in which answers are compared: no thought, case-folded, with single spaces."""
    return " ".join(str(text).rpartition("</think>")[2].split()).casefold()


def _require_columns(reward: Callable[..., Any], rows: PromptRows, extra: Sequence[str]) -> bool:
    """Refuses a reward function that needs columns that the rows lack; returns whether it accepts `extra`."""
    given: dict[str, Any] = dict.fromkeys(("prompts", "completions", "completion_ids", *rows.columns), [])
    signature = inspect.signature(reward)
    if extra:
        try:
            signature.bind(**given, **dict.fromkeys(extra, []))
            return True
        except TypeError:
            pass
    try:
        signature.bind(**given)
    except TypeError as error:
        name = getattr(getattr(reward, "func", reward), "__name__", "score")
        raise ValueError(
            f"`environment.reward` must take what the rows have, {', '.join([*given, *extra])}, got {name}{signature}: "
            f"{error}; try def {name}(prompts, completions, **columns)."
        ) from error
    return False
