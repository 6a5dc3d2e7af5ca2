"""The image's scripts without an engine: what build_and_push.sh says against a docker that fails, layers, health."""

import importlib.util
import json
import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PUSHED, OTHER = f"sha256:{'1' * 64}", f"sha256:{'2' * 64}"
WORDS = "all there, the job would start, ready after 9 s, coloring_gnn.onnx: OK, color_logits from edge_index"
BEHAVIOUR = {
    "version": "echo 20.10",
    "buildx version": "exit 1",
    "info": "echo '[[Backing Filesystem extfs]]'",
    "build": "true",
    "buildx build": "true",
    "run": f"echo '{WORDS}'",
    "push": f"echo '1.0: digest: {PUSHED} size: 5'",
    "pull": f"echo 'Digest: {PUSHED}'",
    "manifest inspect": """printf '{"config": {\\n"size": 3\\n}, "layers": [{\\n"size": 3000000000\\n}]}'""",
    "image inspect": """echo '"id": "sha256:3", "bytes": 7'""",
    "history": """echo '{"bytes": 7, "created_by": "x"}'""",
}


class Checkout:
    """A committed checkout and a docker that only notes how it was called and does what it is told."""

    def __init__(self, folder: Path):
        self.root, self.calls = folder / "checkout", folder / "docker.log"
        self._client = folder / "docker"
        (self.root / "gnn_training").mkdir(parents=True)
        shutil.copy(ROOT / "build_and_push.sh", self.root)
        (self.root / "gnn_training/__init__.py").write_text('__version__ = "1.0"\n')
        (self.root / ".gitignore").write_text("/image.json\n")
        for args in (["init"], ["add", "--all"], ["-c", "user.name=x", "-c", "user.email=x", "commit", "-m", "x"]):
            subprocess.run(["git", *args], cwd=self.root, capture_output=True, check=True)

    def start(self, *flags: str, env: dict[str, str] | None = None, **behaviour: str) -> subprocess.CompletedProcess:
        """Run build_and_push.sh; behaviour: shell commands, by docker command with _ for the blank."""
        commands = BEHAVIOUR | {name.replace("_", " "): script for name, script in behaviour.items()}
        cases = [f'"{name} "*) {script} ;;' for name, script in sorted(commands.items(), reverse=True)]
        script = f'#!/bin/bash\necho "$*" >>{self.calls}\ncase "$* " in\n' + "\n".join(cases) + "\nesac\n"
        self._client.write_text(script)
        self._client.chmod(0o755)
        command, env = ["./build_and_push.sh", *flags], os.environ | {"DOCKER": str(self._client)} | (env or {})
        return subprocess.run(command, cwd=self.root, env=env, capture_output=True, text=True, timeout=60)

    def called(self, command: str) -> list[str]:
        """How docker was called for one of its commands."""
        lines = self.calls.read_text().splitlines() if self.calls.exists() else []
        return [line for line in lines if line.startswith(f"{command} ")]

    def report(self) -> dict:
        return json.loads((self.root / "image.json").read_text())


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def assert_refused(done: subprocess.CompletedProcess, *words: str) -> None:
    """Exit code 2, and the last line is one sentence with these words."""
    sentence = done.stderr.splitlines()[-1]
    assert done.returncode == 2 and sentence.startswith("build_and_push.sh: "), done
    for word in words:
        assert word in sentence


def test_dockerfile_needs_no_newer_frontend_than_the_engine_brings():
    text = (ROOT / "Dockerfile").read_text()
    assert not any(newer in text for newer in ("# syntax=", "<<", "--link", "--exclude"))


