"""The image, in a container engine of our own: build_and_push.sh builds and pushes it, then people's commands run."""

import base64
import http.client
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import container_engine
import debian
import pytest
from container_engine import Engine

ROOT = Path(__file__).parents[1]
# The first test waits for the image, which takes longer than a test may. For pytest-xdist: one worker, --dist loadfile.
pytestmark = [pytest.mark.container, pytest.mark.slow, pytest.mark.timeout(1800)]
GNN = 1000  # user id in the image
STRANGER = 12345  # no user of the image
JOB = ("run.sh", "--preset", "smoke", "--data", "/data", "--processes", "2")


class Image:
    """An image of a checkout of its own."""

    def __init__(self, engine: Engine, checkout: Path):
        self.engine, self.checkout = engine, checkout
        self.name = f"{engine.registry}/{checkout.name}"
        certificates = os.environ.get("PIP_CERT")
        self.build_flags = ["--network", "host", *(["--secret", f"id=ca,src={certificates}"] if certificates else [])]
        _git(checkout, "init", "--quiet")
        _git(checkout, "add", "--all")
        author = ("-c", "user.name=test", "-c", "user.email=test@example.org")
        _git(checkout, *author, "commit", "--quiet", "--message=test")
        self.revision = _git(checkout, "rev-parse", "HEAD").strip()

    def make(self, *flags: str) -> dict:
        """Run build_and_push.sh and return its report."""
        command = ["./build_and_push.sh", self.name, *flags, "--base", container_engine.BASE, "--", *self.build_flags]
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        done = subprocess.run(command, cwd=self.checkout, env=self.engine.environment, **options)
        assert done.returncode == 0, done.stdout[-5000:]
        return json.loads((self.checkout / "image.json").read_text())

    def run(self, *command: str, volume: Path | None = None, flags: tuple = ()) -> subprocess.CompletedProcess[str]:
        """docker run, without a network; `volume` is the folder on /workspace."""
        mounts = ("--volume", f"{volume}:/workspace") if volume else ()
        run = ("run", "--rm", "--network", "none", *mounts, *flags, self.name)
        return self.engine.docker(*run, *command, check=False)

    def digests(self) -> list[str]:
        """The layers that hold files, the oldest first."""
        return json.loads(self.engine.docker("image", "inspect", self.name).stdout)[0]["RootFS"]["Layers"]

    def layers(self) -> list[tuple[int, str]]:
        """Size in bytes and command of every layer, the newest first."""
        flags = ("--no-trunc", "--human=false", "--format", "{{.Size}} {{.CreatedBy}}")
        lines = self.engine.docker("history", *flags, self.name).stdout
        return [(int(size), command) for size, command in (line.split(" ", 1) for line in lines.splitlines())]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """A running engine with a base image and a registry."""
    debian.require(*container_engine.PACKAGES)
    with Engine() as engine:
        yield engine


