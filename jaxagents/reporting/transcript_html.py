"""Text episodes as one self-contained HTML file, with tokens shaded by their probability or advantage."""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from jaxagents.data.schema import Trajectory, Turn
from jaxagents.data.trajectories import write_trajectories
from jaxagents.reporting.html import write_page
from jaxagents.reporting.transcripts import describe_seats, fold, lay_out
from jaxagents.types import Tokenizer

TRANSCRIPTS_FILE = "transcripts.html"
ADVANTAGES = "advantages"  # In the metadata of a trajectory: advantages of every token, by turn.
_TILE = 20  # Maximum characters of the widest line of boards that are shown side by side.
_LEGEND = (1.0, 0.7, 0.4, 0.2, 0.1, 0.018)  # Probabilities.


def write_transcripts(
    path: str | Path,
    sections: Mapping[str, Sequence[Trajectory]],
    *,
    tokenizer: Tokenizer | None = None,
    title: str = "Transcripts",
) -> Path:
    """Writes episodes as a page.

    Args:
        path: path of the file; its folder is created if missing.
        sections: episodes by heading; an empty heading is not shown. Several sections can be read side by side, row by
            row, since each has the episodes of the same tasks in the same order.
        tokenizer: tokenizer of the tokens that the turns hold; None: only the text is shown.
        title: title of the page.

    Returns:
        Absolute path of the file.
    """
    path = Path(path).resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    described = {
        name: [describe_episode(episode, tokenizer) for episode in episodes] for name, episodes in sections.items()
    }
    episodes = [episode for of_section in sections.values() for episode in of_section]
    return write_page(
        path,
        "transcripts.html",
        title=title,
        legend=[(probability, math.log(probability)) for probability in _LEGEND] if tokenizer else [],
        sections=described,
        folded=any(
            turn["again"] for of_section in described.values() for episode in of_section for turn in episode["turns"]
        ),
        credited=any(ADVANTAGES in episode.metadata for episode in episodes),
    )


def save_transcripts(
    sections: Mapping[str, Sequence[Trajectory]],
    tokenizer: Tokenizer,
    *,
    html: str | Path | None = None,
    jsonl: str | Path | None = None,
    title: str = "Transcripts",
) -> dict[str, str | None]:
    """Writes episodes to the requested files, unless there are no episodes.

    Args:
        sections: see `write_transcripts`.
        tokenizer: see `write_transcripts`.
        html: path of the page; None: no page.
        jsonl: path of the trajectories, see `data.trajectories`; None: no such file.
        title: title of the page.

    Returns:
        Absolute paths of "html" and "jsonl"; None for a file that was not written.
    """
    files: dict[str, str | None] = {"html": None, "jsonl": None}
    trajectories = [trajectory for played in sections.values() for trajectory in played]
    if html is not None and trajectories:
        files["html"] = str(write_transcripts(html, sections, tokenizer=tokenizer, title=title))
    if jsonl is not None and trajectories:
        path = Path(jsonl).resolve()
        path.parent.mkdir(parents=True, exist_ok=True)
        write_trajectories(path, trajectories)
        files["jsonl"] = str(path)
    return files


def token_texts(tokenizer: Tokenizer, tokens: Sequence[int]) -> list[str]:
    """Splits the text of tokens into what each of them adds; control tokens are "<name>".

    Args:
        tokenizer: tokenizer of the tokens.
        tokens: token ids.

    Returns:
        One text per token. A token that does not simply extend the text before it, such as a part of a letter, is
        decoded on its own.
    """
    names = {token: f"<{name}>" for name, token in tokenizer.marks.items()}
    prefixes = [tokenizer.decode(tokens[:size]) for size in range(len(tokens) + 1)]
    texts = []
    for token, (before, after) in zip(tokens, pairwise(prefixes), strict=True):
        added = after[len(before) :] if after.startswith(before) else tokenizer.decode([token])
        texts.append(names.get(token, added))
    return texts


