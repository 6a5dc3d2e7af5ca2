#!/usr/bin/env bash
# run.sh on several GPUs of this machine, or, without GPUs, on as many CPU processes.
#   ./run_multigpu.sh [N] [flags]       N: processes; left out, one per GPU, or 2 without GPUs
set -euo pipefail
source "$(dirname "$(readlink -f "$0")")/scripts/environment.sh"

environment requirements.lock requirements-torch.lock
gpus=$(num_gpus)
preset=multi processes=$gpus
((gpus > 0)) || preset=cpu processes=2
if [[ ${1:-} =~ ^[0-9]+$ ]]; then
  processes=$1
  shift
fi
export GNN_TRAINING_PRESET=${GNN_TRAINING_PRESET:-$preset}
exec "$python" -m gnn_training run --processes "$processes" "$@"
