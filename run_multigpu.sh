#!/usr/bin/env bash
# run.sh on the GPUs of this machine, or of many machines, with preset multi. Says so and stops where there are none.
#   ./run_multigpu.sh [N] [flags]      N: processes, left out one per GPU; --gpus 0,1,4 chooses them
#   ./run_multigpu.sh --dry-run        prints the commands and stops
#   ./run_multigpu.sh 2 --preset cpu   two processes without a GPU, for debugging
set -euo pipefail
source "$(dirname "$(readlink -f "$0")")/scripts/environment.sh"

environment requirements.lock requirements-torch.lock
export GNN_TRAINING_PRESET=${GNN_TRAINING_PRESET:-multi}
if [[ ${1:-} =~ ^[0-9]+$ ]]; then set -- --processes "$@"; fi
exec "$python" -m gnn_training run "$@"
