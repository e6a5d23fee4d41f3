"""The benchmark of algorithms: its rows, what it does not run again, and its page."""

from dataclasses import asdict

import pytest
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from omegaconf import OmegaConf

from jaxagents.benchmarks import algorithms
from jaxagents.benchmarks.algorithm_page import write_page
from jaxagents.benchmarks.algorithms import Row, row_hash, rows_of, run_rows
from jaxagents.training.composition import compose
from jaxagents.training.store import write_record
from tests import CONFIGS

TASKS = {
    "walk": {
        "choices": "world=cartpole evaluation.num_episodes=2",
        "scale": [20.0, 120.0],
        "published": {"ppo": [100.0, "somebody"]},
        "full": {"ppo": "training.total_steps=2048"},
        "rows": [
            ["ppo", "algorithm=ppo", "training.total_steps=1024"],
            ["dqn", "algorithm=dqn", "evaluation.num_episodes=3"],
        ],
    },
    "ride": {"choices": "world=pendulum", "scale": [0.0, 1.0], "rows": [["ppo", "algorithm=ppo"]]},
}


def store(folder, name, returns, asked="x"):
    measured = {"seconds": 59.0, "compile_seconds": 1.0, "per_second": 1234.5}
    row = asdict(Row(name, ["world=cartpole"], returns, **measured))
    write_record(folder / f"{name}.json", asked, row, made_with={})


def test_rows_are_the_choices_of_their_task_and_then_their_own():
    rows = rows_of(TASKS, None)
    assert rows["walk/dqn"] == ["world=cartpole", "algorithm=dqn", "evaluation.num_episodes=3"]
    assert list(rows) == ["walk/ppo", "walk/dqn", "ride/ppo"] and list(rows_of(TASKS, ["ride/ppo"])) == ["ride/ppo"]
    with pytest.raises(ValueError, match="got 'walk/pp0'; try walk/ppo"):
        rows_of(TASKS, ["walk/pp0"])


def test_longer_trainings_are_rows_with_other_choices():
    longer = ["world=cartpole", "evaluation.num_episodes=2", "algorithm=ppo", "training.total_steps=2048"]
    assert rows_of(TASKS, None, full=True) == {"walk/ppo": longer}
    with pytest.raises(ValueError, match="got 'walk/dqn'; try walk/ppo"):
        rows_of(TASKS, ["walk/dqn"], full=True)


def test_the_page_has_scores_sources_and_what_is_missing(tmp_path):
    store(tmp_path, "walk/ppo", [20.0, 70.0, 70.0, 120.0])
    store(tmp_path, "ride/ppo", [0.5])
    text = write_page(tmp_path, TASKS).read_text()
    # The middle half of four seeds are the two 70s: half of the way from 20 to 120.
    assert "| `ppo` | 70.0 | 20.0 to 120.0 | 0.50 | 100 | 4 | 1,234 | 1.0 |" in text
    assert "| walk | 1 | `ppo` 0.50 |" in text and "; published: somebody" in text
    assert "| `ppo` | 0.50 | 0.50 to 0.50 | 0.50 |" in text  # Of short scales two places, of long ones one.
    assert "All 2 rows take 2 minutes of one core" in text and "Trained for longer" not in text
    assert "Not run: dqn." in text and "| `ppo` | walk, ride | 0.50 |" in text
    assert (tmp_path / "profiles.png").read_bytes().startswith(b"\x89PNG")


def test_the_page_has_longer_trainings_apart(tmp_path):
    store(tmp_path, "walk/ppo", [70.0])
    store(tmp_path / "full", "walk/ppo", [120.0])
    text = write_page(tmp_path, TASKS).read_text()
    short, longer = text.split("Trained for longer (`algorithms.full=true`):")
    assert "| `ppo` | 70.0 |" in short and "| `ppo` | 120.0 | 120.0 to 120.0 | 1.00 |" in longer
    assert "All 1 rows take 1 minutes" in longer


def test_a_folder_without_rows_has_a_page_without_tables(tmp_path):
    text = write_page(tmp_path, TASKS).read_text()
    assert "Not run: ppo, dqn." in text and "| --- |" not in text and not (tmp_path / "profiles.png").exists()


