"""Text in, text out: a language policy that answers observations."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import jax

from jaxagents.environments.text.words import read_words, sentence
from jaxagents.language.conversation import Conversation, make_answer
from jaxagents.types import Array, Environment, LanguagePolicy, Params


def make_reply(policy: LanguagePolicy, environment: Environment) -> Callable[..., tuple[str, Conversation]]:
    """Makes the function that answers an observation in text, see `conversation.make_answer`.

    Args:
        policy: policy that speaks.
        environment: text world whose words are understood.

    Returns:
        `(params, text, carry=None, *, prompt=None, key=None) -> (reply, carry)`. `carry` is returned by the previous
        call, None at the start of a conversation; there, `prompt`, the prompt of a task, is read first. The reply is
        empty if no action could be parsed from the answer. Without `key` the most probable tokens are generated, with a
        key they are sampled. Raises a ValueError if the world lacks a word, with the nearest ones, or the text is too
        long.
    """
    interface, read = environment.text, policy.lexicon.encode_words
    answer = make_answer(policy, environment.action_space.shape[0])
    room = environment.observation_space.shape[0]

    def room_of_prompt() -> int:
        if interface.prompt is None:
            raise ValueError(f"`prompt` must be left out in {environment.name}, which has none.")
        task = jax.eval_shape(environment.sample_task, jax.random.key(0))
        return jax.eval_shape(interface.prompt, task).shape[0]

    def reply(
        params: Params,
        text: str,
        carry: Conversation | None = None,
        *,
        prompt: str | None = None,
        key: Array | None = None,
    ) -> tuple[str, Conversation]:
        """Answers an observation of the text world, in the world's words.

        Args:
            text: text of the observation.
            carry: result of the previous call, None at the start of an episode.
            prompt: prompt of the task, if the world has one; it is read at the start.
            key: key for sampling; without it, the most probable tokens are generated.

        Returns:
            The action, empty if none could be parsed, and the carry for the next call.

        Raises:
            ValueError: the world lacks a word, or the text is too long.
        """
        try:
            observation = read_words(text, interface.words, read, room)
        except ValueError as error:
            raise ValueError(f"{error} Free text is answered by `speak`.") from error
        asked = None if prompt is None else read_words(prompt, interface.words, read, room_of_prompt())
        action, carry = answer(params, observation, carry, prompt=asked, key=key)
        return sentence(interface.words, action), carry

    return reply


def refuse_text(answer: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a function of `(params, observation, ...)` in word ids refuse text, and name the functions that take it."""

    @wraps(answer)
    def answer_ids(params: Params, observation: Any, *others: Any, **named: Any) -> Any:
        if isinstance(observation, str):
            raise ValueError(
                f"`observation` must be word ids for `act`, got the text {observation!r}; try `reply`, which answers "
                "an observation in words, or `speak`, which answers free text."
            )
        return answer(params, observation, *others, **named)

    return answer_ids
