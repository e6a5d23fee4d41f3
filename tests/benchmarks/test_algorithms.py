"""The benchmark of algorithms: its rows, what it does not run again, and its page."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from omegaconf import OmegaConf

from jaxagents.benchmarks import suites
from jaxagents.benchmarks.algorithm_page import write_page
from jaxagents.benchmarks.algorithms import Row, rows_of, run_rows
from jaxagents.training.composition import compose
from jaxagents.training.config import DevicesConfig

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
TASKS = {
    "walk": {
        "choices": "world=cartpole evaluation.num_episodes=2",
        "scale": [20.0, 120.0],
        "published": {"ppo": [100.0, "somebody"]},
        "rows": [
            ["ppo", "algorithm=ppo", "training.total_steps=1024"],
            ["dqn", "algorithm=dqn", "evaluation.num_episodes=3"],
        ],
    },
    "ride": {"choices": "world=pendulum", "scale": [0.0, 1.0], "rows": [["ppo", "algorithm=ppo"]]},
}


def store(folder, name, returns):
    row = Row(name, ["world=cartpole"], returns, seconds=59.0, compile_seconds=1.0, per_second=1234.5, config_hash="x")
    path = folder / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(row)))


def test_rows_are_the_choices_of_their_task_and_then_their_own():
    rows = rows_of(TASKS, None)
    assert rows["walk/dqn"] == ["world=cartpole", "algorithm=dqn", "evaluation.num_episodes=3"]
    assert list(rows) == ["walk/ppo", "walk/dqn", "ride/ppo"] and list(rows_of(TASKS, ["ride/ppo"])) == ["ride/ppo"]
    with pytest.raises(ValueError, match="got 'walk/pp0'; try walk/ppo"):
        rows_of(TASKS, ["walk/pp0"])


def test_the_page_has_scores_differences_and_what_is_missing(tmp_path):
    store(tmp_path, "walk/ppo", [20.0, 70.0, 70.0, 120.0])
    store(tmp_path, "ride/ppo", [0.5])
    text = write_page(tmp_path, TASKS).read_text()
    # The middle half of four seeds are the two 70s: half of the way from 20 to 120, and 30 below what was published.
    assert "| `ppo` | 70.0 | 20.0 to 120.0 | 0.50 | 100 (somebody) | -30.0 | 4 | 1,234 | 1.0 |" in text
    assert "| `ppo` | 0.50 | 0.50 to 0.50 | 0.50 |" in text  # Of short scales two places, of long ones one.
    assert "Not run: dqn." in text and "| `ppo` | walk, ride | 0.50 |" in text
    assert (tmp_path / "profiles.png").read_bytes().startswith(b"\x89PNG")


def test_a_folder_without_rows_has_a_page_without_tables(tmp_path):
    text = write_page(tmp_path, TASKS).read_text()
    assert "Not run: ppo, dqn." in text and "| --- |" not in text and not (tmp_path / "profiles.png").exists()


def test_the_suite_starts_its_backend_for_seeds_side_by_side(monkeypatch, tmp_path):
    started, folder = [], str(tmp_path)
    monkeypatch.setattr(suites, "prepare_backend", lambda devices, **given: started.append((devices, given)))
    monkeypatch.setattr(suites, "run_rows", lambda *given: [])
    algorithms = {"cpu_threads": 3, "tasks": TASKS, "names": None, "folder": folder, "seeds": 4}
    suites.run_suite(OmegaConf.create({"suite": "algorithms", "quick": False, "algorithms": algorithms}), CONFIGS)
    assert started == [(DevicesConfig(cpu_threads=3), {"num_seeds": 4})]


@pytest.mark.slow
def test_every_row_of_the_benchmark_composes():
    with initialize_config_dir(str(CONFIGS), version_base=None):
        settings = OmegaConf.to_container(hydra_compose("benchmark"))
    tasks = settings["algorithms"]["tasks"]
    assert {"cartpole", "tmaze"} <= set(tasks)
    assert len(rows_of(tasks, settings["when_quick"]["algorithms"]["names"])) == 2
    assert all(set(task.get("published", {})) <= {name for name, *_ in task["rows"]} for task in tasks.values())
    for name, choices in rows_of(tasks, None).items():
        assert compose(CONFIGS, *choices).training.total_steps > 0, name


@pytest.mark.slow
def test_rows_are_trained_once(tmp_path):
    rows, told = rows_of(TASKS, ["walk/ppo"]), []
    settings = {"folder": tmp_path, "seeds": 2}
    (first,) = run_rows(rows, CONFIGS, settings, told=told.append)
    (again,) = run_rows(rows, CONFIGS, settings, told=told.append)
    assert again == first and len(first.returns) == 2 and first.per_second > 0.0 and told[0].startswith("walk/ppo: ")
