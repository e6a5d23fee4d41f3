"""Episodes of text as one HTML file that needs nothing else: every token in the shade of its log-probability."""

import json
import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from jaxagents.data.schema import Trajectory, Turn
from jaxagents.data.trajectories import write_trajectories
from jaxagents.reporting.html import write_page
from jaxagents.reporting.transcripts import describe_seats, lay_out
from jaxagents.types import Tokenizer

TRANSCRIPTS_FILE = "transcripts.html"
_TILE = 20  # Characters of the widest line of boards that stand side by side.
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
        path: of the file; its folder is created if missing.
        sections: episodes under their heading; an empty heading is left out.
        tokenizer: of the tokens that the turns keep; None shows the text only.
        title: of the page.

    Returns:
        Absolute path of the file.
    """
    path = Path(path).resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    legend = [(probability, math.log(probability)) for probability in _LEGEND] if tokenizer else []
    shown = {
        name: [describe_episode(episode, tokenizer) for episode in episodes] for name, episodes in sections.items()
    }
    return write_page(path, "transcripts.html", title=title, legend=legend, sections=shown)


def save_transcripts(
    trajectories: Sequence[Trajectory],
    tokenizer: Tokenizer,
    *,
    html: str | Path | None = None,
    jsonl: str | Path | None = None,
    title: str = "Transcripts",
) -> dict[str, str | None]:
    """Writes episodes to the files that are wanted, unless there are none.

    Args:
        trajectories: to write.
        tokenizer: see `write_transcripts`.
        html: path of the page; None for none.
        jsonl: path of the trajectories, see `data.trajectories`; None for none.
        title: of the page.

    Returns:
        Absolute paths of "html" and "jsonl"; None where nothing was written.
    """
    files = {"html": None, "jsonl": None}
    if html is not None and trajectories:
        files["html"] = str(write_transcripts(html, {"": trajectories}, tokenizer=tokenizer, title=title))
    if jsonl is not None and trajectories:
        path = Path(jsonl).resolve()
        path.parent.mkdir(parents=True, exist_ok=True)
        write_trajectories(path, trajectories)
        files["jsonl"] = str(path)
    return files


def token_texts(tokenizer: Tokenizer, tokens: Sequence[int]) -> list[str]:
    """Cuts the text of tokens into what each of them adds; control tokens are "<name>".

    Args:
        tokenizer: of the tokens.
        tokens: ids.

    Returns:
        As many texts. A token that does not just add to the text before it, such as a part of a letter, is written on
        its own.
    """
    names = {token: f"<{name}>" for name, token in tokenizer.marks.items()}
    prefixes = [tokenizer.decode(tokens[:size]) for size in range(len(tokens) + 1)]
    texts = []
    for token, (before, after) in zip(tokens, pairwise(prefixes), strict=True):
        added = after[len(before) :] if after.startswith(before) else tokenizer.decode([token])
        texts.append(names.get(token, added))
    return texts


def describe_episode(trajectory: Trajectory, tokenizer: Tokenizer | None = None) -> dict[str, Any]:
    """Returns what the template `episode.html` shows of an episode."""
    lines = [line for turn in trajectory.turns for line in lay_out(turn.observation).splitlines()]
    outcomes = {True: ("good", "success"), False: ("bad", "no success"), None: ("quiet", "unfinished")}
    kind, outcome = outcomes[trajectory.success]
    return {
        "id": trajectory.id,
        "kind": kind,
        "outcome": outcome,
        "facts": _facts(trajectory),
        "task": None if trajectory.task is None else json.dumps(trajectory.task),
        "prompt": trajectory.prompt,
        "tiled": max(map(len, lines), default=0) <= _TILE and len(trajectory.turns) > 1,
        "turns": [_describe_turn(turn, trajectory.agents, tokenizer) for turn in trajectory.turns],
    }


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


def _describe_turn(turn: Turn, agents: Sequence[str], tokenizer: Tokenizer | None) -> dict[str, Any]:
    end = " · end" * turn.terminated + " · cut" * turn.truncated
    return {
        "name": f"turn {turn.turn}" + (f", {agents[turn.agent]}" if len(agents) > 1 else ""),
        "observation": lay_out(turn.observation),
        "thought": turn.thought,
        "action": turn.action,
        "valid": turn.valid,
        "tokens": None if tokenizer is None or turn.tokens is None else _sampled_tokens(turn, tokenizer),
        "kind": "good" if turn.reward > 0 else "bad" if turn.reward < 0 else "quiet",
        "reward": f"{turn.reward:+.4g}{end}" if turn.reward or end else "",
    }


def _sampled_tokens(turn: Turn, tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """Returns the tokens that the policy sampled."""
    marks = set(tokenizer.marks.values())
    texts = token_texts(tokenizer, turn.tokens)
    rows = zip(turn.tokens, texts, turn.sampled, turn.behavior_log_prob, strict=True)
    return [
        {
            "text": text,
            "log_prob": log_prob,
            "mark": token in marks,
            "title": f"{text!r} (token {token}): log-probability {log_prob:.3f}, probability {math.exp(log_prob):.3g}",
        }
        for token, text, sampled, log_prob in rows
        if sampled
    ]
