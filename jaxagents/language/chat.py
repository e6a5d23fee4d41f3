"""Language policies in the chat format of an instruction-tuned model: its roles, stop tokens, and thought tags."""

import dataclasses
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp

from jaxagents.language.chat_template import THINK_TAGS, Pieces, cut_pieces, make_chat_template, read_template
from jaxagents.language.lexicon import Frames, Lexicon, begin_with
from jaxagents.language.policy import make_language_policy, observation_tokens, prompt_tokens
from jaxagents.language.tokenizers import with_marks
from jaxagents.types import (
    Agent,
    Array,
    ChatTemplate,
    Environment,
    LanguageModel,
    LanguagePolicy,
    Layout,
)

Ids = tuple[int, ...]
Encode = Callable[[Sequence[str]], list[Ids]]


@dataclasses.dataclass(frozen=True, eq=False)
class ChatLexicon(Lexicon):
    """A lexicon of a policy that uses a chat template.

    Attributes:
        chat: template that writes conversations.
    """

    chat: ChatTemplate | None = None


class _Frame(NamedTuple):
    """The tokens before and after a text, and the words of the text as tokenised there."""

    before: Ids
    words: Lexicon
    after: Ids

    @property
    def size(self) -> int:
        """Returns the number of tokens around the text."""
        return len(self.before) + len(self.after)


def make_agent(
    environment: Environment,
    *,
    inner: Callable[..., Agent],
    policy: partial,
    source: str | Path,
    think_tags: Sequence[str] = THINK_TAGS,
    axis_name: str | None = None,
    **options: Any,
) -> Agent:
    """Assembles an agent that speaks in the chat format of an instruction-tuned model.

    Args:
        environment: text world.
        inner: `(environment, *, policy, axis_name) -> Agent`, the agent that learns.
        policy: `make_language_policy` with its settings; its tokenizer is ignored.
        source: see `make_chat_policy`.
        think_tags: see `make_chat_policy`.
        axis_name: mapped device axis to average gradients over.
        **options: further arguments of `inner`.

    Returns:
        The agent.
    """
    settings = {name: value for name, value in policy.keywords.items() if name != "tokenizer"}

    def speak(environment: Environment) -> LanguagePolicy:
        return make_chat_policy(environment, source=source, think_tags=think_tags, **settings)

    return inner(environment, policy=speak, axis_name=axis_name, **options)


def make_chat_policy(
    environment: Environment,
    *,
    source: str | Path,
    model: Callable[[int], LanguageModel],
    think_tags: Sequence[str] = THINK_TAGS,
    thought_tokens: int = 0,
    action_tokens: int | None = None,
    prompt: bool = True,
    **options: Any,
) -> LanguagePolicy:
    """Makes a policy that speaks a world's words in the chat format of an instruction-tuned model.

    The prompt of the task becomes the system message, an observation a user message, and a thought with an action an
    assistant message. A turn opens as `apply_chat_template(add_generation_prompt=True)` opens it, without thoughts with
    `enable_thinking=False`, and any stop token ends it.

    Args:
        environment: text world.
        source: folder of the tokenizer, with `tokenizer_config.json` and its chat template.
        model: `(vocab_size) -> LanguageModel`.
        think_tags: tags around a thought.
        thought_tokens: see `make_language_policy`.
        action_tokens: see `make_language_policy`.
        prompt: see `make_language_policy`.
        **options: further arguments of `make_language_policy`.

    Returns:
        The policy; its layout has room for the tokens around the texts.

    Raises:
        ValueError: see `read_template` and `make_language_policy`; or the model has no room for an episode; or there
            are thoughts but no single token that ends them.

    Deviation: some templates rewrite earlier turns once others follow (Qwen 3 drops their thoughts, Mistral moves the
        system text). This is not reproduced: earlier turns stay in the cache as they were written. When a context of
        several turns slides, the tokens that open its first turn are dropped with that turn.
    """
    reader = read_template(source, think_tags=think_tags, thinks=thought_tokens > 0)
    backend, pieces = reader.tokenizer.backend_tokenizer, cut_pieces(reader)

    def encode(texts: Sequence[str]) -> list[Ids]:
        return [tuple(ids) for ids in reader.tokenizer(list(texts), add_special_tokens=False)["input_ids"]]

    close = _closing_token(encode, reader.think_tags) if reader.thinks else reader.end
    marks = {"pad": reader.end, "end": reader.end, "observation": reader.end, "think": reader.end, "act": close}
    stops = [token for token in reader.stops if token != reader.end]
    plain = make_language_policy(
        environment,
        tokenizer=lambda words: with_marks(backend, marks, name=str(source), stops=stops),
        model=model,
        thought_tokens=thought_tokens,
        action_tokens=action_tokens,
        prompt=prompt,
        **options,
    )
    tags = reader.think_tags if reader.thinks else None
    closing = reader.tokenizer.convert_ids_to_tokens(reader.end)
    has_system = plain.layout.prompt > 0
    frames = _make_frames(encode, plain.lexicon, pieces, closing=closing, tags=tags, system=has_system)
    layout = _make_room(environment, plain.layout, frames, fixed_action=action_tokens is not None)
    most = plain.model.max_positions
    if most is not None and layout.length > most:
        raise ValueError(
            f"`model.max_positions` must be at least the {layout.length} tokens of an episode of {environment.name!r} "
            f"in this chat format, got {most}; try fewer `num_turns`."
        )
    fields = {field.name: getattr(plain.lexicon, field.name) for field in dataclasses.fields(Lexicon)}
    fields["frames"] = _render_frames(frames, several=_sees_several(layout))
    return plain._replace(layout=layout, lexicon=ChatLexicon(**fields, chat=make_chat_template(reader)))


