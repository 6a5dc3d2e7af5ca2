#!/usr/bin/env bash
# Started by tini in the container: changes from root to another user if the volume allows it, then runs the command.
set -euo pipefail
workspace=${GNN_WORKSPACE:-/workspace}

main() {
  (($# > 0)) || usage
  local user
  # SkyPilot starts a pod of RunPod with a command that installs an SSH server, which takes root.
  if is_root && [[ $* != *"base64 --decode > init.sh"* ]] && user=$(owner_of_volume); then
    exec setpriv --reuid "${user%:*}" --regid "${user#*:}" "$(groups_flag)" -- "$0" "$@"
  fi
  find_home
  exec "$@"
}

usage() {
  cat <<'TEXT'
Trains a network that colors graphs and exports it as one ONNX file. Results go to the volume on /workspace.

  docker run --gpus all -v "$PWD:/workspace" IMAGE run_multigpu.sh            every GPU of this machine
  docker run --gpus all -v "$PWD:/workspace" IMAGE run_multigpu.sh --dry-run  what that would do
  docker run -v "$PWD:/workspace" IMAGE run.sh --preset smoke                 a test of one minute on a CPU
  docker run IMAGE run.sh --help                                              all flags
  docker run IMAGE coloring-gnn --help                                        all commands

On AMD GPUs, an image of a ROCm build takes --device /dev/kfd --device /dev/dri in place of --gpus all.
The same command on the same volume continues an interrupted training. Put your own graphs on the volume and name
them with --data.
TEXT
  exit
}

is_root() { # not only in a user namespace, where root is the user who started the container
  ((EUID == 0)) && grep -qE '^ *0 +0 +4294967295$' /proc/self/uid_map
}

owner_of_volume() { # prints the uid:gid to run as; fails if only root can write
  local user
  user=$(stat -c %u:%g "$workspace")
  if [[ $user == 0:* ]]; then
    user=$(id -u gnn):$(id -g gnn)
    give_volume_to "$user"
  fi
  if can_write "$user"; then
    echo "$user"
  else
    [[ ! -w $workspace ]] || echo "entrypoint.sh: going on as root, because no other user can write $workspace." >&2
    return 1
  fi
}

groups_flag() { # of setpriv: only the groups of the device nodes of AMD GPUs stay, because others may not open them
  local ids
  ids=$(stat -c %g /dev/kfd /dev/dri/render* 2>/dev/null | sort -u | paste -sd,) || true
  echo "--${ids:+groups=}${ids:-clear-groups}"
}

give_volume_to() { # <uid:gid>: a network file system may refuse; can_write decides
  local folder
  chown "$1" "$workspace" 2>/dev/null || return 0
  for folder in "$workspace"/{runs,models,training_data}; do
    if [[ -d $folder ]]; then chown -hR "$1" "$folder" 2>/dev/null || true; fi
  done
}

can_write() { # <uid:gid>
  setpriv --reuid "${1%:*}" --regid "${1#*:}" --clear-groups test -w "$workspace" 2>/dev/null
}

find_home() { # a folder for caches: in /tmp, or on the volume where all else is read-only
  local temp
  export USER=${USER:-gnn} LOGNAME=${LOGNAME:-gnn}
  for temp in "${TMPDIR:-/tmp}" "$workspace/.tmp"; do
    if mkdir -p "$temp/home-$EUID" 2>/dev/null && [[ -w $temp/home-$EUID ]]; then
      export TMPDIR=$temp HOME=$temp/home-$EUID
      return
    fi
  done
}

main "$@"
