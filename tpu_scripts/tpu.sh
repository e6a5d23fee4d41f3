#!/usr/bin/env bash
# A run on a TPU VM, a pod slice or a queued resource, from its creation to its deletion.
#
#   TPU=my-pod ZONE=us-central2-b tpu_scripts/tpu.sh [--dry-run] COMMAND [ARGUMENT...]
#
#   create           asks for the TPU: TYPE=v4-32 (accelerator), VERSION=tpu-ubuntu2204-base (runtime), SPOT=1 for a
#                    preemptible one, QUEUED=1 to wait in the queue of resources until it is there
#   setup            copies the committed state of this repository to every worker and installs it with JAX for TPU
#   sync             copies the committed state alone, after a change of code
#   launch ARG...    starts experiments/train.py with these arguments on every worker, and returns; the workers find
#                    each other by the metadata of the slice; `run_dir=` is needed, on a file system that all share
#   follow           shows what the first worker prints, until Ctrl-C; the run goes on
#   status           says whether the TPU is there and whether the run is alive on every worker
#   stop             asks the run to save a checkpoint and end (exit code 75), and waits for it
#   resume ARG...    after a preemption: makes the TPU anew where it is gone, and launches with the same arguments;
#                    the run goes on from its last checkpoint
#   delete           gives the TPU back
#
# --dry-run prints the commands of gcloud and runs none. PROJECT=... chooses another than gcloud's own.
set -euo pipefail

dry_run=0
if [ "${1:-}" = --dry-run ]; then
  dry_run=1
  shift
fi
command=${1:-help}
shift || true
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
if [ "$command" = help ]; then
  sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"
  exit 0
fi
: "${TPU:?name of the TPU, as in gcloud compute tpus tpu-vm list}" "${ZONE:?zone of the TPU, as us-central2-b}"
place=(--zone "$ZONE" ${PROJECT:+--project "$PROJECT"})
vm=(gcloud compute tpus tpu-vm)
queue=(gcloud compute tpus queued-resources)
poll_seconds=${POLL_SECONDS:-30}

fail() {
  echo "Error: $1" >&2
  exit 2
}

run() {
  if [ "$dry_run" = 1 ]; then
    printf '%q ' "$@"
    printf '\n'
  else
    "$@"
  fi
}

# What gcloud says of the TPU, READY or PREEMPTED; nothing where there is none.
state() {
  [ "$dry_run" = 1 ] && return
  "${vm[@]}" describe "$TPU" "${place[@]}" --format='value(state)' 2>/dev/null || true
}

on_workers() { # WORKER COMMAND
  run "${vm[@]}" ssh "$TPU" "${place[@]}" --worker="$1" --command "$2"
}

create() {
  : "${TYPE:?accelerator, as v4-32; see gcloud compute tpus accelerator-types list}"
  local version=${VERSION:-tpu-ubuntu2204-base} spot=()
  [ "${SPOT:-0}" = 1 ] && spot=(--spot)
  if [ "${QUEUED:-0}" != 1 ]; then
    run "${vm[@]}" create "$TPU" "${place[@]}" --accelerator-type "$TYPE" --version "$version" "${spot[@]}"
    return
  fi
  run "${queue[@]}" create "$TPU" --node-id "$TPU" "${place[@]}" --accelerator-type "$TYPE" \
    --runtime-version "$version" "${spot[@]}"
  [ "$dry_run" = 1 ] && return
  local now
  while now=$("${queue[@]}" describe "$TPU" "${place[@]}" --format='value(state.state)'); [ "$now" != ACTIVE ]; do
    case $now in
      FAILED | SUSPENDED) fail "the queued resource $TPU must become ACTIVE, got $now; try delete, then create." ;;
    esac
    echo "$TPU is $now; asking again in $poll_seconds s." >&2
    sleep "$poll_seconds"
  done
}

sync() {
  local archive
  archive=$(mktemp --suffix=.tar.gz)
  # shellcheck disable=SC2064  # The name is known now, and gone at the end.
  trap "rm -f '$archive'" RETURN
  git -C "$root" archive --format=tar.gz --output="$archive" HEAD
  run "${vm[@]}" scp "$archive" "$TPU:jaxagents.tar.gz" "${place[@]}" --worker=all
  on_workers all 'mkdir -p ~/jaxagents && tar -xzf ~/jaxagents.tar.gz -C ~/jaxagents'
}

setup() {
  sync
  # shellcheck disable=SC2016  # The workers expand it.
  on_workers all 'cd ~/jaxagents && python3 -m venv .venv && .venv/bin/pip install -q --upgrade pip &&
   .venv/bin/pip install -q -e ".[gymnax,tpu]"'
}

launch() {
  local argument shared=0
  for argument in "$@"; do
    [ "${argument%%=*}" = run_dir ] && shared=1
  done
  [ "$shared" = 1 ] || fail "launch needs run_dir=..., on a file system that all workers share, to resume from."
  local arguments
  arguments=$(printf ' %q' "$@")
  on_workers all "cd ~/jaxagents &&
   (nohup .venv/bin/python experiments/train.py devices=sharded devices.distributed=true$arguments \
   >~/jaxagents.log 2>&1 </dev/null & echo \$! >~/jaxagents.pid)"
}

# The process ends after a checkpoint; see the exit codes in the README.
stop() {
  # shellcheck disable=SC2016  # The workers expand it.
  on_workers all 'pid=$(cat ~/jaxagents.pid) && kill -TERM "$pid" && while kill -0 "$pid" 2>/dev/null; do sleep 1; done'
}

status() {
  local now
  now=$(state)
  echo "$TPU: ${now:-there is none}"
  # shellcheck disable=SC2016  # The workers expand it.
  if [ "$dry_run" = 1 ] || [ "$now" = READY ]; then
    on_workers all 'if kill -0 "$(cat ~/jaxagents.pid 2>/dev/null)" 2>/dev/null; then echo running; else
   echo ended; tail -n 3 ~/jaxagents.log; fi'
  fi
}

delete() {
  if [ "${QUEUED:-0}" = 1 ]; then
    run "${queue[@]}" delete "$TPU" "${place[@]}" --quiet --force
  else
    run "${vm[@]}" delete "$TPU" "${place[@]}" --quiet
  fi
}

resume() {
  local now
  now=$(state)
  if [ "$now" != READY ]; then
    if [ -n "$now" ] || [ "${QUEUED:-0}" = 1 ]; then
      delete || true # A queued resource that is gone cannot be deleted.
    fi
    create
    setup
  fi
  launch "$@"
}

case $command in
  create | setup | sync | stop | status | delete) "$command" ;;
  launch | resume) "$command" "$@" ;;
  follow) on_workers 0 'tail -n 50 -F ~/jaxagents.log' ;;
  *) fail "the command must be create, setup, sync, launch, follow, status, stop, resume or delete, got '$command'." ;;
esac
