#!/usr/bin/env bash
# Asked by the engine once a minute: nothing runs, or it has given a sign of life within ten minutes.
set -euo pipefail
heartbeat=${GNN_HEARTBEAT:-/dev/shm/gnn-heartbeat}.$(uname -n) # containers may share the folder (--ipc=host)

[[ -e $heartbeat ]] || exit 0
if [[ -z $(find "$heartbeat" -mmin -10) ]]; then
  echo "The job has given no sign of life since $(date -r "$heartbeat")."
  exit 1
fi
