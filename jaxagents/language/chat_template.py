"""Conversations through the chat template of a checkpoint: their tokens, and which ones the assistant writes."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from jaxagents.language.checkpoints.tensors import read_json
from jaxagents.language.tokenizers import load_tokenizer
from jaxagents.types import ChatTemplate, ChatTokens

THINK_TAGS = ("<think>", "</think>")
Message = Mapping[str, Any]
_PLACEHOLDER = "\ue000"  # A private-use character, which no text contains.
_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")


class TemplateReader(NamedTuple):
    """A chat template and its properties.

    Attributes:
        folder: folder of the checkpoint, for messages.
        tokenizer: tokenizer of `transformers`.
        think_tags: tags around a thought.
        thinks: whether the policy writes thoughts.
        takes_system: whether the template has a system role.
        takes_thoughts: whether the template writes the field `reasoning_content`.
        end: token that ends an assistant message.
        stops: all tokens that end it.
        ends_alike: whether earlier assistant turns also end with one of them.
    """

    folder: Path
    tokenizer: Any
    think_tags: tuple[str, str] = THINK_TAGS
    thinks: bool = False
    takes_system: bool = True
    takes_thoughts: bool = True
    end: int = -1
    stops: tuple[int, ...] = ()
    ends_alike: bool = True


class Pieces(NamedTuple):
    """The text that a template writes around the texts of a dialogue.

    Attributes:
        system_open: text before the system text.
        system_close: text after the system text, up to the first user text.
        first_open: text before the first user text if there is no system text.
        later_open: text after the token that ended the assistant's turn, up to the next user text.
        answer_open: text after a user text, up to where the assistant speaks.
        answer_before: text with which the assistant's answer begins.
        answer_after: text with which it ends, before the end token.
    """

    system_open: str
    system_close: str
    first_open: str
    later_open: str
    answer_open: str
    answer_before: str
    answer_after: str


def read_template(
    source: str | Path, *, think_tags: Sequence[str] = THINK_TAGS, thinks: bool = False
) -> TemplateReader:
    """Reads the tokenizer and the chat template of a checkpoint.

    Args:
        source: folder with `tokenizer_config.json`.
        think_tags: tags around a thought.
        thinks: whether the policy writes thoughts.

    Returns:
        The reader.

    Raises:
        ValueError: a file is missing or damaged, or the template drops the assistant's text, or does not end it.
    """
    folder = Path(source).expanduser()
    if not (folder / "tokenizer_config.json").is_file():
        raise ValueError(f"`source` must hold tokenizer_config.json, got none in {folder}; nothing is downloaded.")
    return make_reader(load_tokenizer(folder), folder, think_tags=think_tags, thinks=thinks)


def make_reader(tokenizer: Any, folder: Path, think_tags: Sequence[str] = THINK_TAGS, thinks: bool = False) -> Any:
    """Returns the `TemplateReader` of a tokenizer of `transformers`, see `read_template`."""
    if not tokenizer.chat_template:
        raise ValueError(f"`source` must have a chat template, got none in {folder}; try policy=language_model.")
    opening, closing = think_tags
    reader = TemplateReader(folder=folder, tokenizer=tokenizer, think_tags=(opening, closing), thinks=thinks)
    user, assistant = {"role": "user", "content": "ask"}, {"role": "assistant", "content": _PLACEHOLDER}
    text = render(reader, [user, assistant])
    if _PLACEHOLDER not in text:
        raise ValueError(f"`chat_template` of {folder} must have roles, got one that leaves out the assistant's text.")
    rest = text.rpartition(_PLACEHOLDER)[2]
    end = _end_of(reader, rest)
    if end is None:
        raise ValueError(
            f"`chat_template` of {folder} must end what the assistant says with a special token, got {rest!r}."
        )
    stops = _stops(folder, tokenizer, end)
    earlier = render(reader, [user, assistant, user]).rpartition(_PLACEHOLDER)[2]
    thought = {**assistant, "content": "say", "reasoning_content": _PLACEHOLDER}
    return reader._replace(
        takes_system=_writes(reader, [{"role": "system", "content": _PLACEHOLDER}, user]),
        takes_thoughts=_writes(reader, [user, thought]),
        end=end,
        stops=stops,
        ends_alike=_end_of(reader, earlier) in stops,
    )


def make_chat_template(reader: TemplateReader) -> ChatTemplate:
    """Returns the functions that write conversations through a template."""

    def encode(messages: Sequence[Message], tools: Sequence[Any] = ()) -> ChatTokens:
        return write_conversation(reader, messages, tools)

    def encode_prompt(messages: Sequence[Message], tools: Sequence[Any] = ()) -> list[int]:
        return _encode(reader, render(reader, _adapt(reader, messages), tools, generation=True, thinks=reader.thinks))

    return ChatTemplate(encode=encode, encode_prompt=encode_prompt, end=reader.end, stops=reader.stops)


def render(
    reader: TemplateReader,
    messages: Sequence[Message],
    tools: Sequence[Any] = (),
    *,
    generation: bool = False,
    thinks: bool = True,
) -> str:
    """Writes messages like `apply_chat_template(tokenize=False)`.

    Args:
        reader: reader of the template.
        messages: `[{"role": "...", "content": "..."}, ...]`.
        tools: tools that the template describes to the model.
        generation: whether to add the opening of the assistant's turn.
        thinks: False sets `enable_thinking=False`, for templates with that option.

    Returns:
        The text.

    Raises:
        ValueError: the template does not accept these messages.
    """
    options: dict[str, Any] = {} if thinks else {"enable_thinking": False}
    try:
        return reader.tokenizer.apply_chat_template(
            list(messages), tools=list(tools) or None, tokenize=False, add_generation_prompt=generation, **options
        )
    except Exception as error:  # Templates can raise any error.
        roles = ", ".join(str(message.get("role")) for message in messages)
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(
            f"`chat_template` of {reader.folder} must take the messages, got the roles {roles}: {reason}"
        ) from error


def write_conversation(reader: TemplateReader, messages: Sequence[Message], tools: Sequence[Any] = ()) -> ChatTokens:
    """Writes a whole conversation, and finds the assistant's tokens in it.

    The tokens are those of `apply_chat_template(messages, tools=tools)`. The assistant's tokens are those after the
    opening of its turn, up to and including the token that ends it. If a template marks them by `{% generation %}`, its
    marks are used. Otherwise a turn opens where the messages before it, with `add_generation_prompt=True`, end.

    Args:
        reader: reader of the template.
        messages: the conversation, including the assistant's messages.
        tools: tools that the template describes to the model.

    Returns:
        The tokens.

    Raises:
        ValueError: the template does not accept the messages, or drops texts, so that turns cannot be found.

    References:
        von Werra et al. (2020), TRL, `SFTTrainer(assistant_only_loss=True)`.
    """
    given, messages = len(messages), _adapt(reader, messages)
    text = render(reader, messages, tools)
    written = reader.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    tokens, offsets = list(written["input_ids"]), list(written["offset_mapping"])
    speakers = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    owner, thought = [-1] * len(tokens), [False] * len(tokens)
    if _GENERATION.search(str(reader.tokenizer.chat_template)):
        spans = _marked_spans(reader, messages, tools, len(speakers))
    elif not reader.ends_alike and speakers[:-1]:
        raise ValueError(
            f"`chat_template` of {reader.folder} must end all turns of the assistant alike, got one that does not; try "
            "one that marks them by {% generation %}."
        )
    else:
        starts = [_start_of(reader, text, messages, tools, index) for index in speakers]
        spans = _spans(tokens, offsets, starts, reader.stops)
    num_lost = 0
    for index, (first, last) in zip(speakers, spans):
        owner[first:last] = [index + given - len(messages)] * (last - first)
        begin, end = (offsets[first][0], offsets[last - 1][1]) if first < last else (0, 0)
        closed = text.find(reader.think_tags[1], begin, end)
        if closed >= 0:
            thought[first:last] = [offset[0] < closed + len(reader.think_tags[1]) for offset in offsets[first:last]]
        num_lost += _thought_of(reader, messages[index]) not in text[begin:end]
    return ChatTokens(tokens=tokens, message=owner, thought=thought, num_lost=num_lost)


def cut_pieces(reader: TemplateReader) -> Pieces:
    """Extracts the text that a template writes around the texts of a dialogue.

    Args:
        reader: reader of the template.

    Returns:
        The pieces. Without a system role, the system text becomes the first paragraph of the user's turn.

    Raises:
        ValueError: the template drops a text.
    """
    first, content, later = ("\ue001", "\ue002", "\ue003")
    dialogue = [{"role": "user", "content": first}, {"role": "assistant", "content": content}]
    dialogue.append({"role": "user", "content": later})
    first_open, answer, after, answer_open = _cut(
        reader, render(reader, dialogue, generation=True, thinks=reader.thinks), (first, content, later)
    )
    end = reader.tokenizer.convert_ids_to_tokens(reader.end)
    answer_after, _, later_open = after.partition(end)
    if not answer_open:
        raise ValueError(
            f"`chat_template` of {reader.folder} must have roles, got no text between those of user and assistant."
        )
    pieces = Pieces(
        system_open=first_open,
        system_close="\n\n",
        first_open=first_open,
        later_open=later_open,
        answer_open=answer_open,
        answer_before=answer.removeprefix(answer_open) if answer.startswith(answer_open) else "",
        answer_after=answer_after,
    )
    if not reader.takes_system:
        return pieces
    asked = [{"role": "system", "content": content}, {"role": "user", "content": first}]
    system_open, system_close, _ = _cut(reader, render(reader, asked, generation=True), (content, first))
    return pieces._replace(system_open=system_open, system_close=system_close)


def _cut(reader: TemplateReader, text: str, texts: Sequence[str]) -> list[str]:
    """Returns the pieces before, between and after texts."""
    pieces, rest = [], text
    for one in texts:
        before, found, rest = rest.partition(one)
        if not found:
            raise ValueError(f"`chat_template` of {reader.folder} must have roles, got one that leaves out a text.")
        pieces.append(before)
    return [*pieces, rest]


def _encode(reader: TemplateReader, text: str) -> list[int]:
    return list(reader.tokenizer(text, add_special_tokens=False)["input_ids"])


def _writes(reader: TemplateReader, messages: Sequence[Message]) -> bool:
    """Returns whether a template accepts messages and writes the placeholder in them."""
    try:
        return _PLACEHOLDER in render(reader, messages)
    except ValueError:
        return False


def _end_of(reader: TemplateReader, rest: str) -> int | None:
    """Returns the token that ends a turn: the first special token after it, or the tokenizer's own if that is near."""
    known = {*reader.tokenizer.all_special_ids, *(int(i) for i in reader.tokenizer.added_tokens_decoder)}
    special = list(takewhile(known.__contains__, _encode(reader, rest.lstrip())))
    return next((token for token in special if token == reader.tokenizer.eos_token_id), *special[:1] or [None])


