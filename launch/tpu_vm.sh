#!/usr/bin/env bash
# Trains on a TPU VM pod: a queued resource, platojax on each of its hosts, one process per host.
#
#   export PROJECT=my-project ZONE=us-west4-a NAME=recap TYPE=v5litepod-256 RUNTIME=v2-alpha-tpuv5-lite
#   launch/tpu_vm.sh create                  # asks for the pod; waits until it is there
#   launch/tpu_vm.sh install                 # copies this checkout to all hosts and installs it
#   launch/tpu_vm.sh run --config configs/recap_940m.py --workdir /mnt/runs/recap
#   launch/tpu_vm.sh resubmit --config ...   # the three above, again and again while it is preempted
#   launch/tpu_vm.sh delete
#
# SPOT=1 asks for preemptible chips. MOUNT is a command that each host runs after `install`, such as
# the one that mounts the shared file system which --workdir is on (launch/README.md says why).
set -euo pipefail
cd "$(dirname "$0")/.."

case ${1:-} in
  create | install | run | resubmit | delete) ;;
  *)
    sed -n '/^# /,/^set/{s/^#\( \|$\)//p}' "$0" >&2
    exit 2
    ;;
esac
: "${PROJECT:?the Google Cloud project}" "${ZONE:?such as us-west4-a}" "${NAME:?of the pod}"
TYPE=${TYPE:-v5litepod-16}
RUNTIME=${RUNTIME:-v2-alpha-tpuv5-lite}

tpu() { gcloud compute tpus "$@" --project "$PROJECT" --zone "$ZONE"; }
on_all_hosts() { tpu tpu-vm ssh "$NAME" --worker=all --command "$1"; }
state() { tpu queued-resources describe "$NAME" --format='value(state.state)' 2>/dev/null || true; }

create() {
  local spot=()
  if [[ ${SPOT:-0} == 1 ]]; then spot=(--spot); fi
  tpu queued-resources create "$NAME" --node-id "$NAME" --accelerator-type "$TYPE" \
    --runtime-version "$RUNTIME" ${spot[@]+"${spot[@]}"}
  until [[ $(state) == ACTIVE ]]; do
    if [[ $(state) == FAILED || $(state) == SUSPENDED ]]; then
      echo "queued resource $NAME: $(state)" >&2
      return 1
    fi
    sleep 30
  done
}

delete() { tpu queued-resources delete "$NAME" --force --quiet; }

install() {
  local archive
  archive=$(mktemp --suffix=.tar.gz)
  git archive --format=tar.gz HEAD >"$archive"
  tpu tpu-vm scp "$archive" "$NAME:platojax.tar.gz" --worker=all
  rm -f "$archive"
  on_all_hosts "set -e; mkdir -p platojax; tar -xzf platojax.tar.gz -C platojax; cd platojax
    python3 -m venv .venv; .venv/bin/pip install -q -c constraints.txt -e '.[tpu]'"
  if [[ -n ${MOUNT:-} ]]; then on_all_hosts "$MOUNT"; fi
}

run() {
  local arguments
  printf -v arguments ' %q' "$@"
  # Started again after a kill of the ssh session, the hosts go on from the last checkpoint.
  on_all_hosts "cd platojax && exec .venv/bin/python -m platojax.main --distributed$arguments"
}

resubmit() {
  while true; do
    case $(state) in
      ACTIVE) ;;
      '') create && install ;;
      *) delete && create && install ;;
    esac
    if run "$@"; then return; fi
    if [[ $(state) == ACTIVE ]]; then
      echo "the run failed on a pod that is there: mend the cause, then run again" >&2
      return 1
    fi
    echo "preempted; asking for the pod again" >&2
  done
}

"$@"
