#!/usr/bin/env bash
# Inside `docker build`: the environment of a clone plus the oldest ONNX Runtime, in parts for the layers of the image.
#   install_image.sh <folder for the parts>
set -euo pipefail
source scripts/environment.sh
parts=$1
trap '(($? == 0)) || tail -n 20 "$log" >&2' EXIT # the log dies with the failed build

if [[ -e /run/secrets/ca ]]; then export PIP_CERT=/run/secrets/ca SSL_CERT_FILE=/run/secrets/ca; fi
export PIP_COMPILE=0 # compiled below, on all cores
environment requirements.lock requirements-torch.lock

# Hopper and Blackwell, which are what is rented; asking torch what it was built for needs no GPU.
"$python" -c '
import sys, torch
missing = {"sm_90", "sm_100"} - set((torch._C._cuda_getArchFlags() or "").split())
if torch.version.cuda is None:
    print("SKIPPED: this torch has NO CUDA, so nobody checked that it knows sm_90 and sm_100.")
elif missing:
    sys.exit(f"torch {torch.__version__} was not built for {missing}: take another TORCH_VERSION")'

if "$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))'; then
  oldest=$venv/oldest-onnxruntime # where gnn_training/model/oldest_runtime.py looks, so that export needs no network
  pip_install --no-deps --require-hashes --target "$oldest" -r "$root/requirements-oldest.lock" &>>"$log"
  touch "$oldest/done"
else
  say "SKIPPED: the oldest ONNX Runtime, which was never built for the Python of this base image."
fi

# Unchecked, because the image never changes: a start asks for no file times, and equal wheels give equal layers.
"$python" -m compileall -qqf -j 0 --invalidation-mode unchecked-hash "$venv" || true # some packages ship templates
rm -f "$venv/.lock"
mv "$log" "$root/install.log" # dates and addresses; not for the image
log=$root/install.log
"$python" "$root/scripts/layers.py" "$venv" "$parts"
