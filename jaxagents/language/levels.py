"""Results for each of several levels of difficulty."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from jaxagents.language.collect import make_dialogue_evaluator
from jaxagents.types import Array, Environment, LanguagePolicy, Params


def make_level_evaluator(
    environment: Environment,
    policy: LanguagePolicy,
    *,
    num_episodes: int,
    greedy: bool = True,
    level: int | Sequence[int] | None = None,
    **options: Any,
) -> Callable[[Params, Array], dict[str, Array]]:
    """Makes an evaluation that cycles through levels and also reports results for each.

    Args:
        environment: unbatched text world.
        policy: policy that acts.
        num_episodes: number of episodes, each on its own task; a multiple of the number of entries of `level`.
        greedy: see `make_dialogue_evaluator`.
        level: levels; None: each of the world's levels once.
        **options: further arguments of `make_dialogue_evaluator`.

    Returns:
        `(params, key) -> results`: those of `make_dialogue_evaluator`, and `success_level_<l>`, float32 `[num_episodes
        * fraction of the level]`.

    Raises:
        ValueError: episodes cannot be divided equally among the levels, or see `make_dialogue_evaluator`.
    """
    if level is None:
        level = range(1 if environment.text is None else environment.text.num_levels)
    levels = (level,) if isinstance(level, int) else tuple(level)
    if num_episodes % len(levels):
        count = -(-num_episodes // len(levels)) * len(levels)
        raise ValueError(
            f"`num_episodes` must be divisible by the {len(levels)} entries of `level`, got {num_episodes}; "
            f"try {count}."
        )
    make = partial(make_dialogue_evaluator, environment, policy, num_episodes=num_episodes, greedy=greedy)
    evaluate_all = make(level=levels, **options)

    def evaluate(params: Params, key: Array) -> dict[str, Array]:
        results = evaluate_all(params, key)
        turns = results["success"].reshape(-1, len(levels))
        of_level = {
            f"success_level_{entry}": turns[:, [i for i, other in enumerate(levels) if other == entry]].reshape(-1)
            for entry in dict.fromkeys(levels)
        }
        return results | of_level

    return evaluate
