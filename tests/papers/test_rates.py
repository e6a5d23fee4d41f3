"""Equal tuning: which learning rates are multiplied, what is run, and what is kept of it."""

import math

import pytest

from jaxagents.papers.rates import Tried, gather_rates, rates_head, rates_table, read_rates, run_rates, scaled_rates
from tests.papers.requests import CONFIGS, read, request
from tests.papers.test_trained_arms import of_training


def rates_of(paper, arm, factor):
    return scaled_rates(paper.study, next(one for one in paper.arms if one.name == arm), CONFIGS, factor)


def test_all_rates_after_the_start_are_multiplied():
    staged = "stages=[{name: first, learner: {optimizer: {learning_rate: 0.001}}}, {name: second}]"
    own = "+second_stage.optimizer.learning_rate=2e-3"
    paper = of_training(arms={"fast": ["optimizer.learning_rate=1e-2", staged, own]})
    assert rates_of(paper, "fast", 1 / 3) == {
        "optimizer.learning_rate": 0.00333,
        "second_stage.optimizer.learning_rate": 0.000667,
    }
    warm = "+first.learner.optimizer.learning_rate=1e-3"  # Belongs to the start, which all arms share.
    paper = of_training(arms={"fast": ["optimizer.learning_rate=1e-2", staged, warm]})
    assert rates_of(paper, "fast", 3.0) == {"optimizer.learning_rate": 0.03}
    with pytest.raises(ValueError, match=r"`rates` must be positive factors of learning rates, got 0\.0"):
        rates_of(paper, "fast", 0.0)
    referred = of_training(arms={"fast": ["optimizer.learning_rate=${training.total_steps}"]})
    with pytest.raises(ValueError, match="fast has none"):
        rates_of(referred, "fast", 3.0)


@pytest.mark.slow
def test_every_arm_is_tried_with_every_factor_and_no_verdict_counts_it(tmp_path):
    paper, asked = of_training(), request(tmp_path)
    factors = [1.0, 0.1]
    assert run_rates([paper], asked, factors, first=3) == {}
    assert all(not runs.runs.keys() & {0, 1, 2} for runs in read(paper, tmp_path).values())
    tried = gather_rates([paper], asked, factors)["p"]
    assert [(one.arm, one.factor, one.rates["optimizer.learning_rate"]) for one in tried] == [
        ("fast", 0.1, 0.001),
        ("fast", 1.0, 0.01),
        ("slow", 0.1, 0.00001),
        ("slow", 1.0, 0.0001),
    ]
    assert all(sorted(one.values) == [100, 101] and math.isfinite(one.mean) for one in tried)
    assert tried[1].values == {
        seed: run.curves["eval/episode_return"]["values"][-1]
        for seed, run in read(paper, tmp_path)["fast"].runs.items()
    }
    assert read_rates(asked.results, "p") == tried
    before = {path: path.read_bytes() for path in (tmp_path / "results").rglob("*.json")}
    assert run_rates([paper], asked, factors) == {}  # All are stored.
    assert {path: path.read_bytes() for path in (tmp_path / "results").rglob("*.json")} == before


def test_the_table_names_the_best_factor_of_arms_without_divergence():
    tried = [
        Tried("a", 0.3, {"optimizer.learning_rate": 3e-4}, {100: 0.2, 101: 0.4}),
        Tried("a", 1.0, {"optimizer.learning_rate": 1e-3}, {100: 0.5}, diverged=1),
        Tried(
            "b",
            1.0,
            {"optimizer.learning_rate": 1e-3, "learner.policy_optimizer.learning_rate": 1e-2},
            {100: 0.25, 101: 0.25},
        ),
    ]
    assert rates_head(tried) == ["arm", "rates x 0.3", "rates x 1", "best factor"]
    assert rates_table(tried) == [
        ["a", "0.300 of 0.2, 0.4 (0.0003)", "1 diverged (0.001)", "0.3"],
        ["b", "", "0.250 of 0.25, 0.25 (0.001, 0.01)", "1"],
    ]
    lower = [Tried("a", 1.0, {}, {100: 0.5}), Tried("a", 3.0, {}, {100: 0.1})]
    assert [row[-1] for row in rates_table(lower, higher_is_better=False)] == ["3"]
    assert [row[-1] for row in rates_table(lower)] == ["1"]
