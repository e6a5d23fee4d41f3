"""Free text to and from a language policy, in the format of its transcripts, and log-probabilities of text."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxagents.data.messages import from_messages
from jaxagents.data.packing import TokenSequence
from jaxagents.data.schema import Trajectory
from jaxagents.data.streams import encode
from jaxagents.language.generate import Sampling, generate
from jaxagents.networks.attention import causal_mask
from jaxagents.policies.language_model import token_statistics
from jaxagents.types import Array, LanguagePolicy, Params

_BLOCK = 64  # Conversations are padded to multiples of so many tokens, with one compiled program for each length.


def make_speak(policy: LanguagePolicy) -> Callable[..., str]:
    """Makes the function that answers a conversation in text.

    Args:
        policy: policy that was trained on conversations, such as those of `collector=transcripts`.

    Returns:
        `(params, messages, *, key=None, max_tokens=64) -> text`. `messages` is the user's message, or the whole
        conversation so far, `[{"role": "user", "content": "..."}, ...]`, ending with a message of the user. The most
        probable tokens are generated; with `key`, they are sampled. It raises ValueError if the tokenizer lacks a word,
        the text is too long, or the last message is not the user's.
    """
    ends = policy.tokenizer.ends

    @partial(jax.jit, static_argnames=("max_tokens", "greedy"))
    def say(params: Params, tokens: Array, mask: Array, key: Array, *, max_tokens: int, greedy: bool):
        output = generate(
            *(policy.model, params, tokens, mask),
            keys=key[None],
            max_new_tokens=max_tokens,
            sampling=Sampling(greedy=greedy),
            stop_ids=ends,
        )
        return output.tokens[0], output.mask[0]

    def speak(
        params: Params,
        messages: str | Sequence[Mapping[str, Any]],
        *,
        key: Array | None = None,
        max_tokens: int = 64,
    ) -> str:
        """Answers free text.

        Args:
            messages: message of the user, or `[{"role": "user", "content": "..."}, ...]`, ending with a message of the
                user.
            key: random key for sampling; None: the most probable tokens are generated.
            max_tokens: maximum number of tokens of the answer.

        Returns:
            The answer.

        Raises:
            ValueError: the tokenizer lacks a word, the text is too long, or the last message is not the user's.
        """
        read = tokens_to_answer(policy, messages)
        length = -(-len(read) // _BLOCK) * _BLOCK
        most = policy.model.max_positions
        if most is not None and len(read) + max_tokens > most:
            raise ValueError(
                f"`messages` must leave room for {max_tokens} tokens among {most}, got {len(read)} tokens; try fewer "
                "messages, or a smaller `max_tokens`."
            )
        tokens, mask = np.zeros((1, length), np.int32), np.arange(length)[None] < len(read)
        tokens[0, : len(read)] = read
        key, greedy = (jax.random.key(0), True) if key is None else (key, False)
        output, spoken = say(params, jnp.asarray(tokens), jnp.asarray(mask), key, max_tokens=max_tokens, greedy=greedy)
        return policy.tokenizer.decode([int(token) for token in output[spoken] if token not in ends])

    return speak


class Score(NamedTuple):
    """Log-probabilities of a conversation, token by token.

    Attributes:
        tokens: int32 `[L]`, token ids.
        pieces: texts of the tokens; marks are in angle brackets.
        log_prob: float32 `[L]`, log-probability of each token given all earlier ones, in nats; 0 for the first one.
        completion_mask: bool `[L]`, True for tokens of the assistant, including the end of its messages.
    """

    tokens: np.ndarray
    pieces: list[str]
    log_prob: np.ndarray
    completion_mask: np.ndarray


def make_score(policy: LanguagePolicy) -> Callable[..., Score]:
    """Makes the function that computes `log p(token | all before)` along a conversation.

    Args:
        policy: policy that reads the conversation in the format of its transcripts.

    Returns:
        `(params, messages) -> Score`, at temperature 1. `messages` is `[{"role": "user", "content": "..."}, ...]`,
        ending with a message of the assistant. It raises ValueError if the tokenizer lacks a word, or the text is too
        long.
    """

    @jax.jit
    def read(params: Params, tokens: Array, mask: Array) -> Array:
        positions = jnp.arange(tokens.shape[1])[None]
        hidden = policy.model.apply(params, tokens, positions=positions, mask=causal_mask(mask))
        found = token_statistics(policy.model, params, hidden[:, :-1], tokens[:, 1:], fields=("log_prob",))
        return jnp.pad(jnp.asarray(found.log_prob)[0], (1, 0))

    def score(params: Params, messages: Sequence[Mapping[str, Any]]) -> Score:
        """Computes the log-probability of every token of a conversation, given all before it.

        Args:
            messages: `[{"role": "user", "content": "..."}, ...]`, ending with a message of the assistant.

        Returns:
            `tokens`, `pieces`, `log_prob` in nats at temperature 1, and `completion_mask`, True in answers.

        Raises:
            ValueError: the tokenizer lacks a word, or the text is too long.
        """
        sequence = _encode(policy, from_messages(messages, id="conversation"))
        count, most = len(sequence.tokens), policy.model.max_positions
        if most is not None and count > most:
            raise ValueError(f"`messages` must fit into {most} tokens, got {count}; try fewer messages.")
        length = -(-count // _BLOCK) * _BLOCK
        tokens, mask = np.zeros((1, length), np.int32), np.arange(length)[None] < count
        tokens[0, :count] = sequence.tokens
        marks = {token: f"<{name}>" for name, token in policy.tokenizer.marks.items()}
        return Score(
            tokens=tokens[0, :count],
            pieces=[marks.get(token) or policy.tokenizer.decode([token]) for token in sequence.tokens],
            log_prob=np.asarray(read(params, jnp.asarray(tokens), jnp.asarray(mask)))[:count],
            completion_mask=np.asarray(sequence.loss_weight) > 0.0,
        )

    return score


def tokens_to_answer(policy: LanguagePolicy, messages: str | Sequence[Mapping[str, Any]]) -> list[int]:
    """Returns the tokens of a conversation up to the policy's answer, in the format of transcripts.

    Args:
        policy: policy that provides the tokenizer and the chat format.
        messages: see `make_speak`.

    Raises:
        ValueError: see `make_speak`.
    """
    conversation = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
    for index, message in enumerate(conversation):
        if not isinstance(message, Mapping) or "role" not in message:
            fields = ", ".join(message) if isinstance(message, Mapping) else repr(message)
            raise ValueError(
                f"`messages[{index}]` must have a `role` and a `content`, got {fields}; try "
                '[{"role": "user", "content": "Hello!"}].'
            )
    if not conversation or conversation[-1]["role"] not in ("user", "tool"):
        raise ValueError(f"`messages` must end with one of the user or of a tool, got {conversation[-1:] or 'none'}.")
    if (chat := getattr(policy.lexicon, "chat", None)) is not None:
        return chat.encode_prompt(conversation)
    trajectory = from_messages([*conversation, {"role": "assistant", "content": ""}], id="conversation")
    sequence = _encode(policy, trajectory)
    # The policy generates the rest; what stands last ends nothing yet.
    return list(sequence.tokens[:-1])


def _encode(policy: LanguagePolicy, trajectory: Trajectory) -> TokenSequence:
    chat = getattr(policy.lexicon, "chat", None)
    try:
        (sequence,) = encode(trajectory, policy.tokenizer, chat=chat)
    except ValueError as error:
        if chat is not None:
            raise
        raise ValueError(
            f"`messages` must be made of words that the tokenizer {policy.tokenizer.name!r} knows, got others: {error} "
            "A small model that was trained with tokenizer=bytes knows all."
        ) from error
    return sequence
