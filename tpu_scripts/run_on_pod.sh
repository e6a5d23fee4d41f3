#!/usr/bin/env bash
# Runs one command of this repository on every host of a TPU pod slice; the hosts find each other through the metadata of
# the slice (jax.distributed.initialize() needs no arguments there).
#
# Usage: TPU=my-pod ZONE=us-central2-b [PROJECT=...] tpu_scripts/run_on_pod.sh experiment=ppo_cartpole run_dir=/mnt/shared/run
# `run_dir` must be on a file system that all hosts share. Needs gcloud and a checkout in ~/jaxagents on every host, which
# `tpu_scripts/set_up_pod.sh` makes.
set -euo pipefail
: "${TPU:?name of the TPU VM, as in gcloud compute tpus tpu-vm list}" "${ZONE:?zone of the TPU VM}"
arguments=$(printf ' %q' "$@")
gcloud compute tpus tpu-vm ssh "$TPU" --zone "$ZONE" ${PROJECT:+--project "$PROJECT"} --worker=all --command \
  "cd ~/jaxagents && .venv/bin/python experiments/train.py devices=sharded devices.distributed=true$arguments"
