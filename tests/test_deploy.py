"""The examples in deploy/: each holds against what reads it, offline, and starts the job as we mean it."""

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from filelock import FileLock

from gnn_training import __version__
from gnn_training.__main__ import parse

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
EXAMPLES = sorted(path.name for path in DEPLOY.iterdir())
IMAGE = f"registry.example/coloring-gnn:{__version__}"
LOCK = ROOT / "requirements-deploy.lock"
# What reads each example, as a function of one file; and a name to misspell, since not every reader minds unknown ones.
READERS = {
    "runpod-pod.json": (
        """
import json, jsonschema
def read(path):
    jsonschema.validate(json.load(open(path)), json.load(open("runpod_pod_schema.json")))
""",
        '"gpuCount"',
    ),
    "kubernetes-job.yaml": (
        """
import yaml, kubernetes_validate as kubernetes
def read(path):
    for resource in yaml.safe_load_all(open(path)):
        kubernetes.validate(resource, kubernetes.latest_version(), strict=True)
""",
        "completionMode",
    ),
    "kubeflow-trainjob.yaml": (
        """
import yaml
from kubeflow_trainer_api.models import TrainerV1alpha1TrainJob
def read(path):
    said = yaml.safe_load(open(path))
    understood = TrainerV1alpha1TrainJob.from_dict(said).to_dict()
    assert understood == said, understood
""",
        "numProcPerNode",
    ),
    "skypilot.yaml": (
        """
import sky
def read(path):
    sky.Task.from_yaml(path)
""",
        "disk_size",
    ),
}
READ_ALL = """
import sys
for path in sys.argv[1:]:
    try:
        read(path)
        print("takes it")
    except Exception as error:
        print("refuses it:", str(error).replace(chr(10), " "))
"""


@pytest.fixture(scope="module")
def checkers() -> Path:
    """Folder with the packages of requirements-deploy.lock, which are kept for the next time."""
    folder = Path(sys.prefix) / "deploy-checkers"
    done = folder / hashlib.sha256(LOCK.read_bytes()).hexdigest()
    with FileLock(f"{folder}.lock"):
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)
            uv, pip = ["uv", "pip", "install", "--python", sys.executable], [sys.executable, "-m", "pip", "install"]
            installer = uv if shutil.which("uv") else [*pip, "--no-compile"]  # most of it is never imported
            wanted = ["--quiet", "--no-deps", "--require-hashes", "--target", str(folder), "-r", str(LOCK)]
            subprocess.run([*installer, *wanted], check=True)
            done.touch()
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_reader_takes_the_example_and_minds_a_misspelt_name(checkers: Path, tmp_path: Path, name: str):
    script, key = READERS[name]
    text = (DEPLOY / name).read_text()
    assert key in text
    good, bad = (tmp_path / f"{kind}{Path(name).suffix}" for kind in ("good", "bad"))
    good.write_text(text)
    bad.write_text(text.replace(key, key[:-1] + "x" + key[-1]))
    environment = {"PYTHONPATH": str(checkers), "HOME": str(tmp_path), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}
    command = [sys.executable, "-c", script + READ_ALL, good, bad]
    done = subprocess.run(command, env=os.environ | environment, cwd=ROOT / "tests", capture_output=True, text=True)
    verdicts = done.stdout.splitlines()
    assert verdicts[0] == "takes it" and verdicts[1].startswith("refuses it"), done.stdout + done.stderr


def strings(value: object) -> list[str]:
    """Every string in a JSON or YAML document, lists of words joined to the command that they are."""
    if isinstance(value, dict):
        return [found for item in value.values() for found in strings(item)]
    if isinstance(value, list):
        return [shlex.join(value)] if all(isinstance(x, str) for x in value) else sum(map(strings, value), [])
    return [str(value)]


def commands(name: str) -> list[list[str]]:
    """Every command of the job in an example, in words."""
    text = (DEPLOY / name).read_text()
    documents = [text] if name.endswith("sbatch") else sum(map(strings, yaml.safe_load_all(text)), [])
    lines = "\n".join(documents).replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True) for line in lines if "run_multigpu.sh" in line.partition("#")[0]]


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_starts_the_job_with_flags_that_there_are(name: str):
    (words,) = commands(name)
    flags = words[words.index("run_multigpu.sh") + 1 :]
    parse("run", ["--preset", "multi", *flags[flags[:1] != [] and flags[0].isdecimal() :]])


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_names_the_image_of_this_version_and_no_other(name: str):
    assert set(re.findall(r"[\w./-]+/coloring-gnn:[\w.]+", (DEPLOY / name).read_text())) in ({IMAGE}, {f"//{IMAGE}"})


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_gives_the_job_a_place_for_its_results(name: str):
    assert re.search(r"(:|Path: |Path\": \")/workspace\b", (DEPLOY / name).read_text())


