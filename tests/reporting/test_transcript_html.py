"""Tests of jaxagents/reporting/transcript_html.py."""

import html
import html.parser
import re
from dataclasses import replace

import pytest

from jaxagents.data.schema import Trajectory, Turn
from jaxagents.data.trajectories import read_trajectories
from jaxagents.language.tokenizers import byte_level, word_level
from jaxagents.reporting.transcript_html import save_transcripts, token_texts, write_transcripts

WORDS = ("go", "to <b>", "stay")
TOKENIZER = word_level(WORDS)
MARKS = TOKENIZER.marks
# The world says "stay", the policy "go to <b>" and its end.
TOKENS = (MARKS["observation"], 7, MARKS["act"], 5, 6, MARKS["end"])
SAMPLED = (False, False, False, True, True, True)
LOG_PROB = (0.0, 0.0, 0.0, 0.0, -2.0, -9.0)
TURN = Turn(
    turn=0,
    observation="stay",
    action="go to <b>",
    reward=1.0,
    terminated=True,
    tokens=TOKENS,
    sampled=SAMPLED,
    behavior_log_prob=LOG_PROB,
)
TRAJECTORY = Trajectory(
    id="e-0",
    world="w & w",
    turns=(TURN,),
    prompt="<script>",
    success=True,
    episode_return=1.0,
    task={"goal": [1, 2]},
    metadata={"group": 3},
)


