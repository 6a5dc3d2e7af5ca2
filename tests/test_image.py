"""The image, in a container engine of our own: build_and_push.sh builds and pushes it, then people's commands run.

In CI it is built with an empty environment in place of the seven gigabytes of torch and CUDA, and nightly as it is.
"""

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import container_engine
import debian
import pytest
from checkout import copy_checkout
from container_engine import Engine
from tiny_runs import ROOT, git, metrics, status, wait_for

pytestmark = [pytest.mark.container, pytest.mark.slow, pytest.mark.timeout(1800)]  # for the first, which waits for all
nightly = pytest.mark.nightly  # downloads and unpacks torch and CUDA
GNN = 1000  # user id in the image
STRANGER = 12345  # no user of the image
JOB = ("run.sh", "--preset", "smoke", "--data", "/data", "--ranks", "2")
# In place of scripts that need torch.
SMALL = {
    "scripts/install_image.sh": '#!/bin/sh\n[ -e "$GNN_VENV" ] || python3 -m venv --without-pip "$GNN_VENV"\n',
    "run.sh": """#!/bin/sh
mkdir models && cd models && echo model >coloring_gnn.onnx && sha256sum coloring_gnn.onnx >SHA256SUMS
echo ready after 0 s
""",
}


class Image:
    """The image of the working tree with these files instead of its own, built, tested and pushed."""

    def __init__(self, engine: Engine, checkout: Path, files: dict[str, str], *flags: str):
        copy_checkout(checkout)
        for name, content in files.items():
            (checkout / name).write_text(content)
        self.engine, self.checkout = engine, checkout
        self.name = f"{engine.registry}/{checkout.name}"
        certificates = os.environ.get("PIP_CERT")
        self.build_flags = ["--network", "host", *(["--secret", f"id=ca,src={certificates}"] if certificates else [])]
        git(checkout, "init", "--quiet")
        git(checkout, "add", "--all")
        git(checkout, "commit", "--quiet", "--message=test")
        self.revision = git(checkout, "rev-parse", "HEAD")
        command = ["./build_and_push.sh", self.name, *flags, "--base", container_engine.BASE, "--", *self.build_flags]
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        done = subprocess.run(command, cwd=checkout, env=engine.environment, **options)
        assert done.returncode == 0, done.stdout[-5000:]
        self.report = json.loads((checkout / "image.json").read_text())

    def run(self, *command: str, volume: Path | None = None, flags: tuple = ()) -> subprocess.CompletedProcess[str]:
        mounts = ("--volume", f"{volume}:/workspace") if volume else ()
        run = ("run", "--rm", "--network", "none", *mounts, *flags, self.name)
        return self.engine.docker(*run, *command, check=False)

    def inspect(self) -> dict:
        """What the engine says about the image."""
        return json.loads(self.engine.docker("image", "inspect", self.name).stdout)[0]

    def sizes(self) -> list[int]:
        """Bytes of every layer, the newest first."""
        lines = self.engine.docker("history", "--human=false", "--format", "{{.Size}}", self.name).stdout
        return [int(size) for size in lines.split()]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """A running engine with a base image and a registry."""
    debian.require(*container_engine.PACKAGES)
    with Engine() as engine:
        engine.start()
        yield engine


