"""Multi-turn GRPO the way it is usually written: Python between `transformers`, a Python world and PyTorch.

The rival of `benchmarks.compiled_loop` in `suite=lm_vs_host`. Every turn, `generate` reads the whole history of the
live episodes, left-padded, and keeps keys and values within the turn only, as most loops over `transformers` do. An
update is a forward and backward pass over all episodes, in microbatches, and one step of AdamW.
"""

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from jaxagents.environments.adapters.importing import import_suite
from jaxagents.environments.text.frozenlake import (
    ACTIONS,
    FROZEN,
    GOAL,
    HOLE,
    MOVES,
    PLAYER,
    PLAYER_AT_GOAL,
    PLAYER_IN_HOLE,
    ROW_END,
)
from jaxagents.environments.text.words import NOTHING_HAPPENS

LEARNING_RATE = 1e-5  # Of both loops: so small that later updates play like the first.


class Game(NamedTuple):
    """What both loops play and learn from.

    Attributes:
        num_groups: tasks per update.
        group_size: episodes per task.
        num_turns: most turns of an episode.
        action_tokens: most tokens of an action, its end mark included.
        instruction: phrases that open every observation.
        end_probability: chance per turn that the episode ends there, whatever was done.
    """

    num_groups: int
    group_size: int
    num_turns: int
    action_tokens: int
    instruction: tuple[str, ...]
    end_probability: float


class Loop(NamedTuple):
    """One of the two loops.

    Attributes:
        update: `() -> facts`; plays the episodes of one update and learns from them. Facts are means over the episodes,
            `turns_per_episode`, `tokens_per_episode`, `sampled_tokens_per_episode`, and the `loss`.
        num_params: of the model.
        compile_seconds: before the first update.
    """

    update: Callable[[], dict[str, float]]
    num_params: int
    compile_seconds: float


@dataclass
class Lake:
    """A frozen lake in plain Python."""

    holes: list[bool]
    goal: int
    position: int
    size: int
    valid: bool = True


@dataclass
class Dialogue:
    """An episode so far: its tokens, which of them the policy sampled, and how it went."""

    lake: Lake
    tokens: list[int]
    sampled: list[bool]
    turns: int = 0
    reward: float = 0.0
    over: bool = False


def make_lake(task: Mapping[str, np.ndarray]) -> Lake:
    """Makes a lake of a task of `environments.text.frozenlake` with a single size."""
    return Lake(
        holes=task["holes"].reshape(-1).tolist(),
        goal=int(task["goal"]),
        position=int(task["start"]),
        size=int(task["size"]),
    )


def observe(lake: Lake) -> list[str]:
    """Returns the words of a lake."""
    words = []
    for cell, hole in enumerate(lake.holes):
        if cell and cell % lake.size == 0:
            words.append(ROW_END)
        if cell == lake.position:
            words.append(PLAYER_IN_HOLE if hole else PLAYER_AT_GOAL if cell == lake.goal else PLAYER)
        else:
            words.append(HOLE if hole else GOAL if cell == lake.goal else FROZEN)
    return words if lake.valid else [*words, *NOTHING_HAPPENS]


def act(lake: Lake, words: Sequence[str]) -> tuple[float, bool]:
    """Moves the player.

    Args:
        lake: changed in place.
        words: of the action; anything but one move changes nothing.

    Returns:
        Reward, and whether the episode is over.
    """
    lake.valid = len(words) == 1 and words[0] in ACTIONS
    if lake.valid:
        row, column = divmod(lake.position, lake.size)
        down, right = MOVES[ACTIONS.index(words[0])].tolist()
        row, column = (min(max(x, 0), lake.size - 1) for x in (row + down, column + right))
        lake.position = row * lake.size + column
    success = lake.position == lake.goal
    return float(success), success or lake.holes[lake.position]


