#!/usr/bin/env bash
# Everything that must hold before a change goes in: style, types, scripts, tests.
#   ./test.sh                        the quick tests; 3 minutes
#   ./test.sh --all                  what CI runs: also containers, compilation, killed trainings, Rust; 16 minutes
#   ./test.sh --nightly              the long forms: generated input, pretended GPUs, the whole image
#   ./test.sh --fuzz 60              only generated input, a minute for each target; see docs/RELIABILITY.md
#   ./test.sh tests/test_color.py    some tests; all arguments go to pytest
#   ./test.sh --all --cov            also measure which lines the tests reach; 4 minutes more
set -euo pipefail
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/scripts/environment.sh"

help_if_asked "$@"
environment requirements.lock requirements-oldest.lock requirements-dev.lock
cd "$root"
PATH=$venv/bin:$PATH
ruff check .
ruff format --check .
shellcheck -x ./*.sh scripts/*.sh .ci/run deploy/slurm.sbatch
hadolint Dockerfile
mypy
case ${1:-} in
  --nightly | --fuzz) export FUZZ_SECONDS=60 FUZZ_SEED=${FUZZ_SEED:-$((RANDOM * 100000))} ;;&
  '') set -- -m "not slow and not container and not gpu and not nightly" --numprocesses 2 --dist worksteal ;;
  --fuzz)
    FUZZ_SECONDS=${2:-60}
    set -- -m fuzz --numprocesses 2 --dist worksteal --timeout 0 "${@:3}"
    ;;
  --nightly) set -- -m "nightly or fuzz" --numprocesses 2 --dist loadfile "${@:2}" ;;
  --all) set -- -m "not nightly" --numprocesses 2 --dist loadfile --no-loadscope-reorder "${@:2}" ;;
esac
OMP_NUM_THREADS=1 exec python -m pytest "$@" # two processes share the cores of a small machine
