#!/usr/bin/env bash
# Pin what pyproject.toml asks for, with hashes, for every platform and Python >= 3.11. Needs uv.
#   scripts/lock.sh                            keep the pins that still fit
#   scripts/lock.sh --upgrade                  take the newest of everything
#   scripts/lock.sh --upgrade-package numba    take the newest of one package
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."

compile() { # <lock> <input and options>...
  uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header \
    --no-emit-index-url --no-emit-find-links --output-file "$@"
}

compile requirements.lock pyproject.toml --extra train "$@"
# Only the test tools: packages of requirements.lock are not repeated.
mapfile -t installed < <(sed -nE 's/^([a-z0-9-]+)==.*/--no-emit-package=\1/p' requirements.lock | sort -u)
compile requirements-dev.lock pyproject.toml --extra dev --constraint requirements.lock "${installed[@]}" "$@"
# The oldest ONNX Runtime that must run an exported file. It needs NumPy 1 and nothing else.
compile requirements-oldest.lock --no-deps - <<<$'onnxruntime==1.16.3\nnumpy<2'
