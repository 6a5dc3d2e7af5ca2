#!/usr/bin/env bash
# Inside `docker build`: install into $GNN_VENV.
#   install_image.sh PART.lock   a part of the lock, for a layer of its own
#   install_image.sh             everything that is still missing
set -euo pipefail
export PIP_NO_CACHE_DIR=1
if [[ -e /run/secrets/ca ]]; then export PIP_CERT=/run/secrets/ca; fi
python=$GNN_VENV/bin/python
[[ -x $python ]] || python3 -m venv "$GNN_VENV"

if (($# > 0)); then
  [[ ! -s $1 ]] || "$python" -m pip install --no-deps --require-hashes --progress-bar off -r "$1"
  exit
fi
source scripts/environment.sh
trap '(($? == 0)) || tail -n 20 "$log" >&2' EXIT
environment requirements.lock
rm -f "$venv/.lock" "$log"

# Hopper, Blackwell and Instinct are what is rented. This question needs no GPU.
"$python" -c '
import sys, torch
wanted = {"gfx942", "gfx950"} if torch.version.hip else {"sm_90", "sm_100"}
missing = wanted - set((torch._C._cuda_getArchFlags() or "").split())
if not (torch.version.cuda or torch.version.hip):
    print("SKIPPED: this torch is a build for CPUs, so nothing checks which GPUs it supports.")
elif missing:
    sys.exit(f"torch {torch.__version__} does not support {missing}: take another TORCH_VERSION")'
