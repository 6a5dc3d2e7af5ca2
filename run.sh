#!/usr/bin/env bash
# Make graphs, train a network on them and export it as models/coloring_gnn.onnx. Steps that are done are not repeated.
#   ./run.sh                        preset cpu, or single if there is a GPU
#   ./run.sh --data my_graphs       your own graphs
#   ./run.sh --preset smoke         one minute, to see that everything works
#   ./run.sh --dry-run              print the commands and stop
#   ./run.sh --help                 this text; all flags once the environment is installed
# The first start installs a Python environment in .venv (6 GB; 1 GB with TORCH_INDEX_URL of a CPU build of torch).
# Paths are relative to the current folder.
set -euo pipefail
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/scripts/environment.sh"

help_if_asked "$@"
environment requirements.lock
preset=cpu
(($(num_gpus) == 0)) || preset=single
export GNN_TRAINING_PRESET=${GNN_TRAINING_PRESET:-$preset}
exec "$python" -m gnn_training run "$@"