@pytest.fixture(scope="module")
def small(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Image:
    """The image with an empty environment, in the registry."""
    return Image(engine, tmp_path_factory.mktemp("small-"), SMALL)


@pytest.fixture(scope="module")
def image(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Image:
    return Image(engine, tmp_path_factory.mktemp("coloring-gnn-"), {}, "--no-push")


def _steps(volume: Path) -> list[int]:
    """Optimizer steps that the training on a volume has logged, in order."""
    return [line["step"] for line in metrics(volume / "runs/smoke", "train")]


def _owned_by(user: int, folder: Path) -> Path:
    os.chown(folder, user, user)
    return folder


def test_report_and_labels_name_the_revision_and_the_sizes_are_those_in_the_registry(small: Image):
    report, config = small.report, small.inspect()["Config"]
    assert report["revision"] == small.revision
    assert report["tags"] == [report["version"], small.revision[:7], "latest"]
    sizes = [part["size"] for part in (*report["manifest"]["layers"], report["manifest"]["config"])]
    assert report["packed_bytes"] == sum(sizes)
    labels = {name.removeprefix("org.opencontainers.image."): value for name, value in config["Labels"].items()}
    assert (labels["revision"], labels["licenses"]) == (small.revision, "MIT")
    assert {"title", "version", "created"} <= labels.keys()
    variables = {"NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"}
    assert {*config["Env"]} >= variables | {f"GNN_REVISION={small.revision}"}


def test_only_what_runs_is_in_the_image(small: Image):
    found = set(small.run("ls", "-A", "/opt/gnn", "/opt/gnn/scripts", "/opt/gnn/benchmarks").stdout.split())
    scripts = {"environment.sh", "entrypoint.sh", "run.sh", "run_multigpu.sh"}
    others = {"LICENSE", "benchmarks", "gpu.py", "__pycache__", "gnn_training", "scripts", "requirements.lock"}
    assert found == {"/opt/gnn:", "/opt/gnn/scripts:", "/opt/gnn/benchmarks:"} | scripts | others


def test_tini_is_the_first_process_and_without_a_command_there_is_a_usage(small: Image):
    assert small.run("cat", "/proc/1/comm").stdout == "tini\n"
    assert 'docker run --gpus all -v "$PWD:/workspace" IMAGE run_multigpu.sh' in small.run().stdout


def test_job_runs_as_the_owner_of_the_volume_who_keeps_no_group_but_those_of_amd_gpus(small: Image, tmp_path: Path):
    """With a file in place of the device node, because a container can be given one everywhere."""
    (tmp_path / "workspace").mkdir()
    volume = _owned_by(4321, tmp_path / "workspace")
    done = small.run("bash", "-c", "id -u && id -G", volume=volume)
    assert (done.stdout, done.stderr) == ("4321\n4321\n", "")
    (tmp_path / "kfd").touch()
    os.chown(tmp_path / "kfd", 0, 993)
    done = small.run("id", "-G", volume=volume, flags=("--volume", f"{tmp_path}/kfd:/dev/kfd"))
    assert done.stdout == "4321 993\n"


def test_job_on_a_volume_of_root_runs_as_the_user_gnn_who_then_owns_it(small: Image, tmp_path: Path):
    (tmp_path / "runs").mkdir()
    assert small.run("touch", "runs/new", volume=tmp_path).returncode == 0
    assert {path.stat().st_uid for path in (tmp_path, tmp_path / "runs", tmp_path / "runs/new")} == {GNN}


def test_the_server_of_skypilot_and_a_job_where_only_root_can_write_run_as_root(small: Image, tmp_path: Path):
    encoded = base64.b64encode(b"id -u").decode()
    start = f"cd /tmp && echo {encoded} | base64 --decode > init.sh; bash init.sh"
    assert small.run("bash", "-c", start, volume=_owned_by(4321, tmp_path)).stdout == "0\n"
    tmp_path.chmod(0o555)
    done = small.run("id", "-u", volume=tmp_path)
    said = "entrypoint.sh: going on as root, because no other user can write /workspace.\n"
    assert (done.stdout, done.stderr) == ("0\n", said)


def test_any_user_has_a_home_even_where_all_but_the_volume_is_read_only(small: Image, tmp_path: Path):
    flags = ("--user", f"{STRANGER}:{STRANGER}", "--read-only")
    done = small.run("bash", "-c", "touch $HOME/file && echo $HOME", volume=_owned_by(STRANGER, tmp_path), flags=flags)
    assert done.stdout == f"/workspace/.tmp/home-{STRANGER}\n", done.stderr


@nightly
def test_image_colors_a_graph(image: Image, tmp_path: Path):
    shutil.copy(ROOT / "examples/queen8_8.col", _owned_by(STRANGER, tmp_path))
    done = image.run("coloring-gnn", "color", "queen8_8.col", "--seconds", "5", volume=tmp_path)
    assert done.returncode == 0 and "9 colors" in done.stdout, done
    assert (tmp_path / "queen8_8.sol").stat().st_uid == STRANGER


@nightly
def test_whole_job_on_a_volume_of_root_is_not_done_again(image: Image, tiny_data: Path, tmp_path: Path):
    """In a container with a read-only root and little shared memory."""
    (tmp_path / "runs").mkdir()
    flags = ("--read-only", "--shm-size=1m", "--volume", f"{tiny_data}:/data:ro")
    done = image.run(*JOB, volume=tmp_path, flags=flags)
    assert done.returncode == 0, done.stderr[-3000:]
    made = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.stat().st_uid for path in made} == {GNN}
    assert (tmp_path / "models/trained_model.tar.gz").exists()
    subprocess.run(["sha256sum", "--quiet", "--check", "SHA256SUMS"], cwd=tmp_path / "models", check=True)
    model = tmp_path / "models/coloring_gnn.onnx"
    before = model.stat().st_mtime_ns, _steps(tmp_path)
    done = image.run(*JOB, volume=tmp_path, flags=flags)
    assert done.returncode == 0 and "already done" in done.stdout
    assert (model.stat().st_mtime_ns, _steps(tmp_path)) == before


@nightly
def test_results_of_a_container_without_a_volume_are_fetched_as_it_says(image: Image, tiny_data: Path, tmp_path: Path):
    name = f"gnn-alone-{os.getpid()}"
    run = ("run", "--name", name, "--network", "none", "--volume", f"{tiny_data}:/data:ro", image.name)
    try:
        done = image.engine.docker(*run, *JOB, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        lines = done.stdout.splitlines()
        copied = lines[-1].partition("fetch them: docker ")[2]
        assert "--rm would delete them" in lines[0] and lines[0].endswith(f"docker {copied}"), lines
        image.engine.docker(*copied.split()[:-1], str(tmp_path))
        subprocess.run(["sha256sum", "--quiet", "--check", "SHA256SUMS"], cwd=tmp_path / "models", check=True)
    finally:
        image.engine.docker("rm", "--force", name, check=False)


@nightly
def test_docker_stop_leaves_a_state_that_the_next_start_continues(image: Image, tiny_data: Path, tmp_path: Path):
    docker, name = image.engine.docker, f"gnn-stopped-{os.getpid()}"
    mounts = ("--volume", f"{_owned_by(STRANGER, tmp_path)}:/workspace", "--volume", f"{tiny_data}:/data:ro")
    run = ("run", "--detach", "--name", name, "--network", "none", *mounts, image.name)
    try:
        docker(*run, *JOB, "--steps", "100000")
        for _ in range(2):
            logged = len(_steps(tmp_path))
            wait_for(lambda logged=logged: len(_steps(tmp_path)) > logged + 2)
            docker("stop", "--time", "60", name)
            assert docker("inspect", "--format", "{{.State.ExitCode}}", name).stdout == "143\n"
            stopped, steps = status(tmp_path / "runs/smoke"), _steps(tmp_path)
            assert stopped["status"] == "stopped" and stopped["step"] >= steps[-1] and steps == sorted(set(steps))
            docker("start", name)
        assert docker("logs", name).stdout.count("resuming at step") >= 1
    finally:
        docker("rm", "--force", name, check=False)


@nightly
@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--user", "12345:12345"), "settings: cannot be written (permission denied)"),
        (("--tmpfs", "/workspace"), 'start with -v "$PWD":/workspace'),
        (("--env", "RUNPOD_POD_ID=x"), 'start with -v "$PWD":/workspace'),
        (("--read-only", "--volume", "/mnt:/workspace:ro"), "settings: cannot be written (read-only file system)"),
        (("--user", "12345:12345", "--volume", "/mnt:/workspace"), "settings: cannot be written (permission denied)"),
        (("--env", "GNN_NO_VOLUME=1", "--tmpfs", "/workspace:size=50m"), "may be needed: free some or name another"),
    ],
)
def test_a_place_that_does_not_fit_is_refused_in_one_sentence(image: Image, flags: tuple[str, ...], sentence: str):
    done = image.run("run.sh", "--preset", "smoke", flags=flags)
    assert (done.returncode, done.stderr.count("coloring-gnn: ")) == (4, 1) and sentence in done.stderr


@nightly
def test_layers_are_pulled_side_by_side_and_those_of_a_change_of_code_have_less_than_5_megabytes(image: Image):
    before, sizes = image.inspect()["RootFS"]["Layers"], image.sizes()
    assert max(sizes) < 0.5 * sum(sizes)
    with open(image.checkout / "gnn_training/errors.py", "a") as file:
        file.write(f"\n# {time.time_ns()}\n")
    base = ("--build-arg", f"BASE_IMAGE={container_engine.BASE}")
    image.engine.docker("build", *base, *image.build_flags, "--tag", image.name, str(image.checkout))
    kept = len(os.path.commonprefix([before, image.inspect()["RootFS"]["Layers"]]))
    changed = [size for size in image.sizes() if size][: len(before) - kept]
    assert 0 < sum(changed) < 5e6 < max(sizes)