@pytest.fixture(scope="module")
def image(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Image:
    """The image of the working tree, built and tested."""
    checkout = tmp_path_factory.mktemp("coloring-gnn-")
    for name in _git(ROOT, "ls-files", "--cached", "--others", "--exclude-standard").splitlines():
        if (ROOT / name).is_file():
            (checkout / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, checkout / name)
    image = Image(engine, checkout)
    image.make("--no-push")
    return image


@pytest.fixture(scope="module")
def finished(image: Image, tiny_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A volume of root after the whole job, in a container with a read-only root and little shared memory."""
    volume = tmp_path_factory.mktemp("volume")
    (volume / "runs").mkdir()
    done = image.run(*JOB, volume=volume, flags=("--read-only", "--shm-size=1m", "--volume", f"{tiny_data}:/data:ro"))
    assert done.returncode == 0, done.stderr[-3000:]
    return volume


def _git(folder: Path, *args: str) -> str:
    return subprocess.run(["git", "-C", folder, *args], capture_output=True, text=True, check=True).stdout


def _wait_for(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def _steps(volume: Path) -> list[int]:
    """Optimizer steps that the training on a volume has logged, in order."""
    file = volume / "runs/smoke/metrics.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    return [line["step"] for line in map(json.loads, lines) if line["kind"] == "train"]


def _owned_by(user: int, folder: Path) -> Path:
    os.chown(folder, user, user)
    return folder


STAND_IN = """
ARG BASE_IMAGE
FROM $BASE_IMAGE
LABEL org.opencontainers.image.title=stand-in
COPY --chmod=755 run.sh /usr/local/bin/
WORKDIR /workspace
"""
STAND_IN_JOB = """#!/bin/sh
mkdir models && cd models && echo model >coloring_gnn.onnx && sha256sum coloring_gnn.onnx >SHA256SUMS
echo ready after 0 s
"""


def test_registry_holds_what_was_built_under_version_revision_and_latest(engine: Engine, tmp_path: Path):
    """With a small image in place of ours, whose seven gigabytes would take minutes to compress."""
    checkout = tmp_path / "stand-in"
    (checkout / "gnn_training").mkdir(parents=True)
    for name in ("build_and_push.sh", ".gitignore", "gnn_training/__init__.py"):
        shutil.copy(ROOT / name, checkout / name)
    (checkout / "Dockerfile").write_text(STAND_IN)
    (checkout / "run.sh").write_text(STAND_IN_JOB)
    image = Image(engine, checkout)
    report = image.make()
    assert report["revision"] == image.revision
    assert report["tags"] == [report["version"], image.revision[:7], "latest"]
    assert {_digest(engine, f"stand-in/manifests/{tag}") for tag in report["tags"]} == {report["digest"]}
    sizes = [part["size"] for part in (*report["manifest"]["layers"], report["manifest"]["config"])]
    assert report["packed_bytes"] == sum(sizes)


def _digest(engine: Engine, manifest: str) -> str:
    """What the registry answers."""
    registry = http.client.HTTPConnection(engine.registry)
    accepted = "application/vnd.docker.distribution.manifest.v2+json"
    registry.request("HEAD", f"/v2/{manifest}", headers={"Accept": accepted})
    return registry.getresponse().headers["Docker-Content-Digest"]


def test_torch_and_cuda_come_in_layers_that_are_pulled_side_by_side(image: Image):
    sizes = [size for size, _ in image.layers()]
    assert max(sizes) < 0.5 * sum(sizes)


def test_labels_name_the_revision_of_the_image(image: Image):
    config = json.loads(image.engine.docker("image", "inspect", image.name).stdout)[0]["Config"]
    labels = {name.removeprefix("org.opencontainers.image."): value for name, value in config["Labels"].items()}
    assert (labels["revision"], labels["licenses"]) == (image.revision, "MIT")
    assert {"title", "version", "created"} <= labels.keys()
    assert f"GNN_REVISION={image.revision}" in config["Env"]
    assert {"NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"} <= {*config["Env"]}


def test_only_what_runs_is_in_the_image(image: Image):
    found = set(image.run("ls", "-A", "/opt/gnn", "/opt/gnn/scripts").stdout.split())
    scripts = {"environment.sh", "entrypoint.sh", "first_gpu.sh", "run.sh", "run_multigpu.sh"}
    others = {"LICENSE", "benchmarks", "gnn_training", "scripts", "requirements.lock", "requirements-oldest.lock"}
    assert found == {"/opt/gnn:", "/opt/gnn/scripts:"} | scripts | others


def test_image_colors_a_graph(image: Image, tmp_path: Path):
    shutil.copy(ROOT / "examples/queen8_8.col", _owned_by(STRANGER, tmp_path))
    done = image.run("coloring-gnn", "color", "queen8_8.col", "--seconds", "5", volume=tmp_path)
    assert done.returncode == 0 and "9 colors" in done.stdout, done
    assert (tmp_path / "queen8_8.sol").stat().st_uid == STRANGER


def test_image_without_a_command_prints_its_usage(image: Image):
    done = image.run()
    assert done.returncode == 0
    assert 'docker run --gpus all -v "$PWD:/workspace" IMAGE run_multigpu.sh' in done.stdout


def test_tini_is_the_first_process(image: Image):
    assert image.run("cat", "/proc/1/comm").stdout == "tini\n"


def test_job_on_a_volume_of_root_is_done_by_the_user_gnn(finished: Path):
    made = [path for path in finished.rglob("*") if path.is_file()]
    assert {path.stat().st_uid for path in [finished, finished / "runs", *made]} == {GNN}
    assert (finished / "models/trained_model.tar.gz").exists()
    subprocess.run(["sha256sum", "--quiet", "--check", "SHA256SUMS"], cwd=finished / "models", check=True)


def test_finished_volume_is_not_trained_again(image: Image, finished: Path, tiny_data: Path):
    model = finished / "models/coloring_gnn.onnx"
    before, started = (model.stat().st_mtime_ns, _steps(finished)), time.monotonic()
    done = image.run(*JOB, volume=finished, flags=("--volume", f"{tiny_data}:/data:ro"))
    assert done.returncode == 0 and "already done" in done.stdout
    assert (model.stat().st_mtime_ns, _steps(finished)) == before
    assert time.monotonic() - started < 20


def test_docker_stop_leaves_a_state_that_the_next_start_continues(image: Image, tiny_data: Path, tmp_path: Path):
    docker, name = image.engine.docker, f"gnn-stopped-{os.getpid()}"
    mounts = ("--volume", f"{_owned_by(STRANGER, tmp_path)}:/workspace", "--volume", f"{tiny_data}:/data:ro")
    run = ("run", "--detach", "--name", name, "--network", "none", *mounts, image.name)
    try:
        docker(*run, *JOB, "--steps", "100000")
        _wait_for(lambda: len(_steps(tmp_path)) > 2, 120)
        docker("stop", "--time", "60", name)
        assert _exit_code(image.engine, name) == 143
        status, logged = json.loads((tmp_path / "runs/smoke/status.json").read_text()), _steps(tmp_path)
        assert (status["status"], status["step"] >= logged[-1]) == ("stopped", True)

        docker("start", name)
        _wait_for(lambda: len(_steps(tmp_path)) > len(logged) + 2, 120)
        docker("stop", "--time", "60", name)
        assert _exit_code(image.engine, name) == 143
        assert _steps(tmp_path) == sorted(set(_steps(tmp_path)))
        assert _steps(tmp_path)[len(logged)] > status["step"]
    finally:
        docker("rm", "--force", name, check=False)


def _exit_code(engine: Engine, name: str) -> int:
    return int(engine.docker("inspect", "--format", "{{.State.ExitCode}}", name).stdout)


@pytest.mark.parametrize("flags", [(), ("--read-only",)])
def test_any_user_can_work_on_a_volume_of_theirs(image: Image, tmp_path: Path, flags: tuple[str, ...]):
    generate = ("coloring-gnn", "generate", "--recipe", "smoke", "--graphs", "4", "--out", "graphs")
    user = ("--user", f"{STRANGER}:{STRANGER}")
    done = image.run(*generate, volume=_owned_by(STRANGER, tmp_path), flags=(*user, *flags))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "graphs/graphs.safetensors").stat().st_uid == STRANGER


def test_job_runs_as_the_owner_of_the_volume(image: Image, tmp_path: Path):
    done = image.run("id", "-u", volume=_owned_by(4321, tmp_path))
    assert (done.stdout, done.stderr) == ("4321\n", "")


def test_skypilot_may_install_its_ssh_server(image: Image, tmp_path: Path):
    encoded = base64.b64encode(b"id -u").decode()
    start = f"cd /tmp && echo {encoded} | base64 --decode > init.sh; bash init.sh"
    assert image.run("bash", "-c", start, volume=_owned_by(4321, tmp_path)).stdout == "0\n"


def test_job_keeps_no_group_of_root_but_those_of_amd_gpus(image: Image, tmp_path: Path):
    """With a file in place of the device node, because a container can be given one everywhere."""
    (tmp_path / "workspace").mkdir()
    volume = _owned_by(4321, tmp_path / "workspace")
    assert image.run("id", "-G", volume=volume).stdout == "4321\n"
    (tmp_path / "kfd").touch()
    os.chown(tmp_path / "kfd", 0, 993)
    done = image.run("id", "-G", volume=volume, flags=("--volume", f"{tmp_path}/kfd:/dev/kfd"))
    assert done.stdout == "4321 993\n"


def test_job_runs_as_root_where_only_root_can_write(image: Image, tmp_path: Path):
    _owned_by(4321, tmp_path).chmod(0o555)
    done = image.run("id", "-u", volume=tmp_path)
    assert done.stdout == "0\n"
    assert done.stderr == "entrypoint.sh: going on as root, because no other user can write /workspace.\n"


@pytest.mark.parametrize("flags", [(), ("--user", "12345:12345")])
def test_missing_volume_is_refused_in_one_sentence(image: Image, flags: tuple[str, ...]):
    done = image.run("run.sh", "--preset", "smoke", flags=flags)
    assert (done.returncode, done.stderr.count("\n")) == (4, 1)
    assert 'start with -v "$PWD":/workspace' in done.stderr


@pytest.mark.parametrize("flags", [("--read-only",), ("--user", "12345:12345")])
def test_volume_that_cannot_be_written_is_refused_in_one_sentence(image: Image, tmp_path: Path, flags):
    tmp_path.chmod(0o755)
    mount = f"{tmp_path}:/workspace:ro" if "--read-only" in flags else f"{tmp_path}:/workspace"
    done = image.run("run.sh", "--preset", "smoke", flags=(*flags, "--volume", mount))
    assert (done.returncode, done.stderr.count("\n")) == (4, 1)
    assert "/workspace cannot be written" in done.stderr


def test_full_disk_is_refused_in_one_sentence(image: Image):
    full = ("--env", "GNN_NO_VOLUME=1", "--tmpfs", "/workspace:size=50m")
    done = image.run("run.sh", "--preset", "smoke", flags=full)
    assert (done.returncode, done.stderr.count("coloring-gnn: ")) == (4, 1)
    assert "may be needed: free some or name another folder" in done.stderr


def test_port_that_is_taken_is_refused_in_one_sentence(image: Image, tmp_path: Path):
    taken = "python -m http.server 6006 & sleep 1"
    job = "run.sh --preset smoke --tensorboard 6006"
    done = image.run("bash", "-c", f"{taken} 2>/dev/null; {job}", volume=_owned_by(STRANGER, tmp_path))
    assert done.returncode == 3
    assert "coloring-gnn: port 6006 of 127.0.0.1 cannot be opened (address already in use" in done.stderr


def test_change_of_code_makes_layers_of_less_than_5_megabytes(image: Image):
    before, sizes = image.digests(), [size for size, _ in image.layers()]
    with open(image.checkout / "gnn_training/errors.py", "a") as file:
        file.write(f"\n# {time.time_ns()}\n")
    base = ("--build-arg", f"BASE_IMAGE={container_engine.BASE}")
    image.engine.docker("build", *base, *image.build_flags, "--tag", image.name, str(image.checkout))
    kept = len(os.path.commonprefix([before, image.digests()]))
    changed = [size for size, _ in image.layers() if size][: len(before) - kept]
    assert 0 < sum(changed) < 5e6 < max(sizes)
