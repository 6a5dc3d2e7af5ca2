# shellcheck shell=bash
# Sourced by run.sh, run_multigpu.sh, test.sh and build_and_push.sh: --help, messages, and the Python environment, which
# it installs once as $python.
#   GNN_VENV         folder of the environment; default .venv beside run.sh
#   TORCH_INDEX_URL  package index for torch, such as that of its small CPU builds or that of its ROCm builds for AMD
#                    GPUs; read only while installing
#   TORCH_VERSION    another torch than the locked one; read only while installing

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$(readlink -m "${GNN_VENV:-$root/.venv}")
python=$venv/bin/python
log=$venv/install.log
export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}
export PYTHONSAFEPATH=1 # nothing in the current folder shadows a package

environment() { # <lock>...: install the locks that are not installed yet; a second start waits for the first
  if is_ready "$@"; then return; fi
  if ! mkdir -p "$venv" 2>/dev/null || [[ ! -w $venv ]]; then
    fail "cannot write to $venv: make that folder writable, or name another one in GNN_VENV."
  fi
  (
    if ! flock -n 9; then
      say "Waiting for another start that is installing the environment ..."
      flock 9 || true # a network file system may have no locks
    fi
    is_ready "$@" || install "$@"
  ) 9>"$venv/.lock" || exit
}

is_ready() { # <lock>...
  local lock
  [[ -x $python && ! -e $venv/unfinished ]] || return
  for lock in "$@"; do is_installed "$lock" || return; done
}

is_installed() { [[ $(cat "$venv/$1.done" 2>/dev/null) == "$(stamp "$1")" ]]; } # <lock>

stamp() { # <lock>: what its installation depends on
  python_version "$python"
  sha256sum <"$root/$1"
}

install() { # <lock>...
  local lock torch
  if ! is_ready || ! has_installer; then create; fi
  touch "$venv/unfinished"
  mkdir -p "$venv/tmp"
  export TMPDIR=$venv/tmp # pip unpacks here: /tmp may be small and in memory
  for lock in "$@"; do
    if is_installed "$lock"; then continue; fi
    torch=''
    if takes_other_torch "$lock"; then torch=', torch and its libraries without hashes'; fi
    say "Installing $lock$torch ..."
    install_lock "$lock" 2>&1 | tee -a "$log" | show_progress || explain
    stamp "$lock" >"$venv/$lock.done"
  done
  printf '#!/bin/sh\nPYTHONSAFEPATH=1 PYTHONPATH=%q exec %q -m gnn_training "$@"\n' "$root" "$python" \
    >"$venv/bin/coloring-gnn"
  chmod +x "$venv/bin/coloring-gnn"
  rm -rf "$venv/tmp" "$venv/unfinished"
}

create() { # an empty environment in $venv; what an interrupted start left there goes
  local base
  find_base_python
  if ! compgen -G "$venv/*.done" >/dev/null && [[ ! -e $venv/unfinished && $(ls -A "$venv") != .lock ]]; then
    fail "$venv holds other files: move it away, or name another folder in GNN_VENV."
  fi
  find "$venv" -mindepth 1 ! -path "$venv/.lock" -delete
  need_disk
  touch "$venv/unfinished"
  say "Making the environment $venv (once, 1 to 3 minutes; log: $log) ..."
  if has_uv; then uv venv --allow-existing --python "$base" "$venv"; else "$base" -m venv "$venv"; fi &>"$log" || explain
}

find_base_python() { # sets base; first the only version for which the oldest ONNX Runtime, of the tests, was built
  local name version without_venv=''
  for name in python3.11 python3.12 python3.13 python3.14 python3; do
    version=$(python_version "$name") || continue
    base=$name
    if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
      if has_uv || "$name" -c 'import venv, ensurepip' 2>/dev/null; then return; fi
      without_venv=$version
    fi
  done
  [[ -z $without_venv ]] ||
    fail "Python $without_venv has no venv module: run 'apt install python$without_venv-venv' and start again."
  fail "Python 3.11 or newer is needed${version:+ and python3 is $version}:" \
    "install it (Debian, Ubuntu: 'apt install python3 python3-venv') and start again."
}

need_disk() { # stop before a download that cannot fit
  local need=9 free # GiB at the peak: the CUDA libraries, packed and unpacked
  if has_uv; then need=6; fi # uv unpacks while it downloads
  case ${TORCH_INDEX_URL:-} in
    *cpu*) need=3 ;;
    *rocm*) need=30 ;; # one wheel of 6 GB with all of ROCm for every kind of AMD GPU
  esac
  free=$(free_mib)
  ((free >= need * 1024)) ||
    fail "the disk of $venv has $((free / 1024)) GiB free and the environment needs $need: free some," \
      "name a folder on a larger disk in GNN_VENV, or, without a GPU, take a CPU build of torch with TORCH_INDEX_URL."
}

