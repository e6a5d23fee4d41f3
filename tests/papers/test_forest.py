"""Tests of jaxagents/papers/forest.py, and of the sentences beside its pictures."""

import math
import xml.etree.ElementTree as ElementTree

import pytest

from jaxagents.papers.expectations import Expectation
from jaxagents.papers.forest import in_margins, lay_out_forest
from jaxagents.papers.judge import HELD, MISSING, NOT_HELD, UNDECIDED, Finding, decide
from jaxagents.reporting.html import write_page
from jaxagents.reporting.statistics import Interval

TWO, ONE = ("ours", "theirs"), ("ours",)


def expect(kind, margin, arms=TWO, **fields):
    return Expectation("score", kind, arms, margin, **fields)


def found(expected, *interval):
    interval = Interval(*interval)
    return Finding(expected, "headline", decide(expected, interval), interval)


@pytest.mark.parametrize(
    ("expected", "values", "shown", "band"),
    [
        (expect("higher", 0.5), (1.0, 0.25, -0.5), [2.0, 0.5, -1.0], (1.0, math.inf)),
        (expect("lower", 0.5), (-1.0, -0.25, 0.5), [2.0, 0.5, -1.0], (1.0, math.inf)),
        (expect("equal", 0.5), (0.25, -1.0), [0.5, -2.0], (-1.0, 1.0)),
        (expect("near", 0.5, ONE, value=3.0), (3.25, 2.0), [0.5, -2.0], (-1.0, 1.0)),
        (expect("above", 0.5, ONE), (1.0, 0.25), [2.0, 0.5], (1.0, math.inf)),
        (expect("above", -0.5, ONE), (1.0, -0.25), [2.0, -0.5], (-1.0, math.inf)),
        (expect("below", 0.5, ONE), (1.0, 0.25), [-2.0, -0.5], (-1.0, math.inf)),
        (expect("higher", 0.0), (0.25, -0.5), [1.0, -2.0], (0.0, math.inf)),  # Without a margin.
        (expect("above", 0.0, ONE), (0.0,), [0.0], (0.0, math.inf)),
    ],
)
def test_values_in_margins_and_where_the_expectation_holds(expected, values, shown, band):
    assert in_margins(expected, values) == (shown, band)


@pytest.mark.parametrize("kind", ["higher", "lower", "above", "below", "equal", "near"])
def test_what_is_decided_to_hold_lies_in_the_band_and_what_is_not_outside(kind):
    expected = expect(kind, 0.5, TWO if kind in ("higher", "lower", "equal") else ONE, value=0.25)
    outcomes = set()
    for mean in (-2.0, -1.0, -0.5, 0.0, 0.25, 0.5, 1.0, 2.0):
        outcome = decide(expected, Interval(mean, mean - 0.1, mean + 0.1))
        shown, (low, high) = in_margins(expected, (mean, mean - 0.1, mean + 0.1))
        outcomes.add(outcome)
        if outcome == HELD:
            assert low <= shown[0] <= high
        if outcome == NOT_HELD:
            assert not (low < min(shown[1:]) and max(shown[1:]) < high)
    assert {HELD, NOT_HELD} <= outcomes


def test_a_row_has_its_interval_its_mean_and_arrows_where_it_goes_on():
    forest = lay_out_forest(
        "t", {"p": [found(expect("higher", 0.5), 0.5, 0.0, 3.0), found(expect("higher", 0.1), -0.4, -0.5, -0.2)]}
    )
    places = {label: x for x, label in forest.ticks}
    first, second = forest.rows
    left, right = forest.axis
    assert (first.label, second.label) == ("p", "") and first.subject == "ours − theirs"
    assert (first.dot, first.line, first.beyond) == (places["1"], (places["0"], right), (False, True))
    assert first.band == (places["1"], right) and second.y - first.y == 34.0
    assert (second.dot, second.line, second.beyond) == (left, (left, places["-2"]), (True, False))
    assert (first.outcome, first.text) == (UNDECIDED, "0.5 (0 to 3)") and second.outcome == NOT_HELD


def test_what_has_not_run_has_a_row_without_an_interval():
    (row,) = lay_out_forest("t", {"p": [Finding(expect("lower", 0.5), "headline", MISSING)]}).rows
    assert row.line is None and row.dot is None and row.text == MISSING and row.subject == "theirs − ours"


def test_the_picture_is_a_file_of_its_own(tmp_path):
    nan = Finding(expect("higher", 0.5), "headline", UNDECIDED, Interval(math.nan, math.nan, math.nan))
    forest = lay_out_forest("<t> & t", {"p": [found(expect("higher", 0.5), 1.0, 0.75, 1.25), nan]})
    path = write_page(tmp_path / "a.svg", "forest.svg", forest=forest)
    root = ElementTree.parse(path).getroot()
    names = [element.tag.partition("}")[2] for element in root.iter()]
    assert root.tag == "{http://www.w3.org/2000/svg}svg" and names.count("circle") == 1
    text = path.read_text()
    assert "prefers-color-scheme: dark" in text and "href" not in text and "1 (0.75 to 1.25)" in text
