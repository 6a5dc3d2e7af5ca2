#!/usr/bin/env bash
# Build the image of this checkout, test it without GPU and network, push it and write image.json.
#   ./build_and_push.sh IMAGE [--tag T] [--no-push] [--platform P] [--base B] [--build-arg K=V]... [--allow-dirty]
#                       [-- flags of 'docker build']
#   --tag T         this tag instead of the version, the git revision and latest
#   --no-push       only build and test
#   --platform P    such as linux/amd64
#   --base B        another base image, with Python 3.11 and its venv module
#   --build-arg     TORCH_INDEX_URL=... takes torch from another index, such as that of its CPU builds; for drivers before
#                   580, from that of its CUDA 12.8 builds, together with TORCH_VERSION=2.11.0, the last that has them;
#                   for AMD GPUs, from that of its ROCm builds
#   --allow-dirty   although files differ from the git revision; the revision is then marked
# DOCKER names the client of the container engine; default docker.
set -euo pipefail
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/scripts/environment.sh"
docker=${DOCKER:-docker}
export DOCKER_BUILDKIT=1

main() {
  help_if_asked "$@"
  read_flags "$@"
  read_revision
  find_engine
  version=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' "$root/gnn_training/__init__.py")
  ((${#tags[@]} > 0)) || tags=("$version" "$short" latest)
  built=$image:${tags[0]} volume=gnn-smoke-test-$$
  work=$(mktemp -d)
  trap clean_up EXIT
  build
  smoke_test
  for tag in "${tags[@]:1}"; do "$docker" tag "$built" "$image:$tag"; done
  digest='' manifest=null
  if [[ $push == yes ]]; then push_tags; fi
  write_report
}

read_flags() {
  image='' push=yes dirty=refused tags=() flags=()
  while (($# > 0)); do
    case $1 in
      --tag | --platform | --base | --build-arg) (($# > 1)) || fail "$1 needs a value." ;;&
      --tag) tags=("$2") && shift ;;
      --platform) flags+=(--platform "$2") && shift ;;
      --base) flags+=(--build-arg "BASE_IMAGE=$2") && shift ;;
      --build-arg) flags+=(--build-arg "$2") && shift ;;
      --no-push) push=no ;;
      --allow-dirty) dirty=allowed ;;
      --) flags+=("${@:2}") && break ;;
      -*) fail "there is no flag $1: see --help; flags of 'docker build' go behind --." ;;
      *) [[ -z $image ]] || fail "one image at a time: $image or $1?" && image=$1 ;;
    esac
    shift
  done
  [[ -n $image ]] || fail "name the image, such as registry.example.org/me/coloring-gnn."
  [[ ${image##*/} != *:* ]] || fail "$image: a tag is given with --tag."
}

read_revision() { # sets revision and short
  local changes
  revision=$(git -C "$root" rev-parse HEAD 2>/dev/null) || revision=unknown
  short=${revision:0:7}
  changes=$(LC_ALL=C git -C "$root" status --porcelain 2>&1) || changes=${changes#fatal: }
  [[ $changes != *safe.directory* ]] || fail "git says: ${changes%%$'\n'*}: run '$(tail -n 1 <<<"$changes" | xargs)' first."
  if [[ -n $changes ]]; then
    [[ $dirty == allowed ]] ||
      fail "the image could not be traced to a revision ($(head -n 1 <<<"$changes")): commit first, or take --allow-dirty."
    revision+=+changes short+=-dirty
  fi
}

find_engine() {
  local answer
  command -v "$docker" >/dev/null || fail "there is no $docker: install Docker, or name its client in DOCKER."
  if ! answer=$("$docker" version --format '{{.Server.Version}}' 2>&1); then
    [[ $answer != *"permission denied"* ]] || fail "you may not use the container engine: ask for the group docker."
    fail "the container engine does not answer: start it, or name its address in DOCKER_HOST."
  fi
}

build() {
  say "Building $built ..."
  logged "$docker" build --progress=plain --tag "$built" --build-arg "VERSION=$version" \
    --build-arg "REVISION=$revision" --build-arg "CREATED=$(date -u +%FT%TZ)" "${flags[@]}" "$root" || explain_docker build
}

smoke_test() { # as an unknown user, without network; checks the output too, because some engines report every run as a success
  say "Testing $built ..."
  "$docker" volume create "$volume" >/dev/null
  logged in_image --user 0 --entrypoint chown -- 12345:12345 . || fail "the smoke test failed: see above."
  expect "ready after" run.sh --preset smoke
  expect "coloring_gnn.onnx: OK" bash -c "cd models && sha256sum --check SHA256SUMS"
}

in_image() { # <flags of docker run> -- <command>...
  local run=()
  while [[ $1 != -- ]]; do run+=("$1") && shift; done
  "$docker" run --rm --network none --volume "$volume:/workspace:nocopy" "${run[@]}" "$built" "${@:2}"
}

expect() { # <words of the output> <command>...
  logged in_image --user 12345:12345 -- "${@:2}" || fail "the smoke test failed: see above."
  grep -qF "$1" "$work/log" || fail "the smoke test failed: '${*:2:3} ...' did not say '$1'."
}

push_tags() { # the registry must then answer with the digest that was pushed
  local tag answer insecure=()
  if [[ $image == localhost:* || $image == 127.* ]]; then insecure=(--insecure); fi
  for tag in "${tags[@]}"; do
    logged "$docker" push "$image:$tag" || explain_docker push
    digest=$(sed -n 's/^.*digest: \(sha256:[0-9a-f]*\).*/\1/p' "$work/log")
    logged "$docker" pull "$image:$tag" || explain_docker push
    answer=$(sed -n 's/^Digest: //p' "$work/log")
    [[ -n $digest && $answer == "$digest" ]] ||
      fail "the registry holds another $image:$tag (${answer:-nothing}) than was pushed ($digest): push again."
  done
  say "$image: the registry answers with the digest that was pushed, $digest."
  manifest=$("$docker" manifest inspect "${insecure[@]}" "$image@$digest") || manifest=null
}

write_report() { # image.json; sizes in bytes, packed as in the registry
  local bytes packed=null words=${tags[*]}
  bytes=$("$docker" image inspect --format '{{.Size}}' "$built")
  [[ $manifest == null ]] || packed=$(awk -F '[:,]' '/"size":/ { sum += $2 } END { printf "%.0f", sum }' <<<"$manifest")
  printf '{"image": "%s", "tags": ["%s"], "version": "%s", "revision": "%s", "digest": "%s",\n"bytes": %s,' "$image" \
    "${words// /\", \"}" "$version" "$revision" "$digest" "$bytes" >"$root/image.json.tmp"
  printf ' "packed_bytes": %s, "manifest": %s}\n' "$packed" "$manifest" >>"$root/image.json.tmp"
  mv "$root/image.json.tmp" "$root/image.json"
  say "Done: $built; sizes and digest are in image.json."
}

logged() { "$@" 2>&1 | tee "$work/log"; }

explain_docker() { # <what failed>: in one sentence, from what the engine said
  case $(tail -c 20000 "$work/log") in
    *"o space left on device"* | *"isk quota exceeded"*)
      fail "the $1 failed because the disk is full: free some, for example with '$docker system prune'." ;;
    *"equires BuildKit"* | *"BuildKit is enabled but"* | *"unknown flag: --progress"*)
      fail "the $1 failed because BuildKit is missing: install docker-buildx, or name a client that has it in DOCKER." ;;
    *"access denied"* | *"is denied"* | *"denied: "* | *nauthorized* | *"no basic auth"* | *"uthentication required"*)
      fail "the $1 was refused for $image: log in with '$docker login', as somebody who may push there." ;;
    *"onnection refused"* | *"no such host"* | *"imeout exceeded"* | *"ame resolution"*)
      fail "the $1 failed because a server cannot be reached: check the network and the name $image." ;;
  esac
  fail "the $1 failed: see above."
}

clean_up() {
  "$docker" volume rm "$volume" &>/dev/null || true
  rm -rf "$work"
}

main "$@"