def _closing_token(encode: Encode, think_tags: tuple[str, str]) -> int:
    (close,) = encode(think_tags[1:])
    if len(close) != 1:
        raise ValueError(
            f"`think_tags` must end with a token of the vocabulary, got {think_tags[1]!r}, which is {len(close)} "
            "tokens; try the model's own tags, or thought_tokens=0."
        )
    return close[0]


def _make_frames(
    encode: Encode,
    lexicon: Lexicon,
    pieces: Pieces,
    *,
    closing: str,
    tags: tuple[str, str] | None,
    system: bool,
) -> dict[str, _Frame]:
    """Returns the tokens around every text of a dialogue, as tokenised at the places of these texts."""
    word = next((word for word in lexicon.words if word[-1].isalpha()), lexicon.words[0])
    opening = pieces.answer_open
    if tags and not opening.rstrip().endswith(tags[0]):
        opening += f"{tags[0]}\n"

    def frame(context: str, before: str, after: str = "") -> _Frame:
        """Makes the frame of a text that comes after the context and `before`."""
        begin = f"{context}{before}"
        written = encode([f"{begin}{one}" for one in lexicon.words])
        begun, opened, one, whole = encode([context, begin, f"{begin}{word}", f"{begin}{word}{after}"])
        shared = len(os.path.commonprefix([opened, *written]))
        return _Frame(
            before=opened[len(begun) : shared],
            words=begin_with(lexicon, [row[shared:] for row in written]),
            after=whole[len(one) :],
        )

    prompt = frame("", pieces.system_open)
    first, later = frame("", pieces.first_open, opening), frame(closing, pieces.later_open, opening)
    if system:
        first = frame(f"{pieces.system_open}{word}", pieces.system_close, opening)
        # What precedes every turn is read with the prompt, which is always visible.
        same = len(os.path.commonprefix([first.before[::-1], later.before[::-1]]))
        cut = len(first.before) - same
        prompt, first = prompt._replace(after=first.before[:cut]), first._replace(before=first.before[cut:])
    prefix = f"{pieces.first_open}{word}{opening}"
    frames = {"prompt": prompt, "first": first, "later": later}
    if tags:
        frames["thought"] = frame(prefix, "", "\n")
        frames["action"] = frame(f"{prefix}{word}\n{tags[1]}", "\n\n", pieces.answer_after)
    else:
        frames["action"] = frame(prefix, pieces.answer_before, pieces.answer_after)
    return frames


def _make_room(environment: Environment, layout: Layout, frames: dict[str, _Frame], *, fixed_action: bool) -> Layout:
    """Returns a layout with room for the tokens around the texts."""
    interface = environment.text
    actions = interface.patterns.action if interface.patterns and interface.patterns.action else ((interface.actions,),)
    action, thought = frames["action"], frames.get("thought")
    needed = max(map(action.words.max_tokens, actions)) + 1
    turns = ("first", "later") if _sees_several(layout) else ("first",)
    return layout._replace(
        prompt=prompt_tokens(environment, frames["prompt"].words) + frames["prompt"].size if layout.prompt else 0,
        observation=max(observation_tokens(environment, frames[name].words) + frames[name].size for name in turns),
        thought=layout.thought + thought.size if thought else 0,
        action=(layout.action if fixed_action else needed) + action.size,
    )


def _sees_several(layout: Layout) -> bool:
    """Returns whether a turn can be read after another one; else every turn is the first in its context."""
    return layout.num_turns > 1 and layout.context_turns > 1


def _render_frames(frames: dict[str, _Frame], *, several: bool) -> Frames:
    """Returns the functions that write texts in frames."""
    first, later = frames["first"], frames["later" if several else "first"]

    def observation(word_ids: Array, begun: Array, *, length: int) -> tuple[Array, Array]:
        # The last token of the answer's opening is in the last column, after which the answer is decoded.
        of_first, of_later = (
            _render(frame._replace(after=frame.after[:-1]), word_ids, length - 1) for frame in (first, later)
        )
        tokens, mask = (jnp.where(begun, new, old) for old, new in zip(of_first, of_later, strict=True))
        last = jnp.where(begun, later.after[-1], first.after[-1])
        return jnp.append(tokens, last.astype(tokens.dtype)), jnp.append(mask, True)

    def text_of_observation(ids: list[int], begun: bool) -> list[int]:
        return _text_of(later if begun else first, ids)

    return Frames(
        prompt=partial(_render, frames["prompt"]),
        observation=observation,
        thought=partial(_render, frames.get("thought", frames["action"])),
        action=partial(_render, frames["action"]),
        openings=tuple({frame.before[0] for frame in (first, later) if frame.before}),
        opening=first.after[-1],
        text_of_prompt=partial(_text_of, frames["prompt"]),
        text_of_observation=text_of_observation,
    )


def _text_of(frame: _Frame, ids: list[int]) -> list[int]:
    return ids[len(frame.before) : len(ids) - len(frame.after)]


def _render(frame: _Frame, word_ids: Array, length: int) -> tuple[Array, Array]:
    """Writes a text within its frame, see `Lexicon.render`."""
    tokens, mask = frame.words.render(word_ids, length - frame.size)
    end, column = len(frame.before) + jnp.sum(mask), jnp.arange(length)
    tokens = jnp.concatenate([jnp.asarray(frame.before, jnp.int32), tokens, jnp.zeros(len(frame.after), jnp.int32)])
    for i, token in enumerate(frame.after):
        tokens = jnp.where(column == end + i, token, tokens)
    return tokens, column < end + len(frame.after)
