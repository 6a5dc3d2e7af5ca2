"""The files in deploy/ agree with what reads them, checked offline, and start the job on the right machines."""

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from checkout import check_schema, write_program
from tiny_runs import ROOT

DEPLOY = ROOT / "deploy"
FILES = sorted(path.name for path in DEPLOY.iterdir() if path.is_file())
IMAGE = "registry.example/coloring-gnn:latest"


# What reads each file, and a name in it to misspell.
CHECKS = {
    "runpod-pod.json": (check_schema("runpod_schema.json", "CreatePodRequest"), '"minCudaVersion"'),
    "runpod-pod-amd.json": (check_schema("runpod_schema.json", "CreatePodRequest"), '"volumeId"'),
    "kubernetes-job.yaml": (
        partial(kubernetes_validate.validate, desired_version=kubernetes_validate.latest_version(), strict=True),
        "backoffLimit",
    ),
    "skypilot.yaml": (check_schema("skypilot_task_schema.json"), "disk_size"),
}


@pytest.mark.parametrize("name", CHECKS)
def test_reader_accepts_the_file_and_refuses_a_misspelt_name(name: str):
    check, key = CHECKS[name]
    text = (DEPLOY / name).read_text()
    for document in yaml.safe_load_all(text):
        check(document)
    with pytest.raises((jsonschema.ValidationError, kubernetes_validate.ValidationError, AssertionError)):
        for document in yaml.safe_load_all(text.replace(key, key[:-1] + "x" + key[-1])):
            check(document)


@pytest.mark.parametrize("name", FILES)
def test_file_names_an_image_of_no_version_the_volume_and_the_job(name: str):
    text = re.sub(r"(^| )#(?!SBATCH|!).*", "", (DEPLOY / name).read_text(), flags=re.MULTILINE)  # without comments
    image = IMAGE.replace("latest", "rocm") if name == "runpod-pod-amd.json" else IMAGE
    assert set(re.findall(r"registry[\w.]+/coloring-gnn:[\w.]+", text)) == {image}
    assert re.search(r"(:|[Pp]ath(\": \"|: )|\n  |\")/workspace\b", text)
    assert text.count("run_multigpu.sh") == 1


