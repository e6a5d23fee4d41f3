"""Episodes of text as one HTML file that needs nothing else: every token in the shade of its log-probability."""

import json
import math
from collections.abc import Mapping, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path

from jaxagents.data.schema import Trajectory, Turn
from jaxagents.data.trajectories import write_trajectories
from jaxagents.reporting.loggers import write_atomically
from jaxagents.reporting.transcripts import describe_seats, lay_out
from jaxagents.types import Tokenizer

TRANSCRIPTS_FILE = "transcripts.html"

_DARKEST = 4.0  # nats of surprise at which the shade is full

_STYLE = """
:root { color-scheme: light dark; --page: #f5f7fa; --card: #fff; --text: #1f2933; --quiet: #616e7c; --line: #e4e7eb;
  --good: #1f7a4d; --bad: #b3362b; --world: #2e6f95; }
@media (prefers-color-scheme: dark) { :root { --page: #14181d; --card: #1e242b; --text: #e4e7eb; --quiet: #9aa5b1;
  --line: #323f4b; --good: #7cd6a4; --bad: #f08a7e; --world: #7cc4e8; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 900px; margin: 0 auto; padding: 32px 20px 64px; }
h1 { font-size: 26px; margin: 0 0 12px; overflow-wrap: anywhere; } h2 { font-size: 19px; margin: 28px 0 12px; }
article { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 14px 20px;
  margin-bottom: 16px; }
.head { display: flex; flex-wrap: wrap; gap: 6px 14px; align-items: baseline; } .head b { font-size: 16px; }
.quiet, summary, dt { color: var(--quiet); font-size: 13px; } summary { cursor: pointer; }
.badge { border: 1px solid; border-radius: 99px; padding: 0 10px; font-size: 13px; }
.good { color: var(--good); } .bad { color: var(--bad); }
.turn { border-top: 1px solid var(--line); padding: 8px 0; }
dl { display: grid; grid-template-columns: 7em 1fr; gap: 2px 8px; margin: 0; }
dt { padding-top: 2px; } dd { margin: 0; }
pre, .said { margin: 0; font: 14px/1.5 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere; }
pre { color: var(--world); }
.said span { border-radius: 3px; padding: 1px 0; } .said .mark { color: var(--quiet); font-size: 11px; }
.legend { display: flex; flex-wrap: wrap; gap: 4px; align-items: center; } .legend span { padding: 0 8px; }
"""


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
    body = [f"<h1>{escape(title)}</h1>\n", _legend() if tokenizer else ""]
    for heading, trajectories in sections.items():
        body.append(f"<h2>{escape(heading)}</h2>\n" if heading else "")
        body += [_article(trajectory, tokenizer) for trajectory in trajectories]
    page = (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style></head>\n<body><main>\n{''.join(body)}</main></body></html>\n"
    )
    write_atomically(path, page)
    return path


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


def _legend() -> str:
    steps = [1.0, 0.7, 0.4, 0.2, 0.1, math.exp(-_DARKEST)]
    cells = [f'<span style="{_shade(math.log(p))}">{p:.2g}</span>' for p in steps]
    return (
        f'<p class="quiet legend">Probability of a token under the policy that said it: {"".join(cells)} '
        "(hover for numbers)</p>\n"
    )


def _shade(log_prob: float) -> str:
    return f"background:rgb(226 109 92 / {0.85 * min(max(0.0, -log_prob / _DARKEST), 1.0):.2f})"


def _article(trajectory: Trajectory, tokenizer: Tokenizer | None) -> str:
    badges = {True: ("good", "success"), False: ("bad", "no success"), None: ("quiet", "unfinished")}
    kind, word = badges[trajectory.success]
    facts = [trajectory.world, f"{len(trajectory.turns)} turn{'s' if len(trajectory.turns) > 1 else ''}"]
    if trajectory.level is not None:
        facts.append(f"level {trajectory.level}")
    if (by_seat := describe_seats(trajectory)) is not None:
        facts.append(by_seat)
    elif trajectory.episode_return is not None:
        facts.append(f"return {trajectory.episode_return:.4g}")
    if "group" in trajectory.metadata:
        facts.append(f"group {trajectory.metadata['group']}")
    task = ""
    if trajectory.task is not None:
        task = f"<details><summary>task</summary><pre>{escape(json.dumps(trajectory.task))}</pre></details>"
    prompt = f"<dl>{_entry('prompt', trajectory.prompt)}</dl>" if trajectory.prompt else ""
    turns = [_turn(turn, trajectory.agents, tokenizer) for turn in trajectory.turns]
    return (
        f'<article><div class="head"><b>{escape(trajectory.id)}</b><span class="badge {kind}">{word}</span>'
        f'<span class="quiet">{escape(" · ".join(facts))}</span></div>{task}{prompt}{"".join(turns)}</article>\n'
    )


def _turn(turn: Turn, agents: Sequence[str], tokenizer: Tokenizer | None) -> str:
    name = f"turn {turn.turn}" + (f", {agents[turn.agent]}" if len(agents) > 1 else "")
    entries = [_entry(name, lay_out(turn.observation))]
    if tokenizer is not None and turn.tokens is not None:
        entries.append(f"<dt>said</dt><dd>{_said(turn, tokenizer)}{_invalid(turn)}</dd>")
    else:
        if turn.thought is not None:
            entries.append(_entry("thought", turn.thought, kind="said"))
        action = f'<span class="said">{escape(turn.action)}</span>'
        entries.append(f"<dt>action</dt><dd>{action}{_invalid(turn)}</dd>")
    end = " · end" * turn.terminated + " · cut" * turn.truncated
    if turn.reward or end:
        kind = "good" if turn.reward > 0 else "bad" if turn.reward < 0 else "quiet"
        entries.append(f'<dt>reward</dt><dd class="{kind}">{turn.reward:+.4g}{end}</dd>')
    return f'<div class="turn"><dl>{"".join(entries)}</dl></div>'


def _invalid(turn: Turn) -> str:
    return "" if turn.valid else ' <span class="badge bad">invalid action</span>'


def _entry(name: str, content: str, kind: str = "") -> str:
    return f'<dt>{escape(name)}</dt><dd><pre class="{kind}">{escape(content)}</pre></dd>'


def _said(turn: Turn, tokenizer: Tokenizer) -> str:
    """Writes the tokens that the policy sampled."""
    marks = set(tokenizer.marks.values())
    spans = []
    for token, text, sampled, log_prob in zip(
        turn.tokens, token_texts(tokenizer, turn.tokens), turn.sampled, turn.behavior_log_prob, strict=True
    ):
        if sampled:
            numbers = f"{text!r} (token {token}): log-probability {log_prob:.3f}, probability {math.exp(log_prob):.3g}"
            kind = ' class="mark"' if token in marks else ""
            style = f'style="{_shade(log_prob)}" title="{escape(numbers)}"'
            spans.append(f"<span{kind} {style}>{escape(text)}</span>")
    return f'<span class="said">{"".join(spans)}</span>'
