"""Pictures of arms, from runs that were made by hand."""

import pytest

from jaxagents.papers import pictures
from jaxagents.papers.runs import DONE, ArmRuns, Run
from jaxagents.papers.study import make_paper, make_study


@pytest.fixture
def paper():
    study = make_study({"id": "f/s", "question": "q", "metric": "success", "seeds": "0-2", "experiment": "x"})
    values = {"id": "p", "family": "f", "title": "t", "claim": "c", "minutes": 1, "study": "s", "arms": {"a": []}}
    return make_paper(values | {"headline": [{"arm": "a", "above": 0.5}]}, study)


def runs_of(**values):
    """Returns runs of success at two points, by seed: `s3=[0.0, 0.5]`."""
    runs = {
        seed: Run("t", seed, DONE, {"eval/success": {"steps": [0, 8][: len(curve)], "values": curve}}, 1.0)
        for seed, curve in ((int(name[1:]), curve) for name, curve in values.items())
    }
    return ArmRuns(runs)


def test_arms_are_drawn_with_their_committed_seeds(paper, tmp_path, monkeypatch):
    drawn = {}
    monkeypatch.setattr(pictures, "draw_comparison", lambda path, compared, metric: drawn.update(of=compared) or path)
    runs = {"b": runs_of(s0=[0.0, 0.25]), "a": runs_of(s0=[0.0, 0.5], s2=[0.25, 1.0], s100=[9.0, 9.0])}
    pictures.draw_arms(tmp_path / "x.png", paper, runs, ["a", "b"])
    first, second = drawn["of"]
    assert (first.label, second.label) == ("a", "b")
    assert first.curve.values.tolist() == [[0.0, 0.25], [0.5, 1.0]] and first.final.tolist() == [0.5, 1.0]
    assert second.curve.steps.tolist() == [0.0, 8.0]
    pictures.draw_arms(tmp_path / "x.png", paper, runs, ["a"], seeds=[100])
    assert drawn["of"][0].curve.values.tolist() == [[9.0], [9.0]]


def test_a_picture_is_written(paper, tmp_path):
    path = pictures.draw_arms(tmp_path / "new" / "x.png", paper, {"a": runs_of(s0=[0.0, 0.5], s1=[0.0, 0.75])})
    assert path.read_bytes().startswith(b"\x89PNG")


def test_numbers_without_a_curve_stand_beside_each_other(paper, tmp_path, monkeypatch):
    drawn = {}
    write = pictures._draw_values
    monkeypatch.setattr(
        pictures, "_draw_values", lambda path, values, metric: drawn.update(values) or write(path, values, metric)
    )
    path = pictures.draw_arms(tmp_path / "x.png", paper, {"a": runs_of(s0=[0.5], s1=[0.75]), "b": runs_of(s0=[1.0])})
    assert {arm: values.tolist() for arm, values in drawn.items()} == {"a": [0.5, 0.75], "b": [1.0]}
    assert path.read_bytes().startswith(b"\x89PNG")


def test_what_cannot_be_drawn_is_named(paper, tmp_path):
    with pytest.raises(ValueError, match="`arms` must be of the paper p, got 'grpo'; try a"):
        pictures.draw_arms(tmp_path / "x.png", paper, {"a": runs_of(s0=[0.0, 0.5])}, ["grpo"])
    with pytest.raises(ValueError, match=r"got none of a; try reproduce.py paper=p arms=a\."):
        pictures.draw_arms(tmp_path / "x.png", paper, {"a": runs_of(s100=[0.0, 0.5])})
    with pytest.raises(ValueError, match=r"try reproduce.py paper=p arms=a seeds=\[101,102\]\."):
        pictures.draw_arms(tmp_path / "x.png", paper, {"a": runs_of(s100=[0.0, 0.5])}, seeds=[101, 102])
