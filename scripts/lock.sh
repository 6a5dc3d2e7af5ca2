#!/usr/bin/env bash
# Pin the three requirements*.in, with hashes, for every platform and Python >= 3.11. Needs uv.
#   scripts/lock.sh                            keep the pins that still fit
#   scripts/lock.sh --upgrade                  take the newest of everything
#   scripts/lock.sh --upgrade-package numba    take the newest of one package
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

compile() { # <output> <input and options>...
  local output=$1
  shift
  uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header \
    --no-emit-index-url --no-emit-find-links --output-file "$output" "$@"
}

without() { # <known> <lock>: the lock without the entries that are known for the same platforms
  awk 'FNR == NR { known[$0]; next } /^[a-z]/ { skip = $0 in known } !skip' "$1" "$2"
}

cat requirements-torch.lock requirements.lock >"$work/all" 2>/dev/null || true
compile "$work/all" requirements.in "$@"
cp requirements-dev.lock "$work/dev" 2>/dev/null || true
compile "$work/dev" requirements-dev.in --constraint "$work/all" "$@"
cp requirements-deploy.lock "$work/deploy" 2>/dev/null || true
compile "$work/deploy" requirements-deploy.in --constraint "$work/all" --constraint "$work/dev" "$@"

# torch and its CUDA stand alone: TORCH_INDEX_URL may bring another build of torch, whose hashes differ.
awk -v torch="$work/torch" -v rest="$work/rest" '
  /^[a-z]/ { out = /^(torch==|triton==|nvidia-|cuda-)/ ? torch : rest }
  { print > out }' "$work/all"
# What is installed already is not repeated.
without "$work/all" "$work/dev" >"$work/dev-extra"
without <(cat "$work/all" "$work/dev") "$work/deploy" >"$work/deploy-extra"

mv "$work/torch" requirements-torch.lock
mv "$work/rest" requirements.lock
mv "$work/dev-extra" requirements-dev.lock
mv "$work/deploy-extra" requirements-deploy.lock
