import json
import math
import os
import struct
import subprocess
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tensorboardX.proto.event_pb2 import Event

from jaxagents.reporting.loggers import open_logger, read_metrics, to_json, truncate_metrics
from jaxagents.types import Mean


def read_events(folder):
    events = []
    for path in sorted(folder.glob("events*"), key=lambda path: path.stat().st_mtime_ns):
        content, position = path.read_bytes(), 0
        while position < len(content):  # length (8 bytes), its checksum (4), event, its checksum (4)
            (length,) = struct.unpack_from("<Q", content, position)
            events.append(Event.FromString(content[position + 12 : position + 12 + length]))
            position += length + 16
    return events


def scalars(folder):
    found = [(event.step, value) for event in read_events(folder) for value in event.summary.value]
    return [(step, value.tag, value.simple_value) for step, value in found if value.HasField("simple_value")]


def lines(run_dir):
    return (run_dir / "metrics.jsonl").read_text().splitlines()


def test_log_writes_one_json_object_per_line(tmp_path):
    logger = open_logger(tmp_path / "run", tensorboard=False)
    mean = Mean(total=jnp.float32(3.0), count=jnp.float32(2.0))
    logger.log(np.int64(2048), 1, {"train/loss": jnp.float32(0.1), "rollout/return": mean})
    assert lines(tmp_path / "run") == ['{"step": 2048, "update": 1, "train/loss": 0.1, "rollout/return": 1.5}']
    logger.log(4096, 2, {"eval/return": np.array([1.0, np.nan, np.inf]), "time/seconds": 3, "train/done": True})
    assert json.loads(lines(tmp_path / "run")[1]) == {
        "step": 4096,
        "update": 2,
        "eval/return": [1.0, None, None],
        "time/seconds": 3,
        "train/done": True,
    }
    logger.close()
    assert not (tmp_path / "run" / "tensorboard").exists()


@pytest.mark.parametrize("value", [0.1, 1e-45, 3.4028235e38, 16777217.0, 1 / 3])
def test_float32_reads_back_as_the_same_number(value):
    exact = np.float32(value)
    assert np.float32(to_json(exact)) == exact
    assert len(json.dumps(to_json(exact))) < 18


def test_to_json_takes_what_results_hold():
    value = {1: (jnp.bfloat16(0.5), np.arange(2)), "nan": math.nan, "path": Mean, "none": None, "x": np.float64(0.1)}
    assert to_json(value) == {"1": [0.5, [0, 1]], "nan": None, "path": str(Mean), "none": None, "x": 0.1}


def test_read_metrics_leaves_out_half_a_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert read_metrics(tmp_path) == []
    path.write_text('{"step": 1, "update": 1, "train/loss": null, "eval/return": [1, null]}\n{"step": 2, "upda')
    (row,) = read_metrics(tmp_path)
    assert math.isnan(row["train/loss"])
    assert row["eval/return"][0] == 1
    assert math.isnan(row["eval/return"][1])


@pytest.mark.parametrize("damaged", ["{", "[1]", "\0"])
def test_read_metrics_refuses_other_damage(tmp_path, damaged):
    (tmp_path / "metrics.jsonl").write_text(f'{{"step": 1}}\n{damaged}\n{{"step": 2}}\n')
    with pytest.raises(ValueError, match="must hold a JSON object per line, got .* in line 2"):
        read_metrics(tmp_path)


def test_truncate_keeps_the_bytes_of_what_it_keeps(tmp_path):
    logger = open_logger(tmp_path, tensorboard=False)
    for update in (1, 2, 3):
        logger.log(
            update * 10, update, {"train/loss": jnp.float32(0.1 * update), "eval/return": np.array([np.nan, 1.0])}
        )
    logger.close()
    before = lines(tmp_path)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 40, "upd')
    truncate_metrics(tmp_path, 2)
    assert lines(tmp_path) == before[:2]
    truncate_metrics(tmp_path / "missing", 2)


def test_truncate_cut_off_leaves_what_was_there(tmp_path, monkeypatch):
    def fail(*arguments):
        raise KeyboardInterrupt

    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "update": 1}\n{"step": 2, "update": 2}\n')
    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(KeyboardInterrupt):
        truncate_metrics(tmp_path, 1)
    assert len(lines(tmp_path)) == 2