def test_pod_waits_for_a_driver_that_the_locked_torch_can_use():
    (torch_needs,) = re.findall(r"^nvidia-cudnn-cu(\d+)==", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    pod = json.loads((DEPLOY / "runpod-pod.json").read_text())
    assert pod["gpu"]["minCudaVersion"].split(".")[0] == torch_needs


@pytest.fixture
def tools(tmp_path: Path) -> dict[str, str]:
    """Environment of an orchestrator in which the container tools only note how they were called, in tmp_path/calls."""
    folder = tmp_path / "bin"
    for tool, then in (
        ("apptainer", '[[ $1 != pull ]] || touch "$2"'),
        ("srun", 'while [[ $1 == -* ]]; do shift; done; "$@"'),
        ("run_multigpu.sh", ""),
    ):
        write_program(folder / tool, f'#!/usr/bin/env bash\necho {tool} "$@" >>"{tmp_path}/calls"\n{then}\n')
    return os.environ | {"PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(tmp_path)}


def test_slurm_reads_its_directives_pulls_once_and_starts_the_container(tmp_path: Path, tools: dict[str, str]):
    head, _, body = (DEPLOY / "slurm.sbatch").read_text().partition("set -euo pipefail")
    assert "#SBATCH --ntasks-per-node=1\n" in head and "#SBATCH --signal=TERM@" in head and "#SBATCH" not in body
    for _ in range(2):
        environment = tools | {"SLURM_CPUS_PER_TASK": "64"}
        subprocess.run(["bash", DEPLOY / "slurm.sbatch"], cwd=tmp_path, env=environment, check=True)
    pull, *starts = (tmp_path / "calls").read_text().splitlines()
    image = tmp_path / "coloring-gnn.sif"
    inside = f"apptainer exec --nv --bind {tmp_path}:/workspace --pwd /workspace {image} run_multigpu.sh"
    assert pull == f"apptainer pull {image} docker://{IMAGE}"
    assert starts[0].startswith("srun --cpus-per-task=64 --kill-on-bad-exit=1 ")
    assert starts[1::2] == [inside] * 2


@pytest.fixture
def modal_app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Modal's own object; what would run in its cloud runs here."""
    monkeypatch.syspath_prepend(DEPLOY)
    monkeypatch.chdir(tmp_path)
    return importlib.import_module("modal_app")


def test_modal_trains_on_the_gpus_asked_for_and_fetches_the_archive(tmp_path: Path, modal_app, monkeypatch):
    asked: list[Any] = []

    def with_options(**options: Any) -> SimpleNamespace:
        asked.append(options)
        return SimpleNamespace(remote=lambda flags: asked.append(flags) or 2 * ("--bad" in flags))

    monkeypatch.setattr(modal_app, "train", SimpleNamespace(with_options=with_options))
    monkeypatch.setattr(modal_app, "volume", SimpleNamespace(read_file=lambda path: [path.encode(), b"!"]))
    modal_app.main.info.raw_f(gpus=8, flags="--models models/trial --steps 5")
    assert asked == [{"gpu": "B200:8"}, ["--models", "models/trial", "--steps", "5"]]
    fetched = tmp_path / "models/trial/trained_model.tar.gz"
    assert fetched.read_bytes() == b"models/trial/trained_model.tar.gz!"
    with pytest.raises(SystemExit, match="exit code 2"):
        modal_app.main.info.raw_f(flags="--bad")
    assert not (tmp_path / "models/trained_model.tar.gz").exists()


def test_modal_runs_the_job_of_the_image_on_its_volume(tmp_path: Path, modal_app, tools, monkeypatch):
    for name, value in (tools | {"GNN_WORKSPACE": str(tmp_path)}).items():
        monkeypatch.setenv(name, value)
    assert modal_app.train.local(["--steps", "5"]) == 0
    assert (tmp_path / "calls").read_text().startswith("run_multigpu.sh --steps 5")
    (tmp_path / "bin/run_multigpu.sh").write_text("#!/bin/sh\nexit 3\n")
    assert modal_app.train.local([]) == 3
    assert modal_app.train.with_options(gpu="B200:8")  # which Modal's own function takes


@pytest.mark.slow
@pytest.mark.timeout(600)  # Go builds actionlint once
def test_workflows_of_github_are_valid():
    """By actionlint, which knows the inputs of the common actions and the names of every context."""
    if not shutil.which("go"):
        pytest.skip("there is no Go to build actionlint with")
    lint = ["go", "run", "github.com/rhysd/actionlint/cmd/actionlint@v1.7.12", "-shellcheck"]
    workflows = sorted((ROOT / ".github/workflows").iterdir())
    subprocess.run([*lint, Path(sys.prefix) / "bin/shellcheck", *workflows], check=True, cwd=ROOT)


def test_a_pod_of_kubernetes_has_the_shared_memory_that_nccl_asks_for():
    *_, job = yaml.safe_load_all((DEPLOY / "kubernetes-job.yaml").read_text())
    pod = job["spec"]["template"]["spec"]
    assert {"name": "shm", "mountPath": "/dev/shm"} in pod["containers"][0]["volumeMounts"]
    assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}} in pod["volumes"]


def test_skypilot_machine_costs_nothing_after_the_end_and_its_results_are_in_a_bucket():
    task = yaml.safe_load((DEPLOY / "skypilot.yaml").read_text())
    assert task["resources"]["autostop"]["down"] and task["resources"]["image_id"] == f"docker:{IMAGE}"
    assert task["file_mounts"]["/workspace"]["mode"] == "MOUNT_CACHED"  # MOUNT can neither append to a file nor lock it
    assert task["run"].startswith("cd /workspace ") and task["num_nodes"] == 1
