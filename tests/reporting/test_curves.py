import json
import math

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from jaxagents.reporting.curves import (
    Curve,
    arrange_panels,
    choose_panels,
    draw_curve,
    draw_other_curves,
    read_curves,
    read_stage_ends,
    robust_limits,
    split,
    write_curves,
)
from jaxagents.reporting.loggers import open_logger


def test_read_curves_leaves_out_what_has_no_value():
    nan = math.nan
    rows = [
        {"step": 10, "update": 1, "train/loss": 0.5, "eval/return": [1.0, nan], "rollout/return": nan},
        {"step": 20, "update": 2, "train/loss": math.inf, "rollout/return": nan},
        {"step": 30, "update": 3, "train/loss": 0.25, "eval/return": [nan, nan], "rollout/return": nan},
        {"step": 40, "update": 4, "eval/return": [3.0, 4.0]},
    ]
    curves = read_curves(rows)
    assert sorted(curves) == ["eval/return", "train/loss"]
    np.testing.assert_array_equal(curves["train/loss"].steps, [10, 30])
    np.testing.assert_array_equal(curves["train/loss"].values, [[0.5], [0.25]])
    np.testing.assert_array_equal(curves["eval/return"].steps, [10, 40])
    np.testing.assert_array_equal(curves["eval/return"].values, [[1.0, nan], [3.0, 4.0]])


def test_long_curves_are_averaged_in_windows():
    rows = [{"step": step, "train/loss": [float(step), math.nan if step % 3 else 1.0]} for step in range(900)]
    curve = read_curves(rows)["train/loss"]
    np.testing.assert_array_equal(curve.steps, np.arange(300) * 3 + 1)
    np.testing.assert_array_equal(curve.values[:, 0], np.arange(300) * 3 + 1)
    np.testing.assert_array_equal(curve.values[:, 1], np.ones(300))


def save_ends(run_dir, **steps):
    """Writes what the last checkpoints of stages say: a stage that is given None is under way."""
    for stage, end in steps.items():
        folder = run_dir / "checkpoints" / stage / "last" / "7" / "metadata"
        folder.mkdir(parents=True)
        (folder / "metadata").write_text(json.dumps({"finished": end is not None, "steps": end or 99}))


def test_curves_are_cut_where_a_stage_ends(tmp_path):
    save_ends(tmp_path, warm_start=20, reinforcement=None)
    ends = read_stage_ends(tmp_path)
    assert ends == (20.0,)
    rows = [{"step": 10 * i, "rollout/success": float(i)} for i in range(1, 6)]
    rows[2]["eval/success"] = rows[3]["eval/success"] = 0.5  # The second stage alone: nothing to cut.
    curves = read_curves(rows, ends)
    assert [part.steps.tolist() for part in split(curves["rollout/success"])] == [[10, 20], [30, 40, 50]]
    assert [part.values[:, 0].tolist() for part in split(curves["rollout/success"])] == [[1, 2], [3, 4, 5]]
    assert len(split(curves["eval/success"])) == 1 and len(split(read_curves(rows)["rollout/success"])) == 1


def test_no_window_holds_two_stages():
    rows = [{"step": step, "train/loss": 0.0 if step <= 250 else 8.0} for step in range(1, 1001)]
    curve = read_curves(rows, [250])["train/loss"]
    assert set(curve.values[:, 0]) == {0.0, 8.0}  # An average of both stages would lie between.
    first, second = split(curve)
    assert (len(first.steps), len(second.steps)) == (75, 225)


def test_no_line_crosses_the_end_of_a_stage(tmp_path):
    save_ends(tmp_path, a=20, b=40)
    rows = [{"step": step, "eval/return": [value, value]} for step, value in ((10, 1), (20, 1), (30, 0), (40, 0))]
    figure = Figure()
    axis = figure.subplots()
    draw_curve(axis, read_curves(rows, read_stage_ends(tmp_path))["eval/return"], label="eval", color="red")
    drawn = [line.get_xdata() for line in axis.lines]
    assert [list(steps) for steps in drawn] == [[10, 20], [30, 40], [20, 20]]  # Two stages, and the dotted line.
    assert [line.get_label() for line in axis.lines][0] == "eval" and len(axis.get_legend_handles_labels()[1]) == 1


