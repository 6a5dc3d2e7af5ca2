"""The machines that train together, read from the variables of whatever started us; one machine needs none of them.

Ranks meet where the first machine says (torchrun's static rendezvous): rank 0, which writes, is then on that machine.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from gnn_training.errors import UserError

DEFAULT_PORT = 29500  # torchrun's own


@dataclass(frozen=True)
class Orchestrator:
    """The variables of one orchestrator; of several names for one thing, the first that is set counts."""

    name: str
    signs: tuple[str, ...]  # it is this orchestrator if one of them is set
    count: tuple[str, ...]
    rank: tuple[str, ...]
    address: tuple[str, ...] = ("MASTER_ADDR",)
    port: tuple[str, ...] = ("MASTER_PORT",)
    processes: tuple[str, ...] = ()


KUBEFLOW = Orchestrator(
    "PET_*",
    signs=("PET_NNODES", "PET_NODE_RANK"),
    count=("PET_NNODES",),
    rank=("PET_NODE_RANK",),
    address=("PET_MASTER_ADDR",),
    port=("PET_MASTER_PORT",),
    processes=("PET_NPROC_PER_NODE",),
)
SKYPILOT = Orchestrator(
    "SkyPilot",
    signs=("SKYPILOT_NODE_IPS", "SKYPILOT_NODE_RANK"),
    count=("SKYPILOT_NUM_NODES",),
    rank=("SKYPILOT_NODE_RANK",),
    address=("SKYPILOT_NODE_IPS",),
    processes=("SKYPILOT_NUM_GPUS_PER_NODE",),
)
SLURM = Orchestrator(
    "Slurm",
    signs=("SLURM_JOB_ID", "SLURM_JOB_NODELIST"),
    count=("SLURM_STEP_NUM_NODES", "SLURM_JOB_NUM_NODES", "SLURM_NNODES"),
    rank=("SLURM_NODEID",),
    address=("MASTER_ADDR", "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"),
    processes=("SLURM_GPUS_ON_NODE",),
)
INSTANT_CLUSTER = Orchestrator(
    "Instant Cluster",
    signs=("NUM_TRAINERS", "PRIMARY_ADDR"),
    count=("NUM_NODES",),
    rank=("NODE_RANK",),
    address=("PRIMARY_ADDR", "MASTER_ADDR"),
    port=("PRIMARY_PORT", "MASTER_PORT"),
    processes=("NUM_TRAINERS",),
)
INDEXED_JOB = Orchestrator(
    "Kubernetes Job", signs=("JOB_COMPLETION_INDEX",), count=("NUM_NODES",), rank=("JOB_COMPLETION_INDEX",)
)
PLAIN = Orchestrator("MASTER_ADDR", signs=(), count=("NUM_NODES", "NNODES"), rank=("NODE_RANK",))


@dataclass(frozen=True)
class Nodes:
    """The machines that train together and this one's place among them."""

    count: int = 1
    rank: int = 0
    address: str | None = None
    port: int = DEFAULT_PORT
    source: str = "this machine alone"
    processes: int | None = None
    """Ranks per machine that the orchestrator asks for; None: one per GPU."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """What ranks need besides the environment as it is."""

    def torchrun(self, processes: int) -> list[str]:
        """Flags of torch.distributed.run for so many ranks on this machine."""
        ranks = ["--nproc-per-node", str(processes)]
        if self.count == 1:  # on a free port: two trainings on one machine must not fight for it
            return ["--standalone", "--nnodes", "1", "--local-addr", "127.0.0.1", *ranks]
        if self.source == KUBEFLOW.name:  # torchrun reads PET_* itself; a flag would override what Kubeflow says
            return [] if processes == self.processes else ranks
        place = ["--nnodes", str(self.count), "--node-rank", str(self.rank)]
        return [*place, "--master-addr", str(self.address), "--master-port", str(self.port), *ranks]


def resolve(environ: Mapping[str, str]) -> Nodes:
    """The machines that `environ` tells of.

    Raises:
        UserError: a variable is missing, is no number or contradicts another, or somebody started a process per rank.
    """
    environ = {name: value.strip() for name, value in environ.items() if value.strip()}
    orchestrators = (KUBEFLOW, SKYPILOT, SLURM, INSTANT_CLUSTER, INDEXED_JOB)
    source = next((source for source in orchestrators if any(sign in environ for sign in source.signs)), PLAIN)
    _refuse_a_process_per_rank(source, environ)
    count, rank = _place(source, environ)
    asked = environ.get(_name(source.processes, environ), "")
    processes = int(asked) if asked.isdecimal() and int(asked) else None  # Kubeflow also says "auto" and "gpu"
    if count == 1:
        return Nodes(processes=processes)
    address = environ.get(_name(source.address, environ))
    if address is None:
        raise UserError(f"{count} machines are to train together: set {source.address[0]} to the first one's address")
    # NCCL does not guess that the machines of an Instant Cluster reach each other over ens1 only.
    adding = {"NCCL_SOCKET_IFNAME": "ens1"} if source == INSTANT_CLUSTER else {}
    adding = {name: value for name, value in adding.items() if name not in environ}
    return Nodes(count, rank, first_host(address), _port(source, environ), source.name, processes, adding)


def first_host(text: str) -> str:
    """The first of several hosts: one per line or comma, or in Slurm's way: gpu[07-09,12],login1."""
    # Every bracket gives its first number. Those of an IPv6 address hold colons and stay.
    return re.split(r"[,\s]", re.sub(r"\[(\d+)[\d,-]*\]", r"\1", text))[0]