def describe_episode(trajectory: Trajectory, tokenizer: Tokenizer | None = None) -> dict[str, Any]:
    """Returns the values that the template `episode.html` shows of an episode."""
    lines = [line for turn in trajectory.turns for line in lay_out(turn.observation).splitlines()]
    outcomes = {True: ("good", "success"), False: ("bad", "no success"), None: ("quiet", "unfinished")}
    kind, outcome = outcomes[trajectory.success]
    advantages = trajectory.metadata.get(ADVANTAGES, [None] * len(trajectory.turns))
    turns = [
        _describe_turn(turn, trajectory.agents, tokenizer, of_turn)
        for turn, of_turn in zip(trajectory.turns, advantages, strict=True)
    ]
    return {
        "id": trajectory.id,
        "kind": kind,
        "outcome": outcome,
        "facts": _facts(trajectory),
        "task": None if trajectory.task is None else json.dumps(trajectory.task),
        "prompt": trajectory.prompt,
        "tiled": max(map(len, lines), default=0) <= _TILE and len(trajectory.turns) > 1,
        "invalid": not all(turn.valid for turn in trajectory.turns),
        "turns": [
            {
                **turns[first],
                "again": [turns[i] for i in rest],
                "summary": _summarize([trajectory.turns[i] for i in rest]),
            }
            for first, *rest in fold(trajectory.turns)
        ],
    }


def _summarize(turns: Sequence[Turn]) -> str:
    """Summarises repeated turns with the same observation, such as "2 more times the same: right, left"."""
    actions = Counter(turn.action or "(nothing)" for turn in turns)
    facts = [", ".join(action + f" × {count}" * (count > 1) for action, count in actions.items())]
    facts += [f"{invalid} invalid"] if (invalid := sum(not turn.valid for turn in turns)) else []
    facts += [f"reward {reward:+.4g}"] if (reward := sum(turn.reward for turn in turns)) else []
    facts += ["end"] * any(turn.terminated for turn in turns) + ["cut"] * any(turn.truncated for turn in turns)
    return f"{len(turns)} more time{'s' * (len(turns) > 1)} the same: " + " · ".join(facts)


def _facts(trajectory: Trajectory) -> list[str]:
    facts = [trajectory.world, f"{len(trajectory.turns)} turn{'s' if len(trajectory.turns) > 1 else ''}"]
    if trajectory.level is not None:
        facts.append(f"level {trajectory.level}")
    if (by_seat := describe_seats(trajectory)) is not None:
        facts.append(by_seat)
    elif trajectory.episode_return is not None:
        facts.append(f"return {trajectory.episode_return:.4g}")
    if "group" in trajectory.metadata:
        facts.append(f"group {trajectory.metadata['group']}")
    return facts


def _describe_turn(
    turn: Turn, agents: Sequence[str], tokenizer: Tokenizer | None, advantages: Sequence[float] | None
) -> dict[str, Any]:
    end = " · end" * turn.terminated + " · cut" * turn.truncated
    return {
        "name": f"turn {turn.turn}" + (f", {agents[turn.agent]}" if len(agents) > 1 else ""),
        "observation": lay_out(turn.observation),
        "thought": turn.thought,
        "action": turn.action,
        "valid": turn.valid,
        "tokens": None if tokenizer is None else _sampled_tokens(turn, tokenizer, advantages),
        "kind": "good" if turn.reward > 0 else "bad" if turn.reward < 0 else "quiet",
        "reward": f"{turn.reward:+.4g}{end}" if turn.reward or end else "",
    }


def _sampled_tokens(
    turn: Turn, tokenizer: Tokenizer, advantages: Sequence[float | None] | None
) -> list[dict[str, Any]] | None:
    """Returns the tokens that the policy sampled; None if they were not stored."""
    if turn.tokens is None or turn.sampled is None or turn.behavior_log_prob is None:
        return None
    marks = set(tokenizer.marks.values())
    texts = token_texts(tokenizer, turn.tokens)
    advantages = [None] * len(texts) if advantages is None else advantages
    rows = zip(turn.tokens, texts, turn.sampled, turn.behavior_log_prob, advantages, strict=True)
    return [
        {
            "text": text,
            "log_prob": log_prob,
            "advantage": advantage,
            "mark": token in marks,
            "detail": f"{text!r} (token {token}): probability {math.exp(log_prob):.3g}, log-probability {log_prob:.3f}"
            + ("" if advantage is None else f", advantage {advantage:+.3g}"),
        }
        for token, text, sampled, log_prob, advantage in rows
        if sampled
    ]
