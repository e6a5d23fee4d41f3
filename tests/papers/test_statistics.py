"""Numbers of runs: what a metric means."""

import pytest

from jaxagents.papers.statistics import find_metric, measure, parse_metric


def test_metrics_are_reduced_over_training():
    curves = {"eval/success": {"steps": [0, 1, 2], "values": [0.5, None, 1.0]}, "reward": {"steps": [0], "values": [3]}}
    found = {name: measure(name, curves) for name in ("success", "first(eval/success)", "mean(success)", "reward")}
    assert found == {"success": 1.0, "first(eval/success)": 0.5, "mean(success)": 0.75, "reward": 3.0}
    assert measure("std(success)", curves) == 0.25 and measure("min(success)", curves) == 0.5
    assert parse_metric("max(train/entropy)") == ("max", "train/entropy")
    for wrong in ("median(success)", "mean(success", "success)"):
        with pytest.raises(ValueError, match="`metric` must be a name, or one in last, first, mean"):
            parse_metric(wrong)
    with pytest.raises(ValueError, match="got 'loss'; it logs eval/success, reward"):
        find_metric("loss", list(curves))
