#!/usr/bin/env bash
# Copies the committed state of this repository to every host of a TPU pod slice and installs it there with JAX for TPU.
#
# Usage: TPU=my-pod ZONE=us-central2-b [PROJECT=...] tpu_scripts/set_up_pod.sh
set -euo pipefail
: "${TPU:?name of the TPU VM, as in gcloud compute tpus tpu-vm list}" "${ZONE:?zone of the TPU VM}"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
archive=$(mktemp --suffix=.tar.gz)
trap 'rm -f "$archive"' EXIT
git archive --format=tar.gz --output="$archive" HEAD
options=(--zone "$ZONE" ${PROJECT:+--project "$PROJECT"} --worker=all)
gcloud compute tpus tpu-vm scp "$archive" "$TPU:jaxagents.tar.gz" "${options[@]}"
gcloud compute tpus tpu-vm ssh "$TPU" "${options[@]}" --command \
  "mkdir -p ~/jaxagents && tar -xzf ~/jaxagents.tar.gz -C ~/jaxagents && cd ~/jaxagents &&
   python3 -m venv .venv && .venv/bin/pip install -q --upgrade pip && .venv/bin/pip install -q -e '.[gymnax]' 'jax[tpu]>=0.10.2,<0.12'"
