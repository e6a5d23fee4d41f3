"""Tests of jaxagents/reporting/transcripts.py."""

import io

import pytest

from jaxagents.data.schema import Trajectory, Turn
from jaxagents.reporting.transcripts import describe, fold, lay_out, print_transcripts

TURNS = (
    Turn(turn=0, observation="P _ / _ G", action="up", thought="hm [b]", reward=0.0, valid=False),
    Turn(turn=1, observation="P _ / _ G nothing happens .", action="", reward=-0.5, truncated=True),
)
TRAJECTORY = Trajectory(
    id="episode-0", world="lake", turns=TURNS, prompt="walk to G .", level=2, success=False, episode_return=-0.5
)


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("P _ / _ G", ["P _", "_ G"]),
        ("P _ / _ G nothing happens .", ["P _", "_ G", "nothing happens ."]),
        ("P _ / _ G a . b .", ["P _", "_ G", "a .", "b ."]),
        ("You see  a . It is b .", ["You see a .", "It is b ."]),
        # No grid: rows of different lengths, or a stroke at the beginning.
        ("6 / 2 / 10 / 3 4", ["6", "2", "10", "3", "4"]),
        ("a b / c", ["a b / c"]),
        ("a / b c / d", ["a / b c / d"]),
        ("/ a", ["/ a"]),
        ("", [""]),
    ],
)
def test_text_is_laid_out_as_a_grid_or_in_sentences(text, lines):
    assert lay_out(text).split("\n") == lines


def test_how_an_episode_ended():
    assert describe(TRAJECTORY) == "episode-0: lake, level 2, no success, return -0.5, 2 turns"
    assert describe(Trajectory(id="a", world="w", turns=TURNS[:1])) == "a: w, unfinished, 1 turn"


def test_a_game_says_who_speaks_and_what_each_got():
    turns = (
        Turn(turn=0, observation="moves .", action="bet", reward=-2.0),
        Turn(turn=1, observation="moves bet .", action="bet", agent=1, reward=2.0, terminated=True),
    )
    game = Trajectory(
        id="a",
        world="kuhn_poker",
        turns=turns,
        agents=("player 0", "player 1"),
        success=True,
        episode_return=0.0,
        metadata={"seat_returns": [-2.0, 2.0]},
    )
    assert describe(game) == "a: kuhn_poker, success, player 0 -2, player 1 +2, 2 turns"
    stream = io.StringIO()
    print_transcripts([game], stream)
    lines = [line.strip() for line in stream.getvalue().splitlines()]
    assert lines[1:4] == ["turn 0, player 0", "observation  moves .", "action       bet"]
    assert lines[5] == "turn 1, player 1"


def test_every_turn_is_printed():
    stream = io.StringIO()
    print_transcripts([TRAJECTORY], stream, title="Before")
    lines = stream.getvalue().splitlines()
    assert lines[:3] == ["Before", "", "episode-0: lake, level 2, no success, return -0.5, 2 turns"]
    assert [line.split(maxsplit=1) for line in lines[3:]] == [
        ["prompt", "walk to G ."],
        ["turn", "0"],
        ["observation", "P _"],
        ["_", "G"],
        ["thought", "hm [b]"],
        ["action", "up  (invalid)"],
        ["turn", "1"],
        ["observation", "P _"],
        ["_", "G"],
        ["nothing", "happens ."],
        ["action", "(nothing)"],
        ["reward", "-0.5 (cut)"],
        [],
    ]
    # The rows of a grid stand below each other.
    assert lines[5].index("P") == lines[6].index("_")


def test_roles_have_colours_in_a_terminal_only(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    plain, coloured = io.StringIO(), Terminal()
    for stream in (plain, coloured):
        print_transcripts([TRAJECTORY], stream)
    assert "\x1b[" not in plain.getvalue()
    assert "\x1b[1;31mup  (invalid)" in coloured.getvalue()
    assert "\x1b[36mP _" in coloured.getvalue()


def test_several_agents_are_named():
    turns = (Turn(turn=0, observation="a", action="b", agent=1),)
    stream = io.StringIO()
    print_transcripts([Trajectory(id="x", world="w", turns=turns, agents=("red", "blue"))], stream)
    assert "turn 0, blue" in stream.getvalue()


def test_turns_are_joined_where_one_agent_sees_the_same_again():
    def turn(observation, agent=0):
        return Turn(turn=0, observation=observation, action="b", agent=agent)

    assert fold([turn("x"), turn("x"), turn("y"), turn("x"), turn("x"), turn("x")]) == [[0, 1], [2], [3, 4, 5]]
    assert fold([turn("x"), turn("x", agent=1)]) == [[0], [1]]
    assert fold([]) == []


def test_what_is_seen_again_is_not_printed_again():
    turns = tuple(Turn(turn=i, observation="P _ / _ G", action=action) for i, action in enumerate(("up", "left")))
    stream = io.StringIO()
    print_transcripts([Trajectory(id="x", world="w", turns=turns)], stream)
    lines = [line.split(maxsplit=1) for line in stream.getvalue().splitlines()]
    assert lines[1:-1] == [
        *(["turn", "0"], ["observation", "P _"], ["_", "G"], ["action", "up"]),
        *(["turn", "1, the same observation"], ["action", "left"]),
    ]
