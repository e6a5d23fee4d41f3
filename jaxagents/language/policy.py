"""A language policy: a model, a tokenizer and the words of a world, with a layout for its episodes."""

from collections.abc import Callable, Sequence

import jax

from jaxagents.language.lexicon import Lexicon, make_lexicon, require_readable
from jaxagents.types import Environment, LanguageModel, LanguagePolicy, Layout, Tokenizer

MARKS = ("pad", "end", "observation", "think", "act")


def make_language_policy(
    environment: Environment,
    *,
    tokenizer: Callable[[Sequence[str]], Tokenizer],
    model: Callable[[int], LanguageModel],
    context_turns: int | None = None,
    num_turns: int | None = None,
    thought_tokens: int = 0,
    action_tokens: int | None = None,
    prompt: bool = True,
) -> LanguagePolicy:
    """Makes a policy that speaks the words of a world.

    Args:
        environment: text world.
        tokenizer: `(words) -> Tokenizer`.
        model: `(vocab_size) -> LanguageModel`.
        context_turns: number of own turns that are visible, including the current one; None: all. With 1 and no prompt,
            turns are independent inputs of the model: fastest, and sufficient if an observation contains everything.
        num_turns: number of turns after which episodes are cut off; None: the world's limit.
        thought_tokens: largest number of tokens of a thought before every action; 0: no thoughts.
        action_tokens: largest number of tokens of an action with its end mark; None: that of the longest action.
        prompt: whether the task's prompt comes first, if the world has one.

    Returns:
        The policy.

    Raises:
        ValueError: the environment is not a text world, the tokenizer lacks a mark or cannot distinguish words, the
            actions do not fit, or the model has fewer positions than an episode needs.
    """
    if environment.text is None:
        raise ValueError(f"`environment` must be a text world, got {environment.name!r}; try environment=frozenlake.")
    tokens = tokenizer(environment.text.words)
    _require_marks(tokens)
    lexicon = make_lexicon(environment.text.words, tokens)
    interface = environment.text
    require_readable(lexicon, interface.actions if interface.examples is None else interface.examples)
    actions = interface.patterns.action if interface.patterns and interface.patterns.action else ((interface.actions,),)
    needed = max(map(lexicon.max_tokens, actions)) + 1
    if action_tokens is not None and action_tokens < needed:
        raise ValueError(
            f"`action_tokens` must hold the longest action and its end mark, {needed} tokens, got {action_tokens}."
        )
    if thought_tokens < 0:
        raise ValueError(f"`thought_tokens` must not be negative, got {thought_tokens}; try 0 for no thoughts.")
    num_turns = _positive("num_turns", num_turns, environment.max_steps)
    layout = Layout(
        prompt=prompt_tokens(environment, lexicon) if prompt else 0,
        observation=observation_tokens(environment, lexicon) + 2,
        thought=thought_tokens,
        action=needed if action_tokens is None else action_tokens,
        num_turns=num_turns,
        context_turns=min(_positive("context_turns", context_turns, num_turns), num_turns),
    )
    network = model(tokens.vocab_size)
    _require_room(layout, network, environment.name)
    return LanguagePolicy(model=network, tokenizer=tokens, lexicon=lexicon, layout=layout)


def _positive(name: str, value: int | None, default: int) -> int:
    if value is not None and value < 1:
        raise ValueError(f"`{name}` must be at least 1, got {value}; try null for {default}.")
    return default if value is None else value


def _require_marks(tokenizer: Tokenizer) -> None:
    missing = [name for name in MARKS if name not in tokenizer.marks]
    if missing:
        raise ValueError(
            f"`tokenizer` must have the marks {', '.join(MARKS)}, got {tokenizer.name!r} without {', '.join(missing)}; "
            "try another tokenizer, or add them as special tokens."
        )


def observation_tokens(environment: Environment, lexicon: Lexicon) -> int:
    """Returns the number of tokens of the longest observation."""
    if environment.text.patterns is None:
        return lexicon.max_tokens(environment.observation_space.shape[0])
    return max(map(lexicon.max_tokens, environment.text.patterns.observation))


def prompt_tokens(environment: Environment, lexicon: Lexicon) -> int:
    """Returns the number of tokens of the longest prompt; 0 if the world has none."""
    if environment.text.prompt is None:
        return 0
    if environment.text.patterns is not None:
        return max(map(lexicon.max_tokens, environment.text.patterns.prompt))
    task = jax.eval_shape(environment.sample_task, jax.random.key(0))
    return lexicon.max_tokens(jax.eval_shape(environment.text.prompt, task).shape[0])


def _require_room(layout: Layout, model: LanguageModel, name: str) -> None:
    if model.max_positions is not None and layout.length > model.max_positions:
        raise ValueError(
            f"`model.max_positions` must be at least the {layout.length} tokens of an episode of {name!r} "
            f"({layout.prompt} prompt + {layout.num_turns} turns * ({layout.observation} observation + "
            f"{layout.sampled} action)), got {model.max_positions}; try fewer `num_turns` or a longer context."
        )
