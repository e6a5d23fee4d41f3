"""Every experiment runs from its config to its report, in quick mode."""

import json
import math
import pathlib

import jax
import pytest
from hydra import compose, initialize_config_dir

from jaxagents.reporting.loggers import read_metrics
from jaxagents.training.launch import run

CONFIGS = pathlib.Path(__file__).resolve().parent.parent.parent / "configs"
EXPERIMENTS = sorted(path.stem for path in (CONFIGS / "experiment").glob("*.yaml"))


@pytest.fixture(autouse=True)
def _forget_programs():
    """Forty experiments leave more machine code behind than a small machine holds."""
    yield
    jax.clear_caches()


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_it_trains_evaluates_and_reports(name, tmp_path):
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        config = compose("train", [f"experiment={name}", "quick=true", "devices.compilation_cache=null"])
    result = run(config, tmp_path)
    assert (result["experiment"], result["run_dir"]) == (name, str(tmp_path))
    assert json.loads((tmp_path / "result.json").read_text())["evaluation"] == result["evaluation"]
    evaluation = result["evaluation"]
    assert "episode_return" in evaluation and all(math.isfinite(value) for value in evaluation.values())
    rows = read_metrics(tmp_path)
    losses = {name: row[name] for row in rows for name in row if name.startswith("train/") and name.endswith("loss")}
    assert losses and all(math.isfinite(loss) for loss in losses.values())
    assert rows[-1]["step"] == result["steps"] > 0
    checkpoints = {path.parent.name for path in (tmp_path / "checkpoints").rglob("last")}
    stages = [stage["name"] for stage in config.stages]
    assert checkpoints == (set(stages) if len(stages) > 1 else {"checkpoints"})
    assert "<html" in (tmp_path / "report.html").read_text()