def test_image_is_built_tried_tagged_pushed_and_reported(checkout: Checkout):
    done = checkout.start("host/gnn")
    assert done.returncode == 0, done.stderr
    revision = checkout.report()["revision"]
    tags = [f"host/gnn:{tag}" for tag in ("1.0", revision[:7], "latest")]
    assert f"--tag {tags[0]} --build-arg VERSION=1.0 --build-arg REVISION={revision} " in checkout.called("build")[0]
    assert checkout.called("push") == [f"push {tag}" for tag in tags]
    assert checkout.report()["tags"] == ["1.0", revision[:7], "latest"]
    assert checkout.report()["digest"] == PUSHED
    assert (checkout.report()["bytes"], checkout.report()["packed_bytes"]) == (7, 3_000_000_003)
    assert "the registry answers with the digest that was pushed" in done.stderr


def test_without_push_nothing_leaves_the_machine(checkout: Checkout):
    assert checkout.start("host/gnn", "--no-push").returncode == 0
    assert not checkout.called("push")
    assert (checkout.report()["digest"], checkout.report()["packed_bytes"]) == ("", None)


def test_tag_platform_base_and_flags_of_docker_build_are_passed_on(checkout: Checkout):
    flags = ("--platform", "linux/amd64", "--base", "mine", "--build-arg", "TORCH_VERSION=2.11.0", "--tag", "t")
    assert checkout.start("host/gnn", *flags, "--", "--network", "host").returncode == 0
    passed = "--platform linux/amd64 --build-arg BASE_IMAGE=mine --build-arg TORCH_VERSION=2.11.0 --network host"
    assert passed in checkout.called("build")[0]
    assert checkout.called("push") == ["push host/gnn:t"]


def test_image_is_tried_without_network_as_a_user_it_does_not_know(checkout: Checkout):
    checkout.start("host/gnn")
    runs = checkout.called("run")
    assert all("--rm --network none " in run for run in runs)
    assert "--user 0 --entrypoint chown" in runs[0]
    assert len(runs) == 6 and all("--user 12345:12345" in run for run in runs[1:])
    assert checkout.called("volume rm")


def test_bill_of_materials_is_made_where_the_engine_can_keep_it(checkout: Checkout):
    checkout.start("host/gnn", buildx_version="true", info="echo '[[driver-type io.containerd.snapshotter.v1]]'")
    assert "--load --sbom=true --provenance=mode=max" in checkout.called("buildx build")[0]
    left_out = checkout.start("host/gnn", buildx_version="true")
    assert "--sbom" not in checkout.called("buildx build")[1]
    assert left_out.stderr.startswith("SBOM and provenance are left out: ")


def test_changed_files_are_refused_or_marked(checkout: Checkout):
    (checkout.root / "new.py").touch()
    assert_refused(checkout.start("host/gnn"), "?? new.py", "--allow-dirty")
    assert checkout.start("host/gnn", "--allow-dirty").returncode == 0
    assert checkout.report()["revision"].endswith("+changes")
    assert checkout.report()["tags"][1].endswith("-dirty")


def test_folder_without_history_is_refused(checkout: Checkout):
    shutil.rmtree(checkout.root / ".git")
    assert_refused(checkout.start("host/gnn", env={"GIT_CEILING_DIRECTORIES": "/"}), "not a git checkout")


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        ((), "name the image"),
        (("host/gnn:1",), "--tag"),
        (("a", "b"), "one image at a time: a or b"),
        (("host/gnn", "--pull"), "there is no flag --pull"),
        (("host/gnn", "--tag"), "--tag needs a value"),
    ],
)
def test_command_line_that_makes_no_sense_is_refused(checkout: Checkout, flags: tuple[str, ...], word: str):
    assert_refused(checkout.start(*flags), word)
    assert not checkout.calls.exists()


def test_missing_engine_is_named(checkout: Checkout):
    assert_refused(checkout.start("host/gnn", env={"DOCKER": "no-such-engine"}), "there is no no-such-engine")


