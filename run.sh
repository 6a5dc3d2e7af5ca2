#!/usr/bin/env bash
# From nothing to models/coloring_gnn.onnx: makes the environment once, then runs every step that is not done yet.
#   ./run.sh [flags]       ./run.sh --help lists them
# Paths are relative to the folder you are in.
set -euo pipefail
source "$(dirname "$(readlink -f "$0")")/scripts/environment.sh"

environment requirements.lock requirements-torch.lock
preset=cpu
(($(num_gpus) == 0)) || preset=single
export GNN_TRAINING_PRESET=${GNN_TRAINING_PRESET:-$preset}
exec "$python" -m gnn_training run "$@"
