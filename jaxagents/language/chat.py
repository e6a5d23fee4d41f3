"""Language policies that keep the chat format of an instructed model: its roles, stops, and tags of thoughts."""

import dataclasses
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from jaxagents.language.lexicon import Lexicon
from jaxagents.language.policy import make_language_policy
from jaxagents.language.tokenizers import with_marks
from jaxagents.types import Agent, Array, ChatFormat, Environment, LanguageModel, LanguagePolicy, Layout, Params

_THINK_TAGS = ("<think>", "</think>")
_TEXTS = {"system": "SYSTEM0TEXT", "user": "USER1TEXT", "assistant": "ASSISTANT1TEXT", "last": "USER2TEXT"}
_UNLIKELY = -1e9  # Finite: a probability of zero times its logarithm must be zero.


@dataclasses.dataclass(frozen=True, eq=False)
class ChatLexicon(Lexicon):
    """A lexicon that renders what stands around a text, too, which it knows by the room for it.

    Attributes:
        chat: how texts are framed.
    """

    chat: ChatFormat


def make_agent(
    environment: Environment,
    *,
    inner: Callable[..., Agent],
    policy: partial,
    source: str | Path,
    think_tags: Sequence[str] = _THINK_TAGS,
    axis_name: str | None = None,
    **options: Any,
) -> Agent:
    """Assembles an agent that speaks in the chat format of an instructed model.

    Args:
        environment: a text world.
        inner: `(environment, *, policy, axis_name) -> Agent`, what learns.
        policy: `make_language_policy` with its settings; the tokenizer among them does not count.
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
    think_tags: Sequence[str] = _THINK_TAGS,
    thought_tokens: int = 0,
    action_tokens: int | None = None,
    prompt: bool = True,
    **options: Any,
) -> LanguagePolicy:
    """Makes a policy that speaks the words of a world in the chat format of an instructed model.

    The prompt of the task is what the system says, an observation what the user says, a thought and an action what the
    assistant says. Tokens that end a turn are one event to the policy, with the sum of their probabilities.

    Args:
        environment: a text world.
        source: folder of the tokenizer, with `tokenizer_config.json` and its chat template.
        model: `(vocab_size) -> LanguageModel`.
        think_tags: tags around a thought.
        thought_tokens: see `make_language_policy`.
        action_tokens: see `make_language_policy`.
        prompt: see `make_language_policy`.
        **options: further ones of `make_language_policy`.

    Returns:
        The policy; its layout has room for what stands around the texts.

    Raises:
        ValueError: see `read_chat_format` and `make_language_policy`; or the model has no room for an episode.

    Deviation: a template that opens the first turn of the user otherwise than the later ones (Gemma and Qwen3 without a
        system text: no line end before it) is followed in the later ones, and a prompt that a template does not take
        from the system is a turn of the user of its own.
    """
    backend, chat = read_chat_format(source, think_tags=think_tags, thinks=thought_tokens > 0)
    marks = _marks(chat)
    plain = make_language_policy(
        environment,
        tokenizer=lambda words: with_marks(backend, marks, name=str(source)),
        model=lambda vocab_size: stop_together(model(vocab_size), chat),
        thought_tokens=thought_tokens,
        action_tokens=action_tokens,
        prompt=prompt,
        **options,
    )
    layout, frames = _frame(plain.layout, chat, prompt=bool(plain.layout.prompt), has_prompt=environment.text.prompt)
    most = plain.model.max_positions
    if most is not None and layout.length > most:
        raise ValueError(
            f"`model.max_positions` must be at least the {layout.length} tokens of an episode of {environment.name!r} "
            f"in this chat format, got {most}; try fewer `num_turns`."
        )
    fields = {field.name: getattr(plain.lexicon, field.name) for field in dataclasses.fields(Lexicon)}
    fields["render"] = _make_render(plain.lexicon.render, frames)
    return plain._replace(layout=layout, lexicon=ChatLexicon(**fields, chat=chat))


def read_chat_format(
    source: str | Path, *, think_tags: Sequence[str] = _THINK_TAGS, thinks: bool = False
) -> tuple[Any, ChatFormat]:
    """Reads the chat format of a tokenizer: its template is shown a conversation, and what it adds is cut out.

    Args:
        source: folder with `tokenizer_config.json`.
        think_tags: tags around a thought.
        thinks: whether there are thoughts.

    Returns:
        The `tokenizers.Tokenizer`, and the format.

    Raises:
        ValueError: a file or the template is missing, the template leaves a role out or does not end what the
            assistant says with a special token, or there are thoughts and no single token that closes them.
    """
    folder = Path(source).expanduser()
    if not (folder / "tokenizer_config.json").is_file():
        raise ValueError(f"`source` must hold tokenizer_config.json, got none in {folder}; nothing is downloaded.")
    from transformers import AutoTokenizer  # An extra: only who reads checkpoints needs it.

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    if not tokenizer.chat_template:
        raise ValueError(f"`source` must have a chat template, got none in {folder}; try policy=language_model.")

    def encode(text: str) -> tuple[int, ...]:
        return tuple(tokenizer.encode(text, add_special_tokens=False))

    pieces = _cut(tokenizer, folder, system=False)
    turned = encode(pieces["last"].lstrip())
    special = {*tokenizer.all_special_ids, *(int(i) for i in tokenizer.added_tokens_decoder)}
    if not turned or turned[0] not in special:
        raise ValueError(
            f"`chat_template` of {folder} must end what the assistant says with a special token, got "
            f"{pieces['last']!r}."
        )
    end, user_open = turned[0], turned[1:]
    first_open, assistant_open = encode(pieces["user"]), encode(pieces["assistant"])
    if not user_open or not assistant_open:
        raise ValueError(
            f"`chat_template` of {folder} must have roles, got no text around those of user and assistant."
        )
    prompt_open = first_open
    prompt_close: tuple[int, ...] = (end,)
    if with_system := _cut(tokenizer, folder, system=True):
        before_user = encode(with_system["user"])
        if before_user[-len(user_open) :] == user_open:
            prompt_open, prompt_close = encode(with_system["system"]), before_user[: -len(user_open)]
    chat = ChatFormat(
        prompt_open=prompt_open,
        prompt_close=prompt_close,
        first_open=first_open,
        user_open=user_open,
        assistant_open=assistant_open,
        end=end,
        stops=_stops(folder, tokenizer, end),
    )
    if not thinks:
        return tokenizer.backend_tokenizer, chat
    close = encode(think_tags[1])
    if len(close) != 1:
        raise ValueError(
            f"`think_tags` must end with a token of the vocabulary, got {think_tags[1]!r}, which is {len(close)} "
            "tokens; try the model's own tags, or thought_tokens=0."
        )
    return tokenizer.backend_tokenizer, chat._replace(
        think_open=encode(think_tags[0] + "\n"),
        think_close=close[0],
        think_break=encode("\n"),
        answer_break=encode("\n\n"),
    )


def stop_together(model: LanguageModel, chat: ChatFormat) -> LanguageModel:
    """Makes a model whose end token has the probability of all tokens that end a turn, and the others none."""
    others = jnp.asarray([token for token in chat.stops if token != chat.end and token < model.vocab_size], jnp.int32)
    if not others.size:
        return model

    def logits(params: Params, hidden: Array) -> Array:
        values = model.logits(params, hidden)
        together = jnp.concatenate([values[..., chat.end, None], values[..., others]], axis=-1)
        values = values.at[..., chat.end].set(jax.nn.logsumexp(together, axis=-1))
        return values.at[..., others].set(_UNLIKELY)

    return model._replace(logits=logits)


def _cut(tokenizer: Any, folder: Path, *, system: bool) -> dict[str, str]:
    """Returns what a template writes before each text of a conversation; nothing where it takes no system text."""
    roles = (["system"] if system else []) + ["user", "assistant", "last"]
    messages = [{"role": "user" if role == "last" else role, "content": _TEXTS[role]} for role in roles]
    try:
        rest = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except Exception as error:  # Templates raise what they like.
        if system:
            return {}
        raise ValueError(f"`chat_template` of {folder} must take turns of user and assistant, got: {error}") from error
    pieces = {}
    for role in roles:
        if _TEXTS[role] not in rest:
            said_by = "user" if role == "last" else role
            if said_by == "system":
                return {}
            raise ValueError(
                f"`chat_template` of {folder} must have roles, got one that leaves out the {said_by}'s text."
            )
        pieces[role], rest = rest.split(_TEXTS[role], 1)
    return pieces | {"generation": rest}


def _stops(folder: Path, tokenizer: Any, end: int) -> tuple[int, ...]:
    """Returns the end token, that of the tokenizer and those of the generation config."""
    stops = {end, tokenizer.eos_token_id}
    file = folder / "generation_config.json"
    if file.is_file():
        given = json.loads(file.read_text()).get("eos_token_id")
        stops |= set(given) if isinstance(given, list) else {given}
    return tuple(sorted(stops - {None}))


def _marks(chat: ChatFormat) -> dict[str, int]:
    """Returns the control tokens of a dialogue: first and last tokens of what stands around a text."""
    opened = (*chat.assistant_open, *chat.think_open)
    act = opened[-1] if chat.think_close is None else chat.think_close
    return {"pad": chat.end, "end": chat.end, "observation": chat.user_open[0], "think": opened[-1], "act": act}


Frame = tuple[tuple[int, ...], tuple[int, ...], bool]
"""Tokens before and after a text, and whether the text is said."""


def _frame(layout: Layout, chat: ChatFormat, *, prompt: bool, has_prompt: Any) -> tuple[Layout, dict[int, Frame]]:
    """Makes room for what stands around the texts; returns it by the room that a text is rendered into."""
    opened = (*chat.assistant_open, *chat.think_open)
    frames = {
        "prompt": (chat.prompt_open, chat.prompt_close, True),
        "observation": (chat.user_open[1:], opened[:-1], True),
        "thought": ((), chat.think_break, True),
        "action": (chat.answer_break, (), True),
    }
    if not prompt:
        # What opens the first turn and not the later ones; worlds that have no prompt at all cannot say it.
        frames["prompt"] = (_beginning(chat) if has_prompt else (), (), False)
    sizes = {name: getattr(layout, name) + len(before) + len(after) for name, (before, after, _) in frames.items()}
    if not layout.thought:
        sizes["thought"] = 0
    marks = {"prompt": 0, "observation": 2, "thought": 1, "action": 1}  # Tokens that are no part of what is rendered.
    by_room: dict[int, Frame] = {}
    for name, size in sizes.items():
        if not size:
            continue
        while size - marks[name] in by_room:  # The room says what is rendered.
            size += 1
        sizes[name] = size
        by_room[size - marks[name]] = frames[name]
    return layout._replace(**sizes), by_room


def _beginning(chat: ChatFormat) -> tuple[int, ...]:
    """Returns what the first turn of the user begins with beyond the later ones."""
    first, later = chat.first_open, chat.user_open
    shared = max(n for n in range(len(later) + 1) if n == 0 or first[-n:] == later[-n:])
    return first[: len(first) - shared]


def _make_render(render: Callable[..., tuple[Array, Array]], frames: dict[int, Frame]) -> Callable:
    def framed(word_ids: Array, length: int) -> tuple[Array, Array]:
        if length not in frames:
            return render(word_ids, length)
        before, after, said = frames[length]
        tokens, mask = render(word_ids, length - len(before) - len(after))
        mask = mask & said
        begin = jnp.asarray(before, jnp.int32)
        tokens = jnp.concatenate([begin, tokens, jnp.zeros(len(after), jnp.int32)])
        end = len(before) + jnp.sum(mask)
        column = jnp.arange(length)
        for i, token in enumerate(after):
            tokens = jnp.where(column == end + i, token, tokens)
        return tokens, column < end + len(after)

    return framed