def test_panels_come_in_reading_order():
    names = [
        "time/seconds",
        "train/entropy",
        "train/a",
        "train/loss",
        "rollout/return",
        "rollout/length",
        "rollout/env_steps",
        "eval/return",
    ]
    assert arrange_panels(names) == [
        ["rollout/return", "eval/return"],
        ["train/loss"],
        ["train/entropy"],
        ["rollout/length"],
        ["train/a"],
        ["time/seconds"],
    ]


def test_what_moves_comes_first_and_constants_are_left_for_later():
    steps = np.arange(3.0)

    def curve(*values):
        return Curve(steps=steps, values=np.array(values)[:, None])

    moving = {f"train/m{index}": curve(0.0, 1.0, index) for index in range(8)}
    curves = {"eval/return": curve(1.0, 1.0, 1.0), "eval/length": curve(5.0, 5.0, 5.0)} | moving
    first, others = choose_panels(curves)
    assert first == [["eval/return"], *([f"train/m{index}"] for index in range(6))]
    assert others == [["eval/length"], ["train/m6"], ["train/m7"]]


def test_few_points_far_off_do_not_set_the_scale():
    usual = np.linspace(0.0, 1.0, 100)[:, None]
    assert robust_limits([usual]) is None
    low, high = robust_limits([np.concatenate([usual, [[1000.0]]])])
    assert -0.1 < low < 0.0 and 1.0 < high < 1.2
    assert robust_limits([np.full((50, 2), 3.0)]) is None


def test_other_curves_are_a_picture_of_their_own(tmp_path):
    logger = open_logger(tmp_path, tensorboard=False)
    for update in range(1, 3):
        logger.log(update, update, {"eval/return": float(update), "train/constant": 2.0})
    logger.close()
    assert draw_other_curves(tmp_path).startswith(b"\x89PNG")
    (tmp_path / "metrics.jsonl").unlink()
    assert draw_other_curves(tmp_path) is None


@pytest.mark.parametrize("seeds", [1, 3])
def test_write_curves_draws_a_picture(tmp_path, seeds):
    logger = open_logger(tmp_path, tensorboard=False)
    for update in range(1, 6):
        values = np.arange(seeds, dtype=np.float32) + update
        logger.log(
            update * 100, update, {"train/loss": values if seeds > 1 else values[0], "eval/return": 1e6 * values}
        )
    logger.close()
    path = write_curves(tmp_path)
    picture = imread(path)
    assert path == tmp_path / "curves.png"
    assert picture.shape[0] > 200
    assert picture.shape[1] > 600
    assert picture[..., :3].std() > 0.02  # lines on white


def test_the_return_has_the_whole_width(tmp_path):
    logger = open_logger(tmp_path, tensorboard=False)
    for update in range(1, 3):
        logger.log(update, update, {"eval/return": 1.0, "train/loss": 2.0, "train/entropy": 0.0})
    logger.close()
    picture = imread(write_curves(tmp_path))[..., :3]
    # The line of a constant return, in the colour of evaluations, is longer than half of the picture.
    red = np.all(np.abs(picture - np.array([0xD1, 0x49, 0x5B]) / 255) < 0.02, axis=-1)
    assert red.sum(axis=1).max() > 0.5 * picture.shape[1]


def test_write_curves_without_metrics_draws_nothing(tmp_path):
    assert write_curves(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_baselines_are_drawn_in_the_panels_of_their_metrics(tmp_path):
    logger = open_logger(tmp_path, tensorboard=False)
    for update in range(1, 6):
        logger.log(update * 100, update, {"eval/return": float(update), "train/loss": float(update)})
    logger.close()
    gray = np.array([0x61, 0x6E, 0x7C]) / 255.0

    def gray_rows(baselines):
        """Returns in which rows of the picture there is a line in the color of baselines, from 0 at the top to 1."""
        (tmp_path / "baselines.json").write_text(json.dumps(baselines))
        picture = imread(write_curves(tmp_path))[..., :3]
        counts = (np.abs(picture - gray) < 0.02).all(axis=-1).sum(axis=1)
        return np.flatnonzero(counts > picture.shape[1] // 4) / len(counts)

    assert gray_rows({"random actions": {"success": 0.5}, "expert": {"loss": 0.5}}).size == 0
    rows = gray_rows({"random actions": {"return": -1.0, "success": 0.5}, "expert": {"return": 6.0}})
    # Two lines in the upper panel, apart from each other.
    assert rows.size >= 2 and rows.max() < 0.7 and rows.max() - rows.min() > 0.2
