"""What of a run directory is damaged or missing: what blocks a run is said with the way out, and the rest does not."""

import json
import shutil
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf

from jaxagents.training import resuming
from jaxagents.training.composition import resume_arguments
from jaxagents.training.launch import run
from jaxagents.training.load import load_policy
from jaxagents.training.run_directory import claim, load_config


def make_experiment(num_updates=10, period=2):
    lengths = SimpleNamespace(log_every_steps=1, checkpoint_every_steps=period)
    evaluation = SimpleNamespace(every_steps=5)
    stage = SimpleNamespace(num_updates=num_updates, steps_per_update=1, training=lengths, evaluation=evaluation)
    return SimpleNamespace(stages=(stage,))


def log(run_dir, *updates):
    rows = [json.dumps({"step": update, "update": update}) for update in updates]
    (run_dir / "metrics.jsonl").write_text("".join(f"{row}\n" for row in rows))


def test_a_run_whose_checkpoints_are_gone_does_not_begin_anew(tmp_path):
    experiment = make_experiment()
    assert resuming.require_no_past(experiment, tmp_path) is None
    log(tmp_path, 1, 2, 3, 4)  # Killed while the second checkpoint was written, and the first one was cut off.
    assert resuming.require_no_past(experiment, tmp_path).endswith("the run begins anew, and so does its log.")
    log(tmp_path, 1, 5)
    with pytest.raises(ValueError, match=r"with metrics\.jsonl at update 5 and without .*; bring checkpoints"):
        resuming.require_no_past(experiment, tmp_path)
    assert resuming.require_no_past(make_experiment(num_updates=4), tmp_path)  # Row 5 may be of a later stage.
    log(tmp_path)
    (tmp_path / "result.json").write_text("{}")
    with pytest.raises(ValueError, match=r"with result\.json and without a whole checkpoint"):
        resuming.require_no_past(experiment, tmp_path)


@pytest.mark.parametrize(("updates", "lines"), [((2, 4), []), ((2,), ["ends at update 2"]), ((), ["ends at update 0"])])
def test_rows_of_the_past_that_are_missing_are_said(tmp_path, updates, lines):
    if updates:
        log(tmp_path, *updates)
    heard = []
    resuming.warn_of_lost_metrics(tmp_path, 4, heard.append)
    assert [text for text in lines if text not in " ".join(heard)] == [] and len(heard) == len(lines)


def test_metadata_without_a_field_are_refused():
    whole = dict.fromkeys(resuming._OF_RUNS)
    folder = SimpleNamespace(latest_metadata=lambda: whole)
    assert resuming.find_progress([folder], ["tiny"]) == (0, whole)
    del whole["steps"], whole["config"]
    with pytest.raises(ValueError, match="got those of the stage tiny without config, steps; try the version"):
        resuming.find_progress([folder], ["tiny"])


DAMAGE = {"zeros": bytes(64), "empty": b"", "list": b"- 1\n- 2\n", "utf16": "name: größe\n".encode("utf-16")}


@pytest.mark.parametrize("content", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_config_is_named_and_written_anew(tmp_path, content, capsys):
    path = tmp_path / "config.yaml"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"config\.yaml` must be the config that a run wrote, got .*; the metadata of"):
        load_config(path)
    claim(tmp_path, {"name": "a", "run_dir": "."})
    assert load_config(path)["name"] == "a" and "config.yaml is damaged" in capsys.readouterr().err
    (tmp_path / "arguments.yaml").write_bytes(b"a: 1\n" if content == DAMAGE["list"] else content)
    with pytest.raises(ValueError, match=r"arguments\.yaml` must list the arguments of a run, got"):
        resume_arguments([f"resume={tmp_path}"])


@pytest.mark.slow
@pytest.mark.usefixtures("shared_programs")
def test_damage_that_a_run_survives(tmp_path, compose, capfd, rows_without_time):
    whole = tmp_path / "whole"
    run(compose("training.total_steps=256"), whole)
    straight = run(compose(), shutil.copytree(whole, tmp_path / "straight"))

    def copy(name):
        return shutil.copytree(whole, tmp_path / name)

    best = copy("best")
    victim = max((best / "checkpoints/best").rglob("*"), key=lambda path: path.stat().st_size * path.is_file())
    victim.write_bytes(victim.read_bytes()[:-1])
    resumed = run(compose(), best)
    assert "The best checkpoint is lost, the next evaluation takes its place" in capfd.readouterr().err
    assert rows_without_time(best) == rows_without_time(tmp_path / "straight")
    assert resumed["evaluation"] == straight["evaluation"]
    assert load_policy(best, on_fallback=pytest.fail).config["name"] == "tiny"

    (copy("logless") / "metrics.jsonl").unlink()
    (tmp_path / "logless/config.yaml").write_bytes(bytes(9))
    run(compose(), tmp_path / "logless")
    errors = capfd.readouterr().err
    assert "metrics.jsonl ends at update 0, the checkpoint is of update 8" in errors and "is written anew" in errors
    assert OmegaConf.load(tmp_path / "logless/config.yaml").name == "tiny"

    shutil.rmtree(copy("gone") / "checkpoints")
    with pytest.raises(ValueError, match="`run_dir` must hold the checkpoints of its run, got .*gone with metrics"):
        run(compose(), tmp_path / "gone")
    for digest in copy("digests").rglob("*.digest.json"):
        digest.unlink()
    with pytest.raises(ValueError, match="`run_dir` must hold|`checkpoint` must be whole"):
        run(compose(), tmp_path / "digests")
