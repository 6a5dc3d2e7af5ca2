#!/usr/bin/env bash
# What to run first on a new kind of GPU: measures everything in at most 45 minutes, unattended; docs/GPU.md explains it.
#   scripts/first_gpu.sh                   generates the graphs of recipe cpu first
#   scripts/first_gpu.sh --data FOLDER     packed graphs; generate those of recipe full before the GPU costs money
#   scripts/first_gpu.sh --out FOLDER      new folder for page and numbers; default runs/first_gpu
#   scripts/first_gpu.sh --minutes 8       longest real training
# In the image: docker run --gpus all -v "$PWD:/workspace" IMAGE first_gpu.sh
set -euo pipefail
source "$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")/scripts/environment.sh"

help_if_asked "$@"
environment requirements.lock
exec "$python" -m benchmarks.first_gpu "$@"
