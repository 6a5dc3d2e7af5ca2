"""The files in deploy/ agree with what reads them, checked offline, and start the job on the right machines."""

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from kubeflow_trainer_api.models import TrainerV1alpha1TrainJob

from gnn_training import __version__

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
FILES = sorted(path.name for path in DEPLOY.iterdir() if path.is_file())
IMAGE = f"registry.example/coloring-gnn:{__version__}"
PLACES = ("NNODES", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")


def check_schema(name: str, part: str = "") -> Callable[[Any], None]:
    schema = json.loads((ROOT / "tests" / name).read_text())
    reference = {"$ref": f"#/components/schemas/{part}"} if part else {}
    return lambda document: jsonschema.validate(document, schema | reference)


def check_kubernetes(document: Any) -> None:
    kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)


def check_kubeflow(document: Any) -> None:
    assert TrainerV1alpha1TrainJob.from_dict(document).to_dict() == document  # the model drops unknown names


# What reads each file, and a name in it to misspell.
CHECKS = {
    "runpod-pod.json": (check_schema("runpod_schema.json", "CreatePodRequest"), '"minCudaVersion"'),
    "runpod-pod-amd.json": (check_schema("runpod_schema.json", "CreatePodRequest"), '"volumeId"'),
    "kubernetes-job.yaml": (check_kubernetes, "completionMode"),
    "kubeflow-trainjob.yaml": (check_kubeflow, "numProcPerNode"),
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
def test_file_names_the_image_of_this_version_the_volume_and_the_job(name: str):
    image = IMAGE.replace(__version__, "rocm") if name == "runpod-pod-amd.json" else IMAGE
    assert set(re.findall(r"registry[\w.]+/coloring-gnn:[\w.]+", text(name))) == {image}
    assert re.search(r"(:|[Pp]ath(\": \"|: )|\n  |\")/workspace\b", text(name))
    assert text(name).count("run_multigpu.sh") == 1


def text(name: str) -> str:
    """A file without its comments."""
    return re.sub(r"(^| )#(?!SBATCH|!).*", "", (DEPLOY / name).read_text(), flags=re.MULTILINE)


def test_requests_of_the_page_fit_version_2_of_the_api_of_runpod():
    """The JSON of each POST is what the API takes, and there are no others."""
    page = (ROOT / "docs/PODS.md").read_text()
    requests = re.findall(r"https://api\.runpod\.io/v2/(\S+?)\"? -H [^']*?--json '(.+?)'", page, re.DOTALL)
    schemas = {"network-volumes": "CreateNetworkVolumeRequest", "pods/$pod/action": "PodActionRequest"}
    assert {path for path, _ in requests} == set(schemas) and "rest.runpod" not in page
    for path, body in requests:
        check_schema("runpod_schema.json", schemas[path])(json.loads(body))


def test_pod_waits_for_a_driver_that_the_locked_torch_can_use():
    (torch_needs,) = re.findall(r"^nvidia-cudnn-cu(\d+)==", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    pod = json.loads((DEPLOY / "runpod-pod.json").read_text())
    assert pod["gpu"]["minCudaVersion"].split(".")[0] == torch_needs


def test_machines_of_the_kubernetes_job_find_each_other():
    claim, service, job = yaml.safe_load_all((DEPLOY / "kubernetes-job.yaml").read_text())
    pod, count = job["spec"]["template"]["spec"], job["spec"]["completions"]
    (container,) = pod["containers"]
    variables = {variable["name"]: variable.get("value") for variable in container["env"]}
    name = job["metadata"]["name"]
    assert tuple(variables) == PLACES
    assert count == job["spec"]["parallelism"] == int(variables["NNODES"])
    assert pod["subdomain"] == service["metadata"]["name"]
    assert variables["MASTER_ADDR"] == f"{name}-0.{pod['subdomain']}"
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": name}
    assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert job["spec"]["podFailurePolicy"]["rules"][0]["onExitCodes"]["containerName"] == container["name"]


@pytest.mark.parametrize("name", ["kubernetes-job.yaml", "kubeflow-trainjob.yaml"])
def test_pods_of_kubernetes_have_the_shared_memory_that_nccl_asks_for(name: str):
    one_line = " ".join(text(name).split())
    assert "- name: shm mountPath: /dev/shm" in one_line
    assert "- name: shm emptyDir: medium: Memory sizeLimit: 1Gi" in one_line


@pytest.fixture
def tools(tmp_path: Path) -> dict[str, str]:
    """Environment of an orchestrator in which the container tools only note how they were called, in tmp_path/calls."""
    folder = tmp_path / "bin"
    folder.mkdir()
    places = " ".join(f"{name}=${name}" for name in PLACES)
    for tool, then in (
        ("apptainer", '[[ $1 != pull ]] || touch "$2"'),
        ("srun", 'while [[ $1 == -* ]]; do shift; done; SLURM_NODEID=1 "$@"'),
        ("run_multigpu.sh", ""),
    ):
        (folder / tool).write_text(f'#!/usr/bin/env bash\necho {tool} "$@" {places} >>"{tmp_path}/calls"\n{then}\n')
        (folder / tool).chmod(0o755)
    clean = {name: value for name, value in os.environ.items() if name not in PLACES}
    return clean | {"PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(tmp_path)}


def test_slurm_pulls_once_and_starts_one_container_per_machine(tmp_path: Path, tools: dict[str, str]):
    slurm = {"SLURM_CPUS_PER_TASK": "64", "SLURM_NNODES": "2", "SLURMD_NODENAME": "first", "SLURM_JOB_ID": "12345"}
    for _ in range(2):
        subprocess.run(["bash", DEPLOY / "slurm.sbatch"], cwd=tmp_path, env=tools | slurm, check=True)
    pull, *starts = (tmp_path / "calls").read_text().splitlines()
    image = tmp_path / "coloring-gnn.sif"
    inside = f"apptainer exec --nv --bind {tmp_path}:/workspace --pwd /workspace {image} run_multigpu.sh "
    assert pull.startswith(f"apptainer pull {image} docker://{IMAGE} ")
    assert starts[0].startswith("srun --cpus-per-task=64 --kill-on-bad-exit=1 ")
    assert starts[1::2] == [inside + "NNODES=2 NODE_RANK=1 MASTER_ADDR=first MASTER_PORT=22345"] * 2


def test_slurm_directives_stand_before_the_first_command():
    head, _, body = (DEPLOY / "slurm.sbatch").read_text().partition("set -euo pipefail")
    assert "#SBATCH --ntasks-per-node=1\n" in head and "#SBATCH --signal=TERM@" in head and "#SBATCH" not in body


def test_skypilot_machine_costs_nothing_after_the_end_and_its_results_are_in_a_bucket():
    task = yaml.safe_load((DEPLOY / "skypilot.yaml").read_text())
    assert task["resources"]["autostop"]["down"] and task["resources"]["image_id"] == f"docker:{IMAGE}"
    assert task["file_mounts"]["/workspace"]["mode"] == "MOUNT_CACHED"  # MOUNT can neither append to a file nor lock it
    assert task["run"].startswith("cd /workspace ") and task["num_nodes"] == 1


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
    assert (tmp_path / "calls").read_text().startswith("run_multigpu.sh --steps 5 ")
    (tmp_path / "bin/run_multigpu.sh").write_text("#!/bin/sh\nexit 3\n")
    assert modal_app.train.local([]) == 3
    assert modal_app.train.with_options(gpu="B200:8")  # which Modal's own function takes


def test_kubeflow_variables_become_those_of_the_job(tmp_path: Path, tools: dict[str, str]):
    trainer = yaml.safe_load((DEPLOY / "kubeflow-trainjob.yaml").read_text())["spec"]["trainer"]
    kubeflow = {"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "first", "PET_MASTER_PORT": "29400"}
    assert trainer["command"][:3] == ["/usr/bin/tini", "--", "entrypoint.sh"]
    subprocess.run([*trainer["command"][3:], *trainer["args"]], env=tools | kubeflow, check=True)
    expected = "run_multigpu.sh NNODES=2 NODE_RANK=1 MASTER_ADDR=first MASTER_PORT=29400\n"
    assert (tmp_path / "calls").read_text() == expected


@pytest.mark.slow
@pytest.mark.timeout(600)  # Go builds actionlint once
def test_workflows_of_github_are_valid():
    """By actionlint, which knows the inputs of the common actions and the names of every context."""
    if not shutil.which("go"):
        pytest.skip("there is no Go to build actionlint with")
    lint = ["go", "run", "github.com/rhysd/actionlint/cmd/actionlint@v1.7.12", "-shellcheck"]
    workflows = sorted((ROOT / ".github/workflows").iterdir())
    subprocess.run([*lint, Path(sys.prefix) / "bin/shellcheck", *workflows], check=True, cwd=ROOT)


def test_the_citation_and_the_changelog_are_those_of_this_version():
    assert f"## [{__version__}]" in (ROOT / "CHANGELOG.md").read_text()
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (citation["version"], citation["license"]) == (__version__, "MIT")