@pytest.mark.exhaustive
def test_every_row_of_the_benchmark_composes():
    with initialize_config_dir(str(CONFIGS), version_base=None):
        settings = OmegaConf.to_container(hydra_compose("benchmark"))
    tasks = settings["algorithms"]["tasks"]
    assert {"cartpole", "tmaze"} <= set(tasks)
    assert len(rows_of(tasks, settings["when_quick"]["algorithms"]["names"])) == 2
    assert all(set(task.get("published", {})) <= {name for name, *_ in task["rows"]} for task in tasks.values())
    for name, choices in rows_of(tasks, None).items():
        assert compose(CONFIGS, *choices).training.total_steps > 0, name


@pytest.mark.exhaustive
def test_rows_are_trained_once_and_one_by_one_as_side_by_side(tmp_path):
    rows, lines = rows_of(TASKS, ["walk/ppo"]), []
    settings = {"folder": tmp_path, "seeds": 2, "side_by_side": False, "again": False, "workers": 1}
    (first,) = run_rows(rows, CONFIGS, settings, report=lines.append)
    (again,) = run_rows(rows, CONFIGS, settings, report=lines.append)
    assert again == first and len(first.returns) == 2 and first.per_second > 0.0 and lines[0].startswith("walk/ppo: ")
    assert len({*first.returns}) == 2  # Every seed is a run of its own.
    (other,) = run_rows(rows, CONFIGS, settings | {"folder": tmp_path / "side_by_side", "side_by_side": True})
    assert other.returns == pytest.approx(first.returns)
    (more,) = run_rows(rows, CONFIGS, settings | {"seeds": 3})
    assert more.returns[:2] == pytest.approx(first.returns) and len(more.returns) == 3  # Other seeds are trained anew.


@pytest.mark.parametrize("again", [False, True])
def test_workers_train_the_rows_that_are_missing_with_the_arguments_of_the_command(tmp_path, monkeypatch, again):
    rows = rows_of(TASKS, ["walk/ppo", "walk/dqn", "ride/ppo"])
    asked = {name: row_hash(compose(CONFIGS, *choices, "seeds=1"), 1) for name, choices in rows.items()}
    store(tmp_path, "walk/dqn", [1.0], asked["walk/dqn"])
    commands = []

    def work(command, **options):
        assert options["check"]  # A worker that fails ends the command.
        commands.append(command)
        name = command[-3].removeprefix("algorithms.names=[").removesuffix("]")
        store(tmp_path, name, [2.0], asked[name])

    monkeypatch.setattr(algorithms.subprocess, "run", work)
    settings = {"folder": tmp_path, "seeds": 1, "side_by_side": False, "again": again, "workers": 2}
    results = run_rows(rows, CONFIGS, settings, arguments=["suite=algorithms", "a=b"], report=lambda text: None)
    assert [row.returns for row in results] == [[2.0], [2.0] if again else [1.0], [2.0]]
    names = ["ride/ppo", *(["walk/dqn"] if again else []), "walk/ppo"]
    assert sorted(command[-3] for command in commands) == [f"algorithms.names=[{name}]" for name in names]
    assert all(command[1].endswith("experiments/benchmark.py") for command in commands)
    assert all(command[2:4] == ["suite=algorithms", "a=b"] for command in commands)
    assert all(command[-2:] == ["algorithms.workers=1", "algorithms.cpu_threads=1"] for command in commands)


def test_a_row_is_measured_again_where_that_is_asked_for(tmp_path, monkeypatch):
    returns = iter([[1.0], [2.0]])
    monkeypatch.setattr(
        algorithms, "_measure", lambda name, *given: asdict(Row(name, [], next(returns), 1.0, 1.0, 1.0))
    )
    settings = {"folder": tmp_path, "seeds": 1, "side_by_side": False, "again": False, "workers": 1}
    rows, quiet = rows_of(TASKS, ["walk/ppo"]), {"report": lambda text: None}
    assert [run_rows(rows, CONFIGS, settings, **quiet)[0].returns for _ in range(2)] == [[1.0], [1.0]]
    assert run_rows(rows, CONFIGS, settings | {"again": True}, **quiet)[0].returns == [2.0]
    assert run_rows(rows, CONFIGS, settings, **quiet)[0].returns == [2.0]