install_lock() { # <lock>
  local hashed=(--no-deps --require-hashes) oldest=$venv/oldest-onnxruntime
  if [[ $1 == requirements-oldest.lock ]]; then
    [[ $("$python" -V) == "Python 3.11."* ]] || return 0
    rm -rf "$oldest"
    pip_install "${hashed[@]}" --target "$oldest" -r "$root/$1" && touch "$oldest/done"
  elif takes_other_torch "$1"; then
    awk '/^[a-z]/ { skip = /^(torch==|triton==|nvidia-|cuda-|numba-cuda==)/ } !skip' "$root/$1" >"$venv/tmp/$1"
    pip_install "${hashed[@]}" -r "$venv/tmp/$1" &&
      pip_install ${TORCH_INDEX_URL:+--index-url "$TORCH_INDEX_URL"} "torch==${TORCH_VERSION:-$(locked torch)}" &&
      install_numba_cuda
  else
    pip_install "${hashed[@]}" -r "$root/$1"
  fi
}

takes_other_torch() { [[ $1 == requirements.lock && -n ${TORCH_INDEX_URL:-}${TORCH_VERSION:-} ]]; } # <lock>

install_numba_cuda() { # for the CUDA of that torch, which has its libraries already
  local version cuda
  version=$(locked numba-cuda)
  [[ -n $version ]] || return 0
  cuda=$("$python" -c 'import torch; print(torch.version.cuda or "")')
  [[ -z $cuda ]] || pip_install "numba-cuda[cu${cuda%%.*}]==$version" "cuda-toolkit==$cuda.*"
}

locked() { sed -n "s/^$1==\([^ ]*\).*/\1/p" "$root/requirements.lock"; } # <package>

pip_install() {
  if has_uv; then
    uv pip install --python "$python" "$@"
  else
    "$python" -m pip install --disable-pip-version-check --no-input --progress-bar off "$@"
  fi
}

show_progress() { # of what pip or uv says, the packages of a megabyte and more
  sed -unE 's/^ *(Downloading|Using cached) (\S+).* \(([0-9.]+ ?[MG]i?B)\)$/\2 \3/; t package
    s/^Installing collected .*/  unpacking .../p; d
    :package; s/-(cp|py)[0-9]\S+//; s/^/  /p' >&2
}

explain() { # say in one sentence why the installation failed; the next start begins afresh
  local reason='the installation failed: see the last lines of the log'
  case $(tail -c 50000 "$log") in
    *"No space left"* | *"Disk quota"*) reason="the disk is full: free some space" ;;
    *"DO NOT MATCH THE HASHES"* | *"Hash mismatch"*)
      reason="a downloaded package is not the one that the lock names: check your package index or proxy" ;;
    *"ame resolution"* | *"Name or service not known"* | *"dns error"* | *onnection* | *"etwork is unreachable"* | \
      *"imed out"* | *"error sending request"* | *"ProxyError"* | *"SSLError"* | \
      *"from versions: none"*)
      reason="the package index cannot be reached: check the network or proxy" ;;
    *"No matching distribution"* | *"No solution found"*)
      reason="the package index has no build for this Python and machine: try another Python, 3.11 to 3.13" ;;
  esac
  if (($(free_mib) < 100)); then reason="the disk is full: free some space"; fi
  fail "$reason, then start again (log: $log)."
}

help_if_asked() { # <argument of the script>...: before anything is installed, the comment at the script's beginning
  if [[ " $* " != *" --help "* && " $* " != *" -h "* ]]; then return; fi
  local script
  script=$(readlink -f "${BASH_SOURCE[-1]}") # bash finds `bash run.sh` by PATH, and $0 is then no path
  if [[ ${script##*/} == run* ]] && is_ready requirements.lock; then exec "$python" -m gnn_training run --help; fi
  sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "$script"
  exit
}

num_gpus() { # GPUs that torch can use; torch is only loaded where there may be one
  if [[ -e /dev/nvidiactl || -e /dev/kfd ]] || command -v nvidia-smi amd-smi >/dev/null; then
    "$python" -c 'import torch; print(torch.cuda.device_count())'
  else
    echo 0
  fi
}

python_version() { "$1" -c 'import sys; print(*sys.version_info[:2], sep=".")' 2>/dev/null; } # <python>

has_uv() { command -v uv >/dev/null; }

has_installer() { has_uv || "$python" -m pip --version &>/dev/null; }

free_mib() { df -Pm "$venv" | awk 'NR == 2 { print $4 }'; }

say() { echo "$*" >&2; }

fail() {
  say "${0##*/}: $*"
  exit 2
}