def test_pod_waits_for_a_driver_that_the_locked_torch_can_use():
    torch_needs = re.search(r"^nvidia-cudnn-cu(\d+)==", (ROOT / "requirements-torch.lock").read_text(), re.MULTILINE)
    pod = json.loads((DEPLOY / "runpod-pod.json").read_text())
    assert {version.split(".")[0] for version in pod["allowedCudaVersions"]} == {torch_needs[1]}
    assert pod["ports"] == []  # left out, RunPod opens two


def test_machines_of_the_kubernetes_job_know_each_other():
    claim, service, job = yaml.safe_load_all((DEPLOY / "kubernetes-job.yaml").read_text())
    pod, count = job["spec"]["template"]["spec"], job["spec"]["completions"]
    (container,) = pod["containers"]
    variables = {variable["name"]: variable["value"] for variable in container["env"]}
    name = job["metadata"]["name"]
    assert count == job["spec"]["parallelism"] == int(variables["NUM_NODES"])
    assert (
        pod["subdomain"] == service["metadata"]["name"] and variables["MASTER_ADDR"] == f"{name}-0.{pod['subdomain']}"
    )
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": name}
    assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert job["spec"]["podFailurePolicy"]["rules"][0]["onExitCodes"]["containerName"] == container["name"]


@pytest.fixture
def tools(tmp_path: Path) -> dict[str, str]:
    """Environment in which srun, apptainer and docker tell how they were called; srun also does what it is told."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool, then in (
        ("docker", ""),
        ("apptainer", '[[ $1 != pull ]] || touch "$2"'),
        ("srun", 'while [[ $1 == -* ]]; do shift; done; "$@"'),
    ):
        (folder / tool).write_text(f'#!/usr/bin/env bash\necho {tool} "$@" >>"{tmp_path}/calls"\n{then}\n')
        (folder / tool).chmod(0o755)
    return os.environ | {"PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(tmp_path), "SLURM_CPUS_PER_TASK": "64"}


def test_slurm_script_pulls_once_and_starts_one_container_per_machine(tmp_path: Path, tools: dict[str, str]):
    for _ in range(2):
        subprocess.run(["bash", DEPLOY / "slurm.sbatch"], cwd=tmp_path, env=tools, check=True)
    pull, *starts = (tmp_path / "calls").read_text().splitlines()
    image = tmp_path / "coloring-gnn.sif"
    inside = f"apptainer exec --nv --bind {tmp_path}:/workspace --pwd /workspace {image} run_multigpu.sh"
    assert pull == f"apptainer pull {image} docker://{IMAGE}"
    assert starts == [f"srun --cpus-per-task=64 --kill-on-bad-exit=1 {inside}", inside] * 2


def test_slurm_directives_are_whole_and_stand_before_the_first_command():
    head, _, body = (DEPLOY / "slurm.sbatch").read_text().partition("set -euo pipefail")
    directives = dict(re.findall(r"^#SBATCH --([a-z-]+)=(\S+)$", head, re.MULTILINE))
    assert len(directives) == head.count("#SBATCH") and "#SBATCH" not in body
    assert directives["ntasks-per-node"] == "1" and directives["signal"].startswith("TERM@")


def test_skypilot_task_tells_the_container_who_is_who(tmp_path: Path, tools: dict[str, str]):
    task = yaml.safe_load((DEPLOY / "skypilot.yaml").read_text())
    subprocess.run(["bash", "-euc", task["run"]], env=tools | task["envs"], check=True)
    (call,) = (tmp_path / "calls").read_text().splitlines()
    for name in ("NODE_IPS", "NUM_NODES", "NODE_RANK", "NUM_GPUS_PER_NODE"):
        assert f"--env SKYPILOT_{name} " in call
    assert call.endswith(f"{IMAGE} run_multigpu.sh") and (tmp_path / "coloring-gnn").is_dir()


def test_scripts_among_the_examples_are_clean(tmp_path: Path):
    (tmp_path / "skypilot.sh").write_text(yaml.safe_load((DEPLOY / "skypilot.yaml").read_text())["run"])
    scripts = [DEPLOY / "slurm.sbatch", tmp_path / "skypilot.sh"]
    subprocess.run([Path(sys.prefix) / "bin/shellcheck", "--shell", "bash", *scripts], check=True)


def test_deploy_lock_pins_everything_by_hash_and_holds_what_its_input_asks_for():
    text = LOCK.read_text()
    assert "://" not in text
    for entry in re.split(r"\n(?=\S)", text):
        assert re.match(r"[a-z0-9-]+==\S+ (;.*)?\\\n    --hash=sha256:[0-9a-f]{64}", entry), entry
    for name in re.findall(r"^([a-z-]+)", (ROOT / "requirements-deploy.in").read_text(), re.MULTILINE):
        assert f"\n{name}==" in f"\n{text}"
