#!/usr/bin/env bash
# Everything that must hold before a change goes in: style, scripts, tests, coverage.
#   ./test.sh                       all of it
#   ./test.sh tests/test_door.py    style and these tests; all arguments go to pytest
set -euo pipefail
source "$(dirname "$(readlink -f "$0")")/scripts/environment.sh"

environment requirements.lock requirements-torch.lock requirements-dev.lock
cd "$root"
"$venv/bin/ruff" check .
"$venv/bin/ruff" format --check .
"$venv/bin/shellcheck" -x ./*.sh scripts/*.sh .ci/run
"$venv/bin/hadolint" Dockerfile
(($# > 0)) || set -- --cov --numprocesses 2 --dist loadfile
# One thread per test process: two of them share the cores of a small machine.
OMP_NUM_THREADS=1 exec "$python" -m pytest "$@"
