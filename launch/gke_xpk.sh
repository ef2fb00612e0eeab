#!/usr/bin/env bash
# Trains on TPU slices of a GKE cluster: one JobSet, made by xpk, one process per host.
#
#   pip install xpk
#   export PROJECT=my-project ZONE=us-west4-a CLUSTER=my-cluster NAME=recap
#   export IMAGE=us-docker.pkg.dev/my-project/platojax/platojax:1   # a tag that you may push to
#   launch/gke_xpk.sh image                 # builds this checkout as a container and pushes it
#   TYPE=v5litepod-256 launch/gke_xpk.sh run --config configs/recap_940m.py --workdir /mnt/runs/recap
#   launch/gke_xpk.sh delete
#
# RESTARTS is how often the JobSet starts again after a preemption (default 100): each start goes on
# from the last checkpoint. STORAGE names storage that `xpk storage attach` has made known to the
# cluster; it holds --workdir and the data (launch/README.md says why).
set -euo pipefail
cd "$(dirname "$0")/.."

case ${1:-} in
  image | run | delete) ;;
  *)
    sed -n '/^# /,/^set/{s/^#\( \|$\)//p}' "$0" >&2
    exit 2
    ;;
esac
: "${PROJECT:?the Google Cloud project}" "${ZONE:?such as us-west4-a}"
cluster() { : "${CLUSTER:?the GKE cluster}" "${NAME:?of the workload}"; }

image() {
  : "${IMAGE:?the tag to push to}"
  git archive --format=tar HEAD | docker build -t "$IMAGE" -f launch/Dockerfile -
  docker push "$IMAGE"
}

run() {
  cluster
  : "${IMAGE:?the tag that was pushed}"
  local command storage=()
  printf -v command ' %q' python -m platojax.main --distributed "$@"
  if [[ -n ${STORAGE:-} ]]; then storage=(--storage "$STORAGE"); fi
  xpk workload create --project "$PROJECT" --zone "$ZONE" --cluster "$CLUSTER" \
    --workload "$NAME" --tpu-type "${TYPE:-v5litepod-16}" --num-slices "${SLICES:-1}" \
    --docker-image "$IMAGE" --max-restarts "${RESTARTS:-100}" ${storage[@]+"${storage[@]}"} \
    --termination-grace-period-seconds 300 --command "${command# }"
}

delete() {
  cluster
  xpk workload delete --project "$PROJECT" --zone "$ZONE" --cluster "$CLUSTER" --workload "$NAME"
}

"$@"
