#!/usr/bin/env bash
# run.sh on all GPUs of this machine, with preset multi.
#   ./run_multigpu.sh [N] [flags]      N ranks; without N one per GPU; --gpus 0,1,4 chooses GPUs
#   ./run_multigpu.sh --dry-run        print the commands and stop
#   ./run_multigpu.sh 2 --preset cpu   two ranks without a GPU, for debugging
#   ./run_multigpu.sh --help           this text; all flags once the environment is installed
set -euo pipefail
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/scripts/environment.sh"

help_if_asked "$@"
environment requirements.lock
export GNN_TRAINING_PRESET=${GNN_TRAINING_PRESET:-multi}
if [[ ${1:-} =~ ^[0-9]+$ ]]; then set -- --ranks "$@"; fi
exec "$python" -m gnn_training run "$@"