def test_silent_engine_is_named(checkout: Checkout):
    assert_refused(checkout.start("host/gnn", version="exit 1"), "does not answer", "DOCKER_HOST")
    forbidden = "echo 'permission denied while trying to connect to the Docker daemon socket' >&2; exit 1"
    assert_refused(checkout.start("host/gnn", version=forbidden), "may not use", "group docker")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("write /var/lib/docker/tmp: no space left on device", "the disk is full"),
        ("ERROR: BuildKit is enabled but the buildx component is missing or broken.", "BuildKit is missing"),
        ("the --mount option requires BuildKit.", "BuildKit is missing"),
        ("dial tcp: lookup host: no such host", "cannot be reached"),
        ("pull access denied for mine, repository does not exist", "log in"),
        ("something odd", "the build failed: see above"),
    ],
)
def test_failed_build_is_explained_in_one_sentence(checkout: Checkout, words: str, sentence: str):
    assert_refused(checkout.start("host/gnn", build=f"echo '{words}' >&2; exit 1"), sentence)
    assert not (checkout.root / "image.json").exists()


@pytest.mark.parametrize("words", ["denied: requested access to the resource is denied", "no basic auth credentials"])
def test_push_without_permission_names_the_login(checkout: Checkout, words: str):
    assert_refused(checkout.start("host/gnn", push=f"echo '{words}' >&2; exit 1"), "docker login", "host/gnn")


def test_registry_that_holds_another_image_is_found_out(checkout: Checkout):
    assert_refused(checkout.start("host/gnn", pull=f"echo 'Digest: {OTHER}'"), OTHER, PUSHED)
    assert not (checkout.root / "image.json").exists()


@pytest.mark.parametrize("run", ["exit 1", "true"])
def test_image_that_does_not_work_is_not_pushed(checkout: Checkout, run: str):
    """Some engines call every run a success, so what was made is looked at as well."""
    assert_refused(checkout.start("host/gnn", run=run), "the smoke test failed")
    assert not checkout.called("push")
    assert checkout.called("volume rm")


def test_environment_is_cut_into_parts_of_like_size(tmp_path: Path):
    environment, parts = tmp_path / "environment", tmp_path / "parts"
    packages = environment / "lib/python3.11/site-packages"
    sizes = {"torch/a.so": 700, "torch/b.so": 400, "nvidia/c.so": 300, "triton/d.so": 600, "nvidia/cu13/e.so": 500}
    files = {packages / name: os.urandom(size * 1000) for name, size in sizes.items()}
    files |= {packages / "torch/zeros.so": bytes(50_000_000), packages / "numpy/f.so": b"f", environment / "g": b"g"}
    for path, content in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    _layers().main(environment, parts)
    moved = {path.relative_to(parts): path.read_bytes() for path in parts.rglob("*") if path.is_file()}
    assert {Path(*name.parts[1:]): content for name, content in moved.items()} == {
        path.relative_to(environment): content for path, content in files.items()
    }
    assert {name.name for name in moved if name.parts[0] == "0"} == {"f.so", "g"}
    sizes = [sum(len(content) for name, content in moved.items() if name.parts[0] == part) for part in "1234"]
    assert sizes == [700_000, 600_000, 500_000 + 50_000_000, 700_000]  # fifty million zeros shrink to nearly nothing


def _layers():
    spec = importlib.util.spec_from_file_location("layers", ROOT / "scripts/layers.py")
    spec.loader.exec_module(module := importlib.util.module_from_spec(spec))
    return module


@pytest.mark.parametrize(("minutes", "code"), [(None, 0), (1, 0), (11, 1)])
def test_healthy_is_who_does_nothing_or_has_a_young_heartbeat(tmp_path: Path, minutes: int | None, code: int):
    heartbeat = tmp_path / f"heartbeat.{platform.node()}"
    if minutes is not None:
        subprocess.run(["touch", "-d", f"-{minutes} minutes", heartbeat], check=True)
    env = os.environ | {"GNN_HEARTBEAT": str(tmp_path / "heartbeat")}
    done = subprocess.run([ROOT / "scripts/healthcheck.sh"], env=env, capture_output=True, text=True)
    assert done.returncode == code
    assert done.stdout.count("\n") == code