class Reader(html.parser.HTMLParser):
    """Collects tags with their attributes, and refuses tags that are not closed in order."""

    def __init__(self, page):
        super().__init__()
        self.found, self.open = [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def page_of(tmp_path, *trajectories, tokenizer=TOKENIZER):
    return write_transcripts(tmp_path / "a.html", {"H & H": trajectories}, tokenizer=tokenizer, title="<t>").read_text()


def tokens(page):
    """Returns the shade and the hover text of every token that was said."""
    spans = re.findall(r'<span class="token[^"]*" style="--surprise:([\d.]+)[^"]*" data-detail="([^"]*)">', page)
    return [(float(shade), html.unescape(text)) for shade, text in spans]


def test_tokens_have_the_shade_of_their_log_probability(tmp_path):
    (sure, first), (unsure, second), (worst, third) = tokens(page_of(tmp_path, TRAJECTORY))
    assert sure == 0.0 and worst == 0.85  # The shade is full from 4 nats on.
    assert unsure == pytest.approx(0.85 * 2.0 / 4.0, abs=0.006)
    assert first == "' go' (token 5): probability 1, log-probability 0.000"
    assert second == "' to <b>' (token 6): probability 0.135, log-probability -2.000"
    assert third.startswith(f"'<end>' (token {MARKS['end']}): probability 0.000123, log-probability -9.000")


def test_tokens_have_the_color_of_their_advantage(tmp_path):
    credited = replace(TRAJECTORY, metadata={"advantages": [[0.0, 0.0, 0.0, 0.0, 1.5, -4.0]]})
    page = page_of(tmp_path, credited)
    assert [text.rpartition(", ")[2] for _, text in tokens(page)] == ["advantage +0", "advantage +1.5", "advantage -4"]
    found = re.findall(r'<span class="token([^"]*)" style="--surprise:[\d.]+;--credit:([\d.]+)"', page)
    assert found == [("", "0.00"), (" up", "0.45"), (" mark down", "0.60")]  # The color is full from 2 on.
    assert "Advantage of a token" in page and "Advantage of a token" not in page_of(tmp_path, TRAJECTORY)
    with pytest.raises(ValueError, match="shorter"):
        page_of(tmp_path, replace(TRAJECTORY, metadata={"advantages": [[0.0]]}))


def test_the_page_is_whole_and_needs_nothing_else(tmp_path):
    page = page_of(tmp_path, TRAJECTORY)
    reader = Reader(page)
    assert reader.open == []
    tags = {tag for tag, _ in reader.found}
    assert not tags & {"link", "img", "iframe"}
    assert not any(name in ("src", "href") for _, attributes in reader.found for name in attributes)
    assert "http" not in page and "url(" not in page
    assert "prefers-color-scheme: dark" in page


def test_what_worlds_say_is_escaped(tmp_path):
    page = page_of(tmp_path, TRAJECTORY)
    assert page.count("<script>") == 1 and "&lt;script&gt;" in page  # That of the keys.
    assert "<title>&lt;t&gt;</title>" in page and ">H &amp; H</h2>" in page and "w &amp; w" in page


def test_rewards_badges_group_and_task_are_there(tmp_path):
    page = page_of(tmp_path, TRAJECTORY)
    assert '<span class="badge good">success</span>' in page
    assert '<dd class="good">+1 · end</dd>' in page
    assert "1 turn · return 1 · group 3" in page
    assert "{&#34;goal&#34;: [1, 2]}" in page
    assert ">invalid action<" not in page


def test_turns_without_tokens_show_their_text(tmp_path):
    turn = Turn(turn=0, observation="a / b", action="go <x>", thought="so", valid=False, reward=-1.0)
    page = page_of(tmp_path, Trajectory(id="p", world="w", turns=(turn,)))
    assert tokens(page) == []
    assert '<pre class="">a\nb</pre>' in page
    assert "go &lt;x&gt;" in page and ">so</pre>" in page
    assert '<span class="badge bad">invalid action</span>' in page
    assert '<span class="badge quiet">unfinished</span>' in page
    assert '<dd class="bad">-1</dd>' in page
    # Without a tokenizer, tokens are not shown either.
    page = page_of(tmp_path, TRAJECTORY, tokenizer=None)
    assert tokens(page) == [] and "go to &lt;b&gt;" in page and "Probability" not in page


def test_texts_of_tokens():
    assert token_texts(TOKENIZER, TOKENS) == ["<observation>", "stay", "<act>", " go", " to <b>", "<end>"]
    tokenizer = byte_level()
    text = "a é"
    tokens = tokenizer.encode(text)
    # The two bytes of the accent are no text of their own.
    assert token_texts(tokenizer, tokens) == ["a", " ", "\ufffd", "\ufffd"]


def test_only_files_that_are_wanted_are_written(tmp_path):
    both = save_transcripts({"": [TRAJECTORY]}, TOKENIZER, html=tmp_path / "x/a.html", jsonl=tmp_path / "y/a.jsonl")
    assert both == {"html": str(tmp_path / "x/a.html"), "jsonl": str(tmp_path / "y/a.jsonl")}
    assert list(read_trajectories(both["jsonl"])) == [TRAJECTORY]
    assert save_transcripts({"": [TRAJECTORY]}, TOKENIZER) == {"html": None, "jsonl": None}
    nothing = save_transcripts({"": []}, TOKENIZER, html=tmp_path / "b.html", jsonl=tmp_path / "b.jsonl")
    assert nothing == {"html": None, "jsonl": None}
    assert not (tmp_path / "b.html").exists()


def test_small_boards_stand_side_by_side_and_long_texts_below_each_other(tmp_path):
    boards = [Turn(turn=i, observation="P _ / _ G", action="go") for i in range(2)]
    texts = [Turn(turn=i, observation="you see a door and a very long corridor", action="go") for i in range(2)]
    assert 'class="turns tiled"' in page_of(tmp_path, Trajectory(id="a", world="w", turns=tuple(boards)))
    assert 'class="turns"' in page_of(tmp_path, Trajectory(id="b", world="w", turns=tuple(texts)))


def test_what_is_seen_again_is_folded_under_what_was_done_there(tmp_path):
    def turn(index, observation, action, **fields):
        return Turn(turn=index, observation=observation, action=action, **fields)

    turns = (
        turn(0, "P _ / _ G", "right"),
        turn(1, "_ P / _ G", "up"),
        turn(2, "_ P / _ G", "up", valid=False, reward=-0.5),
        turn(3, "_ P / _ G", "right", reward=-0.25),
        turn(4, "_ P / _ G", "up", truncated=True),
        turn(5, "P _ / _ G", "down"),
    )
    page = page_of(tmp_path, Trajectory(id="a", world="w", turns=turns))
    assert Reader(page).open == []
    boards = re.findall(r'<dt>(turn \d)</dt><dd><pre class="">([^<]*)</pre>', page)
    assert boards == [("turn 0", "P _\n_ G"), ("turn 1", "_ P\n_ G"), ("turn 5", "P _\n_ G")]
    (summary,) = re.findall(r'<details class="again"><summary>(.*?)</summary>', page)
    assert summary == "3 more times the same: up × 2, right · 1 invalid · reward -0.75 · cut"
    inside = page.partition('<details class="again">')[2].partition("</details>")[0]
    assert re.findall(r"<dt>(turn \d)</dt>", inside) == ["turn 2", "turn 3", "turn 4"]
    assert re.findall(r'<span class="completion">(\w+)</span>', inside) == ["up", "right", "up"]
    assert inside.count(">invalid action<") == 1
    assert ">repeated observations <" in page  # The switch that unfolds all.
    assert ">repeated observations <" not in page_of(tmp_path, Trajectory(id="a", world="w", turns=turns[:2]))


def test_tokens_of_folded_turns_are_kept(tmp_path):
    repeated = replace(TRAJECTORY, turns=(replace(TURN, terminated=False), replace(TURN, turn=1)))
    page = page_of(tmp_path, repeated)
    assert len(tokens(page)) == 6 and page.count('<details class="again">') == 1
