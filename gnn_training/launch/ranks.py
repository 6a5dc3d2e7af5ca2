"""The processes that train: one, or as many as torchrun starts, on this machine and on others."""

import json
import os
import re
import signal
import sys
from functools import cached_property
from pathlib import Path

from gnn_training import machine, processes
from gnn_training.errors import MachineError, StorageError, TrainingError, UserError
from gnn_training.jobs.run import Step
from gnn_training.launch import gpus, nccl
from gnn_training.launch.nodes import Nodes, resolve
from gnn_training.processes import Supervisor
from gnn_training.settings import RunSettings

DOOR = ["-m", "gnn_training"]
TORCHRUN = ["-m", "torch.distributed.run"]
UNDER_TORCHRUN = ["-m", "--", "gnn_training"]  # before "--", torchrun takes --run for short for its own --run-path
STOPPED = 128 + signal.SIGTERM
NVLS = "NCCL_NVLS_ENABLE"
PREFLIGHT_SECONDS = 90  # NCCL that cannot connect waits for half an hour
ERRORS = {error.exit_code: error for error in (UserError, MachineError, StorageError)}


class Ranks:
    """The processes that train: how many, and how they are started."""

    def __init__(self, settings: RunSettings, nodes: Nodes, supervisor: Supervisor):
        self.settings, self.nodes, self.supervisor = settings, nodes, supervisor
        self._connections: dict[str, str] = {}

    @cached_property
    def here(self) -> int:
        """Processes on this machine.

        Raises:
            MachineError: it cannot train with these settings.
        """
        named = 0 if self.settings.gpus is None else len(self.settings.gpus.split(","))
        wanted = self.settings.processes or named or self.nodes.processes or 0
        return gpus.num_ranks(self.settings.model_copy(update={"processes": wanted}))

    @property
    def are_one(self) -> bool:
        """Whether training is one process, which needs no torchrun."""
        return self.here * self.nodes.count == 1

    def command(self, step: Step) -> list[str]:
        """Arguments of the Python that trains."""
        if self.are_one:
            return [*DOOR, *step.arguments()]
        return [*TORCHRUN, *self.nodes.torchrun(self.here), *UNDER_TORCHRUN, *step.arguments()]

    @property
    def environment(self) -> dict[str, str]:
        """Variables of that Python: torchrun would set one thread per rank, whatever the cores."""
        threads = os.environ.get("OMP_NUM_THREADS", str(machine.threads_per_rank(self.here)))
        # Machines of which only some can do multicast would wait for each other forever.
        alike = {} if self.nodes.count == 1 or NVLS in os.environ else {NVLS: "0"}
        return {"OMP_NUM_THREADS": threads, **self.nodes.environment, **self._connections, **alike}

    def prepare(self) -> None:
        """Find the variables with which the GPUs of this machine reach each other, by trying.

        Raises:
            MachineError: they do not, or there are not enough.
        """
        if self.here == 1 or not gpus.uses_gpus(self.settings):
            return
        command = [*TORCHRUN, *resolve({}).torchrun(self.here), *UNDER_TORCHRUN, "preflight"]
        errors = self._log("preflight")

        def attempt(environment: dict[str, str]) -> tuple[int, str]:
            code = self.supervisor.run(command, errors, PREFLIGHT_SECONDS, processes.beat, **environment)
            if self.supervisor.signals:
                sys.exit(128 + self.supervisor.signals[0])
            return code, errors.read_text(errors="replace")

        self._connections = nccl.working_environment(attempt)

    def train(self, step: Step) -> int:
        """Train until the end, a signal or an error; return the exit code.

        Raises:
            UserError: what ended the ranks, of the class that they raised themselves, else a TrainingError.
        """
        if self.are_one:
            return self.supervisor.run(self.command(step), **self.environment)
        status, errors = self.settings.run / "status.json", self._log("torchrun")
        if self.nodes.rank == 0:
            status.unlink(missing_ok=True)
        code = self.supervisor.run(self.command(step), errors, **self.environment)
        # torchrun says 1 whatever happened, also when every rank was told to stop and has saved; rank 0 knows.
        if code and status.exists() and json.loads(status.read_text())["status"] == "stopped":
            return STOPPED
        if code and not self.supervisor.signals:
            raise _cause(errors)
        return code

    def _log(self, name: str) -> Path:
        return self.settings.run / (f"{name}.log" if self.nodes.rank == 0 else f"{name}.{self.nodes.rank}.log")


def _cause(errors: Path) -> UserError:
    """What ended the ranks, out of all that they and torchrun wrote to stderr."""
    text = errors.read_text(errors="replace")
    codes = [int(code) for code in re.findall(r"exitcode *: (-?\d+)", text)]
    if said := re.search(r"^gnn_training: (.*)$", text, re.MULTILINE):  # the door's sentence, once for all ranks
        return ERRORS.get(next((code for code in codes if code in ERRORS), 2))(said[1])
    killed = re.search(r"\(exitcode: -(\d+)\) local_rank: (\d+)", text)
    raised = re.search(r"^(?:\[rank\d+\]: )?((?:[\w.]*(?:Error|Exception)|\S+ error): .*)$", text, re.MULTILINE)
    cause = raised[1] if raised else "without a word"
    if killed:
        cause = f"rank {killed[2]} was killed by signal {killed[1]}, perhaps for want of memory"
    return TrainingError(f"training failed: {cause} (all that was said is in {errors})")
