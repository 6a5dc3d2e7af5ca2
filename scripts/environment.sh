# shellcheck shell=bash
# Sourced by run.sh, run_multigpu.sh and test.sh: makes the Python environment once and names its interpreter $python.
#   GNN_VENV         where it lives; default .venv beside run.sh
#   TORCH_INDEX_URL  package index to take torch from, for example one with the small CPU build; read at set-up only
#   TORCH_VERSION    another version than the locked one, if that index does not have it; read at set-up only

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$(readlink -m "${GNN_VENV:-$root/.venv}")
python=$venv/bin/python
log=$venv/install.log
export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}
export PYTHONSAFEPATH=1 # nothing in the folder you are in shadows a package

environment() { # <lock>...: install what is not there yet, one start at a time
  if fits "$@"; then return; fi
  if ! mkdir -p "$venv" 2>/dev/null || [[ ! -w $venv ]]; then
    fail "cannot write to $venv: make that folder writable, or name another one in GNN_VENV."
  fi
  (
    if ! flock -n 9; then
      say "Waiting for another start that is setting up the environment ..."
      flock 9 || true # a network file system may have no locks; then two first starts must not overlap
    fi
    fits "$@" || build "$@"
  ) 9>"$venv/.lock" || exit
}

fits() { # <lock>...: whether all of them are installed for the Python in $venv
  local lock
  [[ -x $python && ! -e $venv/unfinished ]] || return
  for lock in "$@"; do
    [[ $(cat "$venv/$lock.done" 2>/dev/null) == "$(stamp "$lock")" ]] || return
  done
}

stamp() { # <lock>: what its installation depends on
  "$python" -c 'import sys; print(*sys.version_info[:2], sep=".")' 2>/dev/null
  sha256sum <"$root/$1"
}

build() { # <lock>...
  local lock missing=()
  for lock in "$@"; do fits "$lock" || missing+=("$lock"); done
  if ((${#missing[@]} == $#)) || ! has_installer; then
    missing=("$@")
    start_afresh
  fi
  say "Setting up the environment in $venv (once; about 2 minutes, 20 seconds with uv; log: $log) ..."
  touch "$venv/unfinished"
  mkdir -p "$venv/tmp"
  export TMPDIR=$venv/tmp # wheels unpack here and not in /tmp, which may be small and in memory
  for lock in "${missing[@]}"; do
    { install "$lock" && stamp "$lock" >"$venv/$lock.done"; } &>>"$log" || explain
  done
  rm -rf "$venv/tmp" "$venv/unfinished"
}

start_afresh() { # an empty environment in $venv; what an interrupted start left there goes
  local base
  find_base_python
  if ! compgen -G "$venv/*.done" >/dev/null && [[ ! -e $venv/unfinished && $(ls -A "$venv") != .lock ]]; then
    fail "$venv holds files that are not ours: move it away, or name another folder in GNN_VENV."
  fi
  find "$venv" -mindepth 1 ! -path "$venv/.lock" -delete
  need_disk
  touch "$venv/unfinished"
  if has_uv; then uv venv --allow-existing --python "$base" "$venv"; else "$base" -m venv "$venv"; fi &>"$log" || explain
}

find_base_python() { # sets base
  local name version without_venv=''
  for name in python3.11 python3.12 python3.13 python3.14 python3; do
    version=$("$name" -c 'import sys; print(*sys.version_info[:2], sep=".")' 2>/dev/null) || continue
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
  if [[ -n ${TORCH_INDEX_URL:-} ]]; then need=3; fi
  free=$(free_mib)
  ((free >= need * 1024)) ||
    fail "the disk of $venv has $((free / 1024)) GiB free and the environment needs $need: free some," \
      "name a folder on a larger disk in GNN_VENV, or, without a GPU, take a CPU build of torch with TORCH_INDEX_URL."
}

install() { # <lock>
  if [[ $1 == requirements-torch.lock && -n ${TORCH_INDEX_URL:-}${TORCH_VERSION:-} ]]; then
    # Another build than the locked one: there is no hash to hold it against.
    local torch=${TORCH_VERSION:+torch==$TORCH_VERSION}
    pip_install ${TORCH_INDEX_URL:+--index-url "$TORCH_INDEX_URL"} "${torch:-$(grep -o '^torch==[^ ]*' "$root/$1")}"
  else
    pip_install --no-deps --require-hashes -r "$root/$1"
  fi
}

pip_install() {
  if has_uv; then
    uv pip install --python "$python" "$@"
  else
    "$python" -m pip install --disable-pip-version-check --no-input --progress-bar off "$@"
  fi
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

num_gpus() { # GPUs that torch can use; torch is only loaded where there may be one
  if [[ -e /dev/nvidiactl ]] || command -v nvidia-smi >/dev/null; then
    "$python" -c 'import torch; print(torch.cuda.device_count())'
  else
    echo 0
  fi
}

has_uv() { command -v uv >/dev/null; }

has_installer() { has_uv || "$python" -m pip --version &>/dev/null; }

free_mib() { df -Pm "$venv" | awk 'NR == 2 { print $4 }'; }

say() { echo "$*" >&2; }

fail() {
  say "${0##*/}: $*"
  exit 2
}
