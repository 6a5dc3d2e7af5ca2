"""Which machines train together, for every orchestrator, and that torchrun on several of them makes one training."""

import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import test_readme
import tiny_runs
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.run import config_from_args, parse_args

from gnn_training.errors import UserError
from gnn_training.launch import nodes as orchestrators
from gnn_training.launch.nodes import Nodes, first_host, resolve
from gnn_training.settings import TrainSettings

ROOT = Path(__file__).parents[1]
PAGE = "docs/PODS.md"
ROWS = {
    "Kubeflow": "KUBEFLOW",
    "SkyPilot": "SKYPILOT",
    "Slurm": "SLURM",
    "RunPod Instant Cluster": "INSTANT_CLUSTER",
    "Kubernetes Job": "INDEXED_JOB",
    "by hand": "PLAIN",
}
PET = {"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "job-node-0-0.job", "PET_MASTER_PORT": "29400"}
SKYPILOT = {
    "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2\n", "SKYPILOT_NUM_NODES": "2",
    "SKYPILOT_NODE_RANK": "1", "SKYPILOT_NUM_GPUS_PER_NODE": "8",
}  # fmt: skip
SLURM = {
    "SLURM_JOB_ID": "200505", "SLURM_JOB_NODELIST": "gnode[10,20,25,37]", "SLURM_NNODES": "4",
    "SLURM_NODEID": "3", "SLURM_GPUS_ON_NODE": "8",
}  # fmt: skip
SLURM_STEP = {"SLURM_STEP_NODELIST": "gnode20", "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NUM_TASKS": "1"}
CLUSTER = {
    "PRIMARY_ADDR": "10.65.0.2", "PRIMARY_PORT": "29501", "NODE_ADDR": "10.65.0.3", "NODE_RANK": "1",
    "NUM_NODES": "2", "NUM_TRAINERS": "8", "WORLD_SIZE": "16", "MASTER_ADDR": "10.65.0.2", "MASTER_PORT": "29501",
}  # fmt: skip
INDEXED_JOB = {"JOB_COMPLETION_INDEX": "1", "NUM_NODES": "2", "MASTER_ADDR": "coloring-gnn-0.coloring-gnn"}
PLAIN = {"NUM_NODES": "3", "NODE_RANK": "2", "MASTER_ADDR": "node0", "MASTER_PORT": "12345"}
GROUPS = [
    (PET, Nodes(2, 1, "job-node-0-0.job", 29400, "PET_*")),
    (PET | {"PET_NPROC_PER_NODE": "8", "RANK": "1", "WORLD_SIZE": "2"},
     Nodes(2, 1, "job-node-0-0.job", 29400, "PET_*", 8)),
    (PET | {"PET_NPROC_PER_NODE": "auto"}, Nodes(2, 1, "job-node-0-0.job", 29400, "PET_*")),
    (SKYPILOT, Nodes(2, 1, "10.0.0.1", 29500, "SkyPilot", 8)),
    (SKYPILOT | {"SKYPILOT_NUM_GPUS_PER_NODE": "0"}, Nodes(2, 1, "10.0.0.1", 29500, "SkyPilot")),
    (SLURM, Nodes(4, 3, "gnode10", 20505, "Slurm", 8)),
    (SLURM | {"SLURM_JOB_NUM_NODES": "4", "SLURM_STEP_NUM_NODES": "4", "SLURM_STEP_NUM_TASKS": "4"},
     Nodes(4, 3, "gnode10", 20505, "Slurm", 8)),
    (SLURM | {"MASTER_ADDR": "10.1.1.1", "MASTER_PORT": "7"}, Nodes(4, 3, "10.1.1.1", 7, "Slurm", 8)),
    (CLUSTER, Nodes(2, 1, "10.65.0.2", 29501, "Instant Cluster", 8, {"NCCL_SOCKET_IFNAME": "ens1"})),
    (CLUSTER | {"NCCL_SOCKET_IFNAME": "ens2"}, Nodes(2, 1, "10.65.0.2", 29501, "Instant Cluster", 8)),
    (INDEXED_JOB, Nodes(2, 1, "coloring-gnn-0.coloring-gnn", 29500, "Kubernetes Job")),
    (PLAIN, Nodes(3, 2, "node0", 12345, "MASTER_ADDR")),
    ({"NNODES": "2", "NODE_RANK": "0", "MASTER_ADDR": "[fd00::1]"}, Nodes(2, 0, "[fd00::1]", 29500, "MASTER_ADDR")),
]  # fmt: skip
ALONE = [
    ({}, None),
    ({"MASTER_ADDR": "localhost", "MASTER_PORT": "x", "NODE_RANK": "", "WORLD_SIZE": "8"}, None),
    (PET | {"PET_NNODES": "1", "PET_NODE_RANK": "0", "PET_NPROC_PER_NODE": "4"}, 4),
    (SKYPILOT | {"SKYPILOT_NUM_NODES": "1", "SKYPILOT_NODE_RANK": "0"}, 8),
    (SLURM | SLURM_STEP | {"SLURM_NODEID": "0"}, 8),  # one machine of the job's four
    ({"SLURM_JOB_ID": "7", "SLURM_NNODES": "1", "SLURM_JOB_NODELIST": "gpu1", "SLURM_NODEID": "0"}, None),
    (CLUSTER | {"NUM_NODES": "1", "NODE_RANK": "0"}, 8),
    ({"JOB_COMPLETION_INDEX": "0"}, None),
]
REFUSED = [
    (PET | {"PET_NNODES": "2:4"}, "PET_NNODES (2:4) must be a number"),
    (PET | {"PET_NODE_RANK": "2"}, "PET_NODE_RANK (2) must be below PET_NNODES (2)"),
    (PET | {"PET_MASTER_PORT": "70000"}, "PET_MASTER_PORT (70000) must be a port"),
    (PET | {"LOCAL_RANK": "0", "RANK": "0"}, "LOCAL_RANK is set: start run once per machine"),
    (SKYPILOT | {"SKYPILOT_NODE_IPS": ""}, "set SKYPILOT_NODE_IPS to the first one's address"),
    (SLURM | {"SLURM_NODEID": ""}, "SLURM_NODEID is not set"),
    (SLURM | {"SLURM_STEP_NUM_TASKS": "32"}, "SLURM_STEP_NUM_TASKS (32) must be the machines (4)"),
    (CLUSTER | {"PRIMARY_PORT": "ssh"}, "PRIMARY_PORT (ssh) must be a number"),
    (INDEXED_JOB | {"NUM_NODES": ""}, "JOB_COMPLETION_INDEX (1) must be below NUM_NODES (1)"),
    (INDEXED_JOB | {"MASTER_ADDR": ""}, "set MASTER_ADDR to the first one's address"),
    (PLAIN | {"NODE_RANK": "3"}, "NODE_RANK (3) must be below NUM_NODES (3)"),
    (PLAIN | {"NODE_RANK": "-1"}, "NODE_RANK (-1) must be a number"),
    (PLAIN | {"NODE_RANK": ""}, "NODE_RANK is not set"),
    (PLAIN | {"MASTER_PORT": "0"}, "MASTER_PORT (0) must be a port"),
    ({"NODE_RANK": "1"}, "NODE_RANK (1) must be below NUM_NODES (1)"),
    ({"NUM_NODES": "0"}, "NODE_RANK (0) must be below NUM_NODES (0)"),
    ({"RANK": "0", "WORLD_SIZE": "2"}, "RANK is set: start run once per machine"),
]


@pytest.mark.parametrize(("environ", "nodes"), GROUPS)
def test_variables_of_every_orchestrator_tell_the_same_story(environ: dict, nodes: Nodes):
    assert resolve({"PATH": "/bin", **environ}) == nodes


@pytest.mark.parametrize(("environ", "processes"), ALONE)
def test_one_machine_is_alone_whoever_started_it(environ: dict, processes: int | None):
    assert resolve(environ) == Nodes(processes=processes)


@pytest.mark.parametrize(("environ", "sentence"), REFUSED)
def test_contradiction_is_refused_with_the_name_of_the_variable(environ: dict, sentence: str):
    with pytest.raises(UserError, match=re.escape(sentence)):
        resolve(environ)


@pytest.mark.parametrize(("environ", "nodes"), GROUPS)
def test_torchrun_understands_the_place_in_the_group(monkeypatch: pytest.MonkeyPatch, environ: dict, nodes: Nodes):
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    config, _, _ = config_from_args(parse_args([*nodes.torchrun(4), "-m", "--", "gnn_training", "train"]))
    assert (config.min_nodes, config.max_nodes, config.nproc_per_node) == (nodes.count, nodes.count, 4)
    assert (config.rdzv_backend, config.rdzv_configs["rank"]) == ("static", nodes.rank)
    assert config.rdzv_endpoint == f"{nodes.address}:{nodes.port}"


def test_flags_say_nothing_that_kubeflow_said():
    assert resolve(PET | {"PET_NPROC_PER_NODE": "8"}).torchrun(8) == []
    assert resolve(PET | {"PET_NPROC_PER_NODE": "8"}).torchrun(4) == ["--nproc-per-node", "4"]


@pytest.mark.parametrize("environ", [{}, PET | {"PET_NNODES": "1", "PET_NODE_RANK": "0", "PET_MASTER_PORT": "29400"}])
def test_one_machine_takes_a_free_port(monkeypatch: pytest.MonkeyPatch, environ: dict):
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    args = parse_args([*resolve(environ).torchrun(2), "-m", "--", "gnn_training", "train"])
    assert args.standalone and args.local_addr == "127.0.0.1"  # standalone overrides endpoint and backend
    assert (args.nnodes, args.nproc_per_node) == ("1", "2")


def test_one_machine_of_a_group_can_be_tried_alone(monkeypatch: pytest.MonkeyPatch):
    for name, value in PET.items():
        monkeypatch.setenv(name, value)
    args = parse_args([*resolve({}).torchrun(2), "-m", "--", "gnn_training", "preflight"])
    assert (args.standalone, args.nnodes, args.nproc_per_node) == (True, "1", "2")


@pytest.mark.parametrize(
    ("hosts", "first"),
    [
        ("gpu1", "gpu1"),
        ("gpu[07-09,12],login1", "gpu07"),
        ("login1,gpu[07-09,12]", "login1"),
        ("rack[1-2]node[03,5]-ib.example", "rack1node03-ib.example"),
        ("10.0.0.1\n10.0.0.2", "10.0.0.1"),
        ("[fd00::1]", "[fd00::1]"),
    ],
)
def test_first_host_of_a_list(hosts: str, first: str):
    assert first_host(hosts) == first


RANGES = st.tuples(st.integers(0, 99), st.integers(0, 9), st.integers(1, 3))


@given(st.from_regex(r"[a-z][a-z0-9-]{0,8}[a-z]", fullmatch=True), st.lists(RANGES, min_size=1, max_size=3))
def test_first_host_of_slurm_ranges_is_their_first_number_with_its_zeros(prefix: str, ranges: list):
    texts = [
        f"{low:0{width}}-{low + more:0{width}}" if more else f"{low:0{width}}" for low, more, width in ranges
    ]  # as slurmctld prints them
    low, _, width = ranges[0]
    assert first_host(f"{prefix}[{','.join(texts)}],other[1-2]") == f"{prefix}{low:0{width}}"


def test_page_names_for_every_orchestrator_the_variables_that_are_read():
    rows = {
        row[0]: set(re.findall(r"[A-Z_]{7,}", " ".join(row))) for row in test_readme.table(PAGE, "Several machines")
    }
    for title, name in ROWS.items():
        source = getattr(orchestrators, name)
        read = {*source.count, *source.rank, *source.address, *source.port}
        named = rows.pop(title) - {"SLURM_JOB_ID"}
        assert source.rank[0] in named and named <= read
    assert not rows


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def on_two_machines(folder: Path, *command: str, first_ends: int = 0) -> list[str]:
    """What `python command` says on both machines of a group, which here are one; {flags} stands for torchrun's.

    first_ends: exit code of the first; 143 has it stopped as soon as the second has ended with 0.
    """
    group = {"NUM_NODES": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    base = os.environ | group | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    machines = []
    for rank in ("1", "0"):  # the one that has to wait comes first
        flags = resolve(group | {"NODE_RANK": rank}).torchrun(1)
        arguments = [word for given in command for word in (flags if given == "{flags}" else [given])]
        with open(folder / f"machine{rank}.log", "w") as log:
            machines.append(
                subprocess.Popen(
                    [sys.executable, *arguments], env=base | {"NODE_RANK": rank}, cwd=folder,
                    stdout=log, stderr=subprocess.STDOUT,
                )
            )  # fmt: skip
    try:
        codes = [machines[0].wait(timeout=250)]
        if first_ends == 143:  # told in the middle of its export
            while "4/7 export: " not in (folder / "machine0.log").read_text():
                assert machines[1].poll() is None
                time.sleep(0.1)
            machines[1].terminate()
        codes.append(machines[1].wait(timeout=250))
    finally:
        for machine in machines:
            machine.kill()
    said = [(folder / f"machine{rank}.log").read_text() for rank in range(2)]
    assert codes == [0, first_ends], "\n".join(said)
    return said


@pytest.mark.slow
def test_two_torchruns_train_together_as_two_machines_would(tiny_data: Path, tmp_path: Path):
    settings: TrainSettings = tiny_runs.settings(tiny_data, tmp_path / "run", steps=4, batch_size=500)
    torchrun = ["-m", "torch.distributed.run", "{flags}", "-m", "--", "gnn_training"]
    first, second = on_two_machines(tmp_path, *torchrun, "train", *settings.flags())
    assert "starting: 4 steps" in first and "2 x cpu" in first
    assert "starting" not in second  # rank 0 is on the first machine, which has the folder
    status = json.loads((tmp_path / "run/status.json").read_text())
    assert (status["status"], status["ranks"], status["step"]) == ("done", 2, 4)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_whole_job_on_two_machines_trains_along_on_the_second_and_goes_on_on_the_first(tmp_path: Path):
    smoke = ["--preset", "smoke", "--steps", "6", "--warmup-steps", "1", "--evaluate-every", "6"]
    here = ["--processes", "1", "--device", "cpu", "--no-oldest-runtime"]
    first, second = on_two_machines(tmp_path, "-m", "gnn_training", "run", *smoke, *here, first_ends=143)
    assert "3/7 train: done in" in first and "4/7 export: " in first  # which takes long and is no other than on one
    assert "machine 2 of 2: waiting for the graphs" in second and "the first machine does the rest" in second
    status = json.loads((tmp_path / "runs/smoke/status.json").read_text())
    assert (status["status"], status["ranks"], status["step"]) == ("done", 2, 6)