def test_a_resumed_run_has_the_lines_of_an_uninterrupted_one(tmp_path):
    def log(logger, updates):
        for update in updates:
            logger.log(update * 10, update, {"train/loss": jnp.float32(1.0 / update)})
        logger.close()

    log(open_logger(tmp_path / "whole"), range(1, 6))
    log(open_logger(tmp_path / "cut"), range(1, 5))
    with (tmp_path / "cut" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 50')
    log(open_logger(tmp_path / "cut", resume_update=2), range(3, 6))
    assert lines(tmp_path / "cut") == lines(tmp_path / "whole")
    starts = [event.step for event in read_events(tmp_path / "cut" / "tensorboard") if event.HasField("session_log")]
    assert starts == [0, 21]  # TensorBoard hides what an earlier session logged from here on
    log(open_logger(tmp_path / "cut", tensorboard=False, resume_update=0), [1])
    assert len(lines(tmp_path / "cut")) == 1


def test_a_new_run_does_not_append_to_an_old_one(tmp_path):
    logger = open_logger(tmp_path, tensorboard=False)
    logger.log(1, 1, {"train/loss": 0.0})
    logger.close()
    with pytest.raises(ValueError, match="`run_dir` must be new, got .* with a metrics.jsonl"):
        open_logger(tmp_path)


def test_tensorboard_gets_scalars_statistics_text_and_images(tmp_path):
    logger = open_logger(tmp_path)
    logger.log(10, 1, {"train/loss": 0.5, "rollout/return": np.array([1.0, 3.0, np.nan]), "eval/return": math.nan})
    logger.text(10, "eval/transcript", "go *north*")
    logger.image(10, "eval/frame", np.zeros((4, 6, 3), np.uint8))
    logger.hyper_parameters({"learner": {"rate": 0.1, "layers": [8, 8]}}, {"eval/return": 2.0, "eval/none": math.nan})
    logger.close()
    assert scalars(tmp_path / "tensorboard") == [
        (10, "train/loss", 0.5),
        (10, "rollout/return", 2.0),
        (10, "rollout/return_std", 1.0),
    ]
    values = {value.tag: value for event in read_events(tmp_path / "tensorboard") for value in event.summary.value}
    assert values["eval/transcript/text_summary"].tensor.string_val == [b"go *north*"]
    assert (values["eval/frame"].image.height, values["eval/frame"].image.width) == (4, 6)
    folder = tmp_path / "tensorboard" / "hyper_parameters"
    assert scalars(folder) == [(0, "eval/return", 2.0)]
    assert b"learner.rate" in b"".join(event.SerializeToString() for event in read_events(folder))


def test_tensorboard_is_opened_without_torch(tmp_path):
    """tensorboardX imports torch, where it is there, for seconds and for nothing that is written here."""
    code = (
        "import sys; from jaxagents.reporting.loggers import open_logger\n"
        f"logger = open_logger({str(tmp_path)!r}); assert 'tensorboardX' not in sys.modules  # Nothing waits for it.\n"
        "logger.log(1, 1, {'train/loss': 0.0}); assert 'tensorboardX' in sys.modules and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert list((tmp_path / "tensorboard").iterdir())


@pytest.mark.parametrize("name", ["loss", "training/loss", "train/", "train"])
def test_metrics_need_a_phase(tmp_path, name):
    logger = open_logger(tmp_path, tensorboard=False)
    with pytest.raises(ValueError, match="`metrics` must be named <phase>/<name>"):
        logger.log(1, 1, {name: 0.0})
    with pytest.raises(ValueError, match=r"`train/loss` must be a number or one per seed, got shape \(1, 2\)"):
        logger.log(1, 1, {"train/loss": np.zeros((1, 2))})
    logger.close()
    assert lines(tmp_path) == []


def test_other_processes_write_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    logger = open_logger(tmp_path / "run")
    logger.log(1, 1, {"train/loss": 0.0})
    logger.text(1, "a", "b")
    logger.image(1, "a", np.zeros((1, 1, 3), np.uint8))
    logger.hyper_parameters({}, {})
    logger.close()
    assert not (tmp_path / "run").exists()


def test_tracked_metrics_go_to_wandb_and_a_resumed_run_goes_on_there(tmp_path, monkeypatch):
    started, logged = [], []

    class Tracker:
        def log(self, scalars, step):
            logged.append((step, scalars))

        def finish(self):
            logged.append("finished")

    def init(**options):
        started.append(options)
        return Tracker()

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=init))
    logger = open_logger(tmp_path, tensorboard=False, tracked={"seed": 1})
    logger.log(64, 1, {"eval/episode_return": np.array([1.0, 3.0])})
    logger.close()
    open_logger(tmp_path, tensorboard=False, resume_update=1, tracked={"seed": 1}).close()
    assert logged == [(64, {"eval/episode_return": 2.0, "eval/episode_return_std": 1.0}), "finished", "finished"]
    first, second = started
    assert first == second and first["config"] == {"seed": 1} and first["resume"] == "allow"
    assert first["dir"] == str(tmp_path.resolve())


def test_a_new_run_in_an_old_folder_is_another_run_of_wandb(tmp_path, monkeypatch):
    started = []
    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=lambda **options: started.append(options)))
    for resume_update in (None, 3, None):
        open_logger(tmp_path / "run", tensorboard=False, resume_update=resume_update, tracked={}).close()
    first, resumed, another = (options["id"] for options in started)
    assert first == resumed != another and (tmp_path / "run/wandb_id.txt").read_text().strip() == another
    open_logger(tmp_path / "other", tensorboard=False, tracked={}).close()
    assert len({first, another, started[-1]["id"]}) == 3


def test_without_wandb_the_way_out_is_said(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ValueError, match=r"`logging.wandb` must be false without the package wandb; try pip install"):
        open_logger(tmp_path, tensorboard=False, tracked={})