def _refuse_a_process_per_rank(source: Orchestrator, environ: Mapping[str, str]) -> None:
    """Else each of them would start all ranks, and all would train in one folder."""
    # The first Kubeflow sets RANK beside PET_*, and means the machine.
    for name in ("LOCAL_RANK",) if source == KUBEFLOW else ("LOCAL_RANK", "RANK"):
        if name in environ:
            raise UserError(f"{name} is set: start run once per machine and not by torchrun, which it starts itself")
    if source == SLURM and "SLURM_STEP_NUM_TASKS" in environ:
        tasks, machines = _number(("SLURM_STEP_NUM_TASKS",), environ, 1), _number(source.count, environ, 1)
        if tasks != machines:
            raise UserError(f"SLURM_STEP_NUM_TASKS ({tasks}) must be the machines ({machines}): --ntasks-per-node=1")


def _place(source: Orchestrator, environ: Mapping[str, str]) -> tuple[int, int]:
    """How many machines, and which of them this is."""
    count_name, rank_name = _name(source.count, environ), _name(source.rank, environ)
    count = _number(source.count, environ, 1)
    if count > 1 and rank_name not in environ:
        raise UserError(f"{rank_name} is not set: number the {count} machines that {count_name} counts from 0 on")
    rank = _number(source.rank, environ, 0)
    if rank >= count:
        raise UserError(f"{rank_name} ({rank}) must be below {count_name} ({count}): machines are numbered from 0 on")
    return count, rank


def _port(source: Orchestrator, environ: Mapping[str, str]) -> int:
    # Slurm's jobs may share machines, so each has a port of its own, below those that Linux gives away.
    default = 20_000 + _number(("SLURM_JOB_ID",), environ, 0) % 10_000 if source == SLURM else DEFAULT_PORT
    port = _number(source.port, environ, default)
    if not 0 < port < 65536:
        raise UserError(f"{_name(source.port, environ)} ({port}) must be a port, from 1 to 65535")
    return port


def _number(names: tuple[str, ...], environ: Mapping[str, str], default: int) -> int:
    name = _name(names, environ)
    text = environ.get(name, str(default))
    if not text.isdecimal():
        raise UserError(f"{name} ({text}) must be a number")
    return int(text)


def _name(names: tuple[str, ...], environ: Mapping[str, str]) -> str:
    """The one of the names that is set; the first if none is."""
    return next((name for name in names if name in environ), (*names, "")[0])