def _stops(folder: Path, tokenizer: Any, end: int) -> tuple[int, ...]:
    """Returns the end token, the tokenizer's, and those of the generation config."""
    stops = {end, tokenizer.eos_token_id}
    file = folder / "generation_config.json"
    if file.is_file():
        given = read_json(file).get("eos_token_id")
        ends = given if isinstance(given, list) else [given]
        if not all(end is None or (isinstance(end, int) and not isinstance(end, bool)) for end in ends):
            raise ValueError(f"`eos_token_id` of `{file}` must be a token or a list of tokens, got {given!r}.")
        stops |= set(ends)
    return tuple(sorted(stops - {None}))


def _adapt(reader: TemplateReader, messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Returns messages without empty fields, with the system text and thoughts where the template supports them."""
    adapted = [_without_nothing(message) for message in messages]
    if not reader.takes_system and len(adapted) > 1 and adapted[0]["role"] in ("system", "developer"):
        system, user, *others = adapted
        if user["role"] == "user":
            joined = "\n\n".join(text for text in (system.get("content"), user.get("content")) if text)
            adapted = [{**user, "content": joined}, *others]
    if reader.thinks and not reader.takes_thoughts:
        opening, closing = reader.think_tags
        for message in adapted:
            if message["role"] == "assistant" and message.get("reasoning_content"):
                thought = message.pop("reasoning_content")
                message["content"] = f"{opening}\n{thought}\n{closing}\n\n{message.get('content') or ''}"
    return adapted


def _without_nothing(message: Message) -> dict[str, Any]:
    """Returns a message without fields that are null in a table of messages, and with arguments as objects."""
    kept = {name: value for name, value in message.items() if value is not None or name == "content"}
    content = kept.get("content")
    if isinstance(content, Sequence) and not isinstance(content, str):
        kept["content"] = "".join(part["text"] for part in content)
    if not kept.get("tool_calls"):
        kept.pop("tool_calls", None)
        return kept
    calls = []
    for call in kept["tool_calls"]:
        function = dict(call.get("function", call))
        if isinstance(function.get("arguments"), str):
            function["arguments"] = json.loads(function["arguments"])
        calls.append({**call, "function": function} if "function" in call else function)
    return kept | {"tool_calls": calls}


def _thought_of(reader: TemplateReader, message: Message) -> str:
    """Returns the thought of a message; empty without one."""
    given = next((message[name] for name in ("reasoning_content", "reasoning", "thinking") if message.get(name)), None)
    if isinstance(given, str):
        return given.strip()
    opening, closing = reader.think_tags
    before, closed, _ = (message.get("content") or "").partition(closing)
    return before.rpartition(opening)[2].strip() if closed else ""


def _start_of(reader: TemplateReader, text: str, messages: Sequence[Message], tools: Sequence[Any], index: int) -> int:
    """Returns the index at which an assistant message begins in the text of the whole conversation."""
    before = messages[:index]
    if not before:
        changed = [{**messages[0], "content": _PLACEHOLDER}, *messages[1:]]
        return _shared(reader, render(reader, changed, tools), text)
    opened = render(reader, before, tools, generation=True)
    if text.startswith(opened):
        return len(opened)
    if text.startswith(render(reader, before, tools)):
        return _shared(reader, opened, text)
    # The template writes these messages differently if others follow: search for the text after the last of them.
    changed = [*before[:-1], {**before[-1], "content": _PLACEHOLDER}]
    whole = render(reader, [*changed, *messages[index:]], tools)
    opened = render(reader, changed, tools, generation=True)
    rest = whole.rpartition(_PLACEHOLDER)[2]
    if _PLACEHOLDER not in whole or _PLACEHOLDER not in opened or not text.endswith(rest):
        raise ValueError(
            f"`chat_template` of {reader.folder} must write every message in its place, got one that leaves out or "
            f"changes messages[{index - 1}]; try a template that marks the assistant's text by {{% generation %}}."
        )
    return len(text) - len(rest) + _shared(reader, opened.rpartition(_PLACEHOLDER)[2], rest)


def _shared(reader: TemplateReader, one: str, other: str) -> int:
    """Returns the number of characters in the common first tokens of two texts."""
    written = reader.tokenizer(one, add_special_tokens=False, return_offsets_mapping=True)
    count = len(os.path.commonprefix([list(written["input_ids"]), _encode(reader, other)]))
    return written["offset_mapping"][count - 1][1] if count else 0


Spans = list[tuple[int, int]]


def _spans(tokens: Sequence[int], offsets: Sequence[tuple[int, int]], starts: Sequence[int], stops: Any) -> Spans:
    """Returns, for every turn that begins at `starts`, its first token and the one after its last."""
    firsts = [next((i for i, (_, end) in enumerate(offsets) if end > start), len(tokens)) for start in starts]
    limits = [*firsts[1:], len(tokens)]
    return [
        (first, next((i + 1 for i in range(first, limit) if tokens[i] in stops), limit))
        for first, limit in zip(firsts, limits)
    ]


def _marked_spans(reader: TemplateReader, messages: Sequence[Message], tools: Sequence[Any], count: int) -> Spans:
    """Returns the spans of tokens that a template itself marks as the assistant's."""
    written = reader.tokenizer.apply_chat_template(
        list(messages), tools=list(tools) or None, return_dict=True, return_assistant_tokens_mask=True
    )
    mask = [0, *written["assistant_masks"], 0]
    edges = [i for i in range(len(mask) - 1) if mask[i] != mask[i + 1]]
    spans = list(zip(edges[::2], edges[1::2]))
    if len(spans) != count:
        raise ValueError(
            f"`chat_template` of {reader.folder} must mark every message of the assistant by {{% generation %}}, got "
            f"{len(spans)} marked texts for {count} messages."
        )
    return spans
