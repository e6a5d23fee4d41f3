"""Tests of jaxagents/reporting/comparison.py."""

import csv
import json
import os

import numpy as np
import pytest
import yaml
from PIL import Image

from jaxagents.reporting.comparison import (
    compare_runs,
    comparison_rows,
    describe_differences,
    draw_comparison,
    find_runs,
    join_curves,
    tell_differences,
    write_metrics_csv,
)
from jaxagents.reporting.curves import Curve
from jaxagents.reporting.tables import print_table


def write_run(folder, values, **config):
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump({"name": "x", "run_dir": str(folder), **config}))
    rows = [{"step": 10 * (i + 1), "update": i + 1, "eval/episode_return": value} for i, value in enumerate(values)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "result.json").write_text("{}")


@pytest.fixture
def folder(tmp_path):
    write_run(tmp_path / "0", [1.0, 2.0], seed=0, learner={"clip": 0.1})
    write_run(tmp_path / "1", [3.0, 4.0], seed=1, learner={"clip": 0.1})
    write_run(tmp_path / "2", [5.0, 9.0], seed=0, learner={"clip": 0.2})
    return tmp_path


def test_runs_that_differ_by_the_seed_are_one_curve(folder):
    low, high = compare_runs(find_runs([folder]), "eval/episode_return")
    assert (low.label, high.label) == ("learner.clip=0.1", "learner.clip=0.2")
    assert list(low.finals) == ["0", "1"]
    np.testing.assert_array_equal(low.curve.values, [[1.0, 3.0], [2.0, 4.0]])
    np.testing.assert_array_equal(low.final, [2.0, 4.0])


def test_the_best_comes_first_with_its_interval(folder):
    rows = comparison_rows(compare_runs(find_runs([folder]), "eval/episode_return"))
    # Two seeds of 2 and 4: 3 +- 12.706 * 1.
    assert rows == [
        ("2", "1", "20", "9", "9", "9"),
        ("0, 1", "2", "20", "3 (-9.706 to 15.71)", "2", "4"),
    ]


def test_runs_that_did_not_end_are_marked(folder):
    (folder / "1" / "result.json").unlink()
    compared = compare_runs(find_runs([folder]), "eval/episode_return")
    assert [row[2] for row in comparison_rows(compared)] == ["20", "20, unfinished"]
    assert tell_differences(compared) == ["2: learner.clip=0.2", "0, 1: learner.clip=0.1 (unfinished: 1)"]
    alone = compare_runs(find_runs([folder / "2"]), "eval/episode_return")
    assert tell_differences(alone) == []


def test_nothing_is_cut_in_a_narrow_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    print_table("return", ("run", "steps", "mean"), [("0_optimizer.learning_rate=0.00025", "1,000,000", "0.123")])
    printed = capsys.readouterr().out
    names = [line.split("│")[1].strip() for line in printed.splitlines() if "│" in line]
    assert "…" not in printed and "0_optimizer.learning_rate=0.00025" in "".join(names)


def test_a_picture_is_drawn(folder):
    compared = compare_runs(find_runs([folder]), "eval/episode_return")
    with Image.open(draw_comparison(folder / "new" / "c.png", compared, "return")) as picture:
        colors = {color for _, color in picture.convert("RGB").getcolors(1 << 20)}
        assert {(31, 119, 180), (255, 127, 14)} <= colors  # A line for each.


def test_metrics_are_written_as_comma_separated_values(folder):
    write_run(folder / "several", [[5.0, None], 7.0], seed=3)
    path = write_metrics_csv(folder / "new" / "all.csv", find_runs([folder / "0", folder / "several"]))
    with path.open(newline="") as file:
        rows = [tuple(row.values()) for row in csv.DictReader(file)]
    # A row per seed; a metric of all seeds is repeated, and NaN is empty.
    several = [("several", "3", "1", "10", "5.0"), ("several", "4", "1", "10", ""), ("several", "3", "2", "20", "7.0")]
    assert rows == [("0", "0", "1", "10", "1.0"), ("0", "0", "2", "20", "2.0"), *several]


def test_longer_curves_are_read_at_the_steps_of_the_shortest():
    long = Curve(np.array([0.0, 20.0, 40.0]), np.array([[0.0], [2.0], [4.0]]))
    short = Curve(np.array([10.0, 30.0]), np.array([[7.0], [8.0]]))
    joined = join_curves([long, short])
    np.testing.assert_array_equal(joined.steps, [10.0, 30.0])
    np.testing.assert_array_equal(joined.values, [[1.0, 7.0], [3.0, 8.0]])