def make_host_loop(
    game: Game,
    *,
    words: Sequence[str],
    marks: Mapping[str, int],
    tasks: Sequence[Mapping[str, np.ndarray]],
    features: int,
    num_layers: int,
    num_heads: int = 4,
    microbatch_episodes: int = 64,
    num_threads: int | None = None,
    device: str = "cpu",
    seed: int = 0,
) -> Loop:
    """Makes GRPO of a `LlamaForCausalLM` from random parameters on frozen lakes, on the host.

    Args:
        game: what is played.
        words: the token of word i is `i + len(marks)`.
        marks: control tokens by name.
        tasks: of the lakes; updates take them in order, over and over.
        features: of the residual stream; the MLP is as wide as makes a gated one as large as one of four times that.
        num_layers: of the model.
        num_heads: of attention.
        microbatch_episodes: how many go through the model at once when it learns.
        num_threads: of PyTorch; None for its own choice.
        device: of the model, as PyTorch names it; "cuda" for a GPU.
        seed: of parameters, sampling and episodes that end by chance.

    Returns:
        The loop.

    Raises:
        ModuleNotFoundError: `torch` or `transformers` is not installed.
    """
    torch, transformers = import_suite("torch", "hf"), import_suite("transformers", "hf")
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    torch.manual_seed(seed)
    torch.set_float32_matmul_precision("high")  # As jax does on GPUs; on CPUs there is nothing lower than float32.
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=len(words) + len(marks),
            hidden_size=features,
            intermediate_size=round(8 * features / 3),
            num_hidden_layers=num_layers,
            num_attention_heads=num_heads,
            max_position_embeddings=2048,
            tie_word_embeddings=True,
            pad_token_id=marks["pad"],
            bos_token_id=None,
            eos_token_id=marks["end"],
        )
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    chance, order = random.Random(seed), itertools.cycle(tasks)

    def update() -> dict[str, float]:
        chosen = itertools.islice(order, game.num_groups)
        dialogues = [Dialogue(make_lake(task), [], []) for task in chosen for _ in range(game.group_size)]
        for _ in range(game.num_turns):
            live = [dialogue for dialogue in dialogues if not dialogue.over]
            if not live:
                break
            _take_turn(torch, model, game, words, marks, live, chance)
        loss = _learn(torch, model, optimizer, game, microbatch_episodes, dialogues)
        return {
            "turns_per_episode": sum(d.turns for d in dialogues) / len(dialogues),
            "tokens_per_episode": sum(len(d.tokens) for d in dialogues) / len(dialogues),
            "sampled_tokens_per_episode": sum(sum(d.sampled) for d in dialogues) / len(dialogues),
            "loss": loss,
        }

    num_params = sum(parameter.numel() for parameter in model.parameters())
    return Loop(update=update, num_params=num_params, compile_seconds=0.0)


def _take_turn(
    torch: Any,
    model: Any,
    game: Game,
    words: Sequence[str],
    marks: Mapping[str, int],
    live: Sequence[Dialogue],
    chance: random.Random,
) -> None:
    """Observes, samples and acts in every live episode."""
    ids = {word: i + len(marks) for i, word in enumerate(words)}
    for dialogue in live:
        read = [ids[word] for word in (*game.instruction, *observe(dialogue.lake))]
        _say(dialogue, [marks["observation"], *read, marks["act"]], sampled=False)
    width = max(len(dialogue.tokens) for dialogue in live)
    tokens = [[marks["pad"]] * (width - len(d.tokens)) + d.tokens for d in live]
    mask = [[0] * (width - len(d.tokens)) + [1] * len(d.tokens) for d in live]
    model.eval()
    output = model.generate(
        input_ids=torch.tensor(tokens, device=model.device),
        attention_mask=torch.tensor(mask, device=model.device),
        max_new_tokens=game.action_tokens,
        do_sample=True,
        top_k=0,
    )
    for dialogue, row in zip(live, output[:, width:].tolist(), strict=True):
        ended = marks["end"] in row
        length = row.index(marks["end"]) if ended else len(row)
        _say(dialogue, row[: length + ended], sampled=True)
        known = ended and all(token >= len(marks) for token in row[:length])
        reward, over = act(dialogue.lake, [words[token - len(marks)] for token in row[:length]] if known else [])
        dialogue.turns += 1
        dialogue.reward += reward
        dialogue.over = over or chance.random() < game.end_probability


def _say(dialogue: Dialogue, tokens: Sequence[int], *, sampled: bool) -> None:
    dialogue.tokens += tokens
    dialogue.sampled += [sampled] * len(tokens)


def _learn(
    torch: Any, model: Any, optimizer: Any, game: Game, microbatch_episodes: int, dialogues: Sequence[Dialogue]
) -> float:
    """Takes one step of GRPO; the behaviour is the present policy, as there is one step per batch."""
    returns = torch.tensor([d.reward for d in dialogues]).reshape(game.num_groups, game.group_size)
    deviation = returns.std(dim=1, keepdim=True, correction=0)
    advantages = ((returns - returns.mean(dim=1, keepdim=True)) / (deviation + 1e-6)).reshape(-1, 1)
    model.train()
    optimizer.zero_grad()
    total = 0.0
    for first in range(0, len(dialogues), microbatch_episodes):
        some = slice(first, first + microbatch_episodes)
        loss = _loss(torch, model, dialogues[some], advantages[some]) / len(dialogues)
        loss.backward()
        total += float(loss.detach())
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return total


def _loss(torch: Any, model: Any, dialogues: Sequence[Dialogue], advantage: Any) -> Any:
    """Computes the sum over episodes of the mean clipped surrogate of their sampled tokens."""
    width = max(len(d.tokens) for d in dialogues)
    padded = [
        [d.tokens + [0] * (width - len(d.tokens)) for d in dialogues],
        [[1] * len(d.tokens) + [0] * (width - len(d.tokens)) for d in dialogues],
        [d.sampled + [False] * (width - len(d.sampled)) for d in dialogues],
    ]
    tokens, mask, sampled = (torch.tensor(rows, device=model.device) for rows in padded)
    sampled, advantage = sampled[:, 1:].float(), advantage.to(model.device)
    logits = model(input_ids=tokens, attention_mask=mask, use_cache=False).logits[:, :-1]
    log_prob = torch.log_softmax(logits, dim=-1).gather(-1, tokens[:, 1:, None])[..., 0]
    ratio = torch.exp(log_prob - log_prob.detach())
    per_token = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
    return ((per_token * sampled).sum(dim=1) / sampled.sum(dim=1)).sum()
