#!/usr/bin/env bash
# The container is healthy if no job runs or the job has touched its heartbeat file within ten minutes.
set -euo pipefail
heartbeat=${GNN_HEARTBEAT:-/dev/shm/gnn-heartbeat}.$(uname -n) # containers may share the folder (--ipc=host)

[[ -e $heartbeat ]] || exit 0
if [[ -z $(find "$heartbeat" -mmin -10) ]]; then
  echo "The job has given no sign of life since $(date -r "$heartbeat")."
  exit 1
fi