def test_labels_name_what_differs():
    assert describe_differences([{"a": 1, "seed": 0}, {"a": 1, "seed": 1}]) == ["all alike"] * 2
    assert describe_differences([{"a": 1, "b": 2}, {"a": 1, "b": 3, "c": 0}]) == ["b=2", "b=3, c=0"]
    repeated = [{"rate": rate, "learner.rate": rate, "critic.rate": 3 - rate} for rate in (1, 2)]
    assert describe_differences(repeated) == ["critic.rate=2, rate=1", "critic.rate=1, rate=2"]
    many = [dict.fromkeys("abcdef", index) for index in range(2)]
    assert describe_differences(many)[1] == "a=1, b=1, c=1, d=1, 2 more"


def test_what_the_commands_have_set_comes_first():
    configs = [{"credit.epsilon": 1, "loss.clip": 0.2, "seed": 0}, {"loss.clip": 0.3, "turns": 8, "seed": 1}]
    arguments = [{"algorithm": "grpo", "seed": "0"}, {"algorithm": "dapo", "turns": "8", "seed": "1"}]
    assert describe_differences(configs, arguments) == [
        "algorithm=grpo, credit.epsilon=1, loss.clip=0.2",
        "algorithm=dapo, turns=8, loss.clip=0.3",
    ]


def test_rows_and_finals_name_the_runs(folder):
    (folder / "2" / "arguments.yaml").write_text("- algorithm=dapo\n- +learner.clip=0.2\n")
    write_run(folder / "other" / "2", [4.0, 7.0], seed=0, learner={"clip": 0.3})
    compared = compare_runs(find_runs([folder]), "eval/episode_return")
    assert tell_differences(compared) == [
        "2: algorithm=dapo, learner.clip=0.2",
        f"{os.path.join('other', '2')}: learner.clip=0.3",
        "0, 1: learner.clip=0.1",
    ]
    finals = {run: list(values) for one in compared for run, values in one.finals.items()}
    assert finals == {"0": [2.0], "1": [4.0], "2": [9.0], os.path.join("other", "2"): [7.0]}


def test_a_seed_counts_once(tmp_path):
    write_run(tmp_path / "single", [1.0, 2.0], seed=1, seeds=1)
    write_run(tmp_path / "copied", [1.0, 2.0], seed=1, seeds=1)
    write_run(tmp_path / "three", [[0.0, 1.0, 5.0], [3.0, 2.0, 7.0]], seed=0, seeds=3)
    write_run(tmp_path / "under_way", [9.0, 9.0], seed=3, seeds=1)
    (tmp_path / "under_way" / "result.json").unlink()
    write_run(tmp_path / "whole", [4.0, 8.0], seed=3, seeds=1)
    (one,) = compare_runs(find_runs([tmp_path]), "eval/episode_return")
    # Seeds 0 to 3, of which 1 is in three runs and 3 in two, one of which has not ended.
    assert sorted(one.final) == [2.0, 3.0, 7.0, 8.0] and comparison_rows([one])[0][1] == "4"
    assert list(one.finals["three"]) == [3.0, 2.0, 7.0]
    assert one.repeated == {"single": [1], "three": [1], "under_way": [3]}
    assert "(seeds of another run count once: single has 1; three has 1; under_way has 3)" in tell_differences([one])[0]


def test_equal_settings_are_equal_however_they_are_written(tmp_path):
    write_run(tmp_path / "a", [1.0], seed=0, training={"steps": 100000, "size": [64, 1.0]})
    write_run(tmp_path / "b", [2.0], seed=1, training={"steps": 100000.0, "size": [64.0, 1]})
    write_run(tmp_path / "c", [3.0], seed=0, training={"steps": 100000, "size": [32, 1]})
    (tmp_path / "a" / "arguments.yaml").write_text("- training.steps=1e5\n- lr=1e-3\n")
    (tmp_path / "b" / "arguments.yaml").write_text("- training.steps=100000.0\n- lr=0.001\n")
    (tmp_path / "c" / "arguments.yaml").write_text("- lr=1.0e-3\n- training.size=[32,1]\n")
    ours, other = compare_runs(find_runs([tmp_path]), "eval/episode_return")
    assert (ours.label, other.label) == ("training.size=[64, 1]", "training.size=[32, 1]")
    assert list(ours.final) == [1.0, 2.0]


def test_what_is_not_there_is_refused(folder, tmp_path_factory):
    empty = tmp_path_factory.mktemp("empty")
    with pytest.raises(ValueError, match="`paths` must hold runs, directories with config.yaml and metrics.jsonl, got"):
        find_runs([empty])
    with pytest.raises(
        ValueError, match="`metric` must be logged by a run, got 'eval/succes'; they have eval/episode_"
    ):
        compare_runs(find_runs([folder]), "eval/succes")
