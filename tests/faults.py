"""One step of a job with a fault in one of its writes, then the step again without it, which must give the same.

`PYTHONPATH=.:tests python tests/faults.py RESULTS TRIALS [STEP ...]` does that so many times with drawn steps, faults
and positions, and writes what happened to the JSON file RESULTS. A step that is named twice is drawn twice as often.
FAULT_KINDS names kinds, separated by commas, if not all are wanted; FAULT_SEED begins elsewhere.
"""

import errno
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import networkx as nx
import tiny_runs
from dimacs import write_col

from gnn_training.__main__ import main
from gnn_training.settings import EvaluateSettings, ExportSettings, ImportSettings, PackSettings, RunSettings, Settings

HERE = Path(__file__).parent
KINDS = {
    "disk full": {"FAULT_ERROR": errno.ENOSPC, "FAULT_STAYS": 1},
    "disk full once": {"FAULT_ERROR": errno.ENOSPC},
    "I/O error": {"FAULT_ERROR": errno.EIO},
    "no permission": {"FAULT_ERROR": errno.EACCES},
    "kill -9": {"FAULT_ERROR": 0},
    "clock jumps": {"FAULT_ERROR": 0, "FAULT_CLOCK": 3600, "FAULT_AT": 0},
    # At a moment that the position gives, not at a write. The last two need root, because they mount.
    "kill -9 at any time": {"FAULT_ERROR": 0, "FAULT_AT": 0},
    "volume gone": {"FAULT_ERROR": 0, "FAULT_AT": 0},
    "volume too small": {"FAULT_ERROR": 0, "FAULT_AT": 0},
}
SECONDS = 400  # after which a step hangs
MODELS = ("coloring_gnn.onnx", "coloring_gnn_web.onnx", "coloring_gnn.golden.json")


class Step(NamedTuple):
    """A command, its settings in a workspace, the folders that it needs, and what it makes: bytes or values by name."""

    command: str
    settings: Callable[[Path], Settings]
    needs: tuple[str, ...]
    products: Callable[[Path], dict]


def training(space: Path, ranks: int) -> Settings:
    changes = {"steps": 6, "rounds": 30, "checkpoint_every": 2, "evaluate_every": 2, "processes": ranks}
    return tiny_runs.settings(space / "data", space / "run", **changes)


def whole_job(space: Path) -> Settings:
    changes = training(space, 2).model_dump() | {"models": space / "models", "oldest_runtime": False}
    return RunSettings(**changes)


def trained(space: Path) -> dict:
    run = space / "run"
    weights = tiny_runs.newest(run)["weights"]
    return {"best": (run / "best.pt").read_bytes(), "records": tiny_runs.records(run), "weights": weights}


def scored(space: Path) -> dict:
    report = json.loads((space / "run/report.json").read_text())
    return {row["name"]: {m: row["colors"][m] for m in ("dsatur", "one_call")} for row in report["graphs"]}


def content(*names: str) -> Callable[[Path], dict]:
    return lambda space: {name: (space / name).read_bytes() for name in names}


def packed(space: Path) -> dict:
    with tarfile.open(space / "models/trained_model.tar.gz") as tar:
        return {member.name: tar.extractfile(member).read() for member in tar}


STEPS = {
    "import": Step(
        "import", lambda s: ImportSettings(sources=(s / "graphs",), out=s / "packed", workers=1), ("graphs",),
        content("packed/graphs.safetensors", "packed/manifest.json"),
    ),
    "train": Step("train", lambda s: training(s, 1), ("data",), trained),
    "train on two ranks": Step("train", lambda s: training(s, 2), ("data",), trained),
    "export": Step(
        "export", lambda s: ExportSettings(run=s / "run", models=s / "models", steps=24, oldest_runtime=False),
        ("run",),
        content(*(f"models/{name}" for name in MODELS)),
    ),
    "evaluate": Step(
        "evaluate",
        lambda s: EvaluateSettings(
            graphs=s / "data", model=str(s / "models/coloring_gnn.onnx"), limit=2, threads=1,
            report=s / "run/report.json",
        ),
        ("data", "run", "models"), scored,
    ),
    "pack": Step(
        "pack", lambda s: PackSettings(run=s / "run", models=s / "models"), ("run", "models"), packed,
    ),
    "whole job on two ranks": Step(
        "run", whole_job, ("data",), lambda s: trained(s) | content(*(f"models/{name}" for name in MODELS))(s),
    ),
}  # fmt: skip


class Faults:
    """A workspace, whose place is in every file, so there is one; and the folder `made` with what steps begin with."""

    def __init__(self, folder: Path):
        self.space, self.made, self.shim = folder / "space", folder / "made", folder / "faults.so"
        self.counter, self.log, self.said = (folder / name for name in ("counter", "log", "said"))
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", self.shim, HERE / "faults.c", "-ldl"], check=True)
        # For the server that forks all steps.
        os.environ |= {"LD_PRELOAD": str(self.shim), "PYTHONPATH": f"{HERE.parent}:{HERE}"}
        tiny_runs.FORKS.set_forkserver_preload(
            [f"gnn_training.jobs.{name}" for name in ("train", "export", "evaluate", "pack", "dataset", "run")]
            + ["torch.utils.tensorboard", "onnxruntime", "faults"]
        )
        self.volume = folder / "volume"
        self.products: dict[str, dict] = {}
        self.writes: dict[str, int] = {}
        self.seconds: dict[str, float] = {}
        self.sizes: dict[str, tuple[int, int]] = {}  # bytes of the workspace before and after
        tiny_runs.write_data(self.made / "data")
        for n in range(5, 25):
            write_col(self.made / "graphs", nx.cycle_graph(n), f"ring{n}")

    def prepare(self, name: str) -> None:
        """Do a step without a fault: note its products and how often it writes; keep what later steps need."""
        self.empty(name)
        before, started = _bytes(self.space), time.monotonic()
        code, said = self.run(name, {"FAULT_AT": 0, "FAULT_ERROR": 0})
        assert code == 0, said
        self.sizes[name], self.seconds[name] = (before, _bytes(self.space)), time.monotonic() - started
        self.products[name] = STEPS[name].products(self.space)
        self.writes[name] = int.from_bytes(self.counter.read_bytes(), "little")
        for folder in ("run", "models"):
            if (self.space / folder).exists() and STEPS[name].command != "run":  # which comes last, with other settings
                shutil.copytree(self.space / folder, self.made / folder, dirs_exist_ok=True)

    def empty(self, name: str) -> None:
        shutil.rmtree(self.space, ignore_errors=True)
        for folder in STEPS[name].needs:
            shutil.copytree(self.made / folder, self.space / folder)

    def run(self, name: str, fault: dict, kind: str = "", seconds: float = SECONDS) -> tuple[int, str]:
        """Exit code of a step, and what it has said on stderr. TimeoutError if it hangs. After so many seconds, what
        the kind says happens to it.
        """
        step, environment = STEPS[name], {key: str(value) for key, value in fault.items()}
        self.counter.write_bytes(bytes(8))
        self.log.unlink(missing_ok=True)
        file = self.made / "settings.json"
        file.write_text(step.settings(self.space).model_dump_json())
        paths = {"FAULT_FOLDER": self.space, "FAULT_COUNTER": self.counter, "FAULT_LOG": self.log} if fault else {}
        environment |= {key: str(path) for key, path in paths.items()}
        process = tiny_runs.FORKS.Process(target=_step, args=(step.command, file, self.said, environment))
        process.start()
        process.join(seconds)
        if kind == "kill -9 at any time":
            process.kill()
            _processes(self.space)  # of it end, too; only then it is started again
        elif kind == "volume gone":
            subprocess.run(["umount", "--lazy", self.space], check=True)
        process.join(SECONDS)
        if process.is_alive():
            os.killpg(process.pid, signal.SIGKILL)
            raise TimeoutError
        return process.exitcode, self.said.read_text()

    def trial(self, name: str, kind: str, position: int) -> dict:
        """Do a step with a fault and again without one. problem: what is wrong, None if nothing is."""
        shutil.rmtree(self.space, ignore_errors=True)
        started, share = time.monotonic(), position / self.writes[name]
        result = {"step": name, "kind": kind, "position": position, "problem": None}
        with self.mounted(kind) as mount:
            self.empty(name)
            try:
                if kind == "volume too small":
                    before, after = self.sizes[name]
                    mount(_bytes(self.space) + int(share * (after - before)) + 20_000)
                self.check(result, mount, share * self.seconds[name])
            except TimeoutError:
                result["problem"] = "hangs"
        return result | {"seconds": round(time.monotonic() - started, 1)}

    @contextmanager
    def mounted(self, kind: str) -> Iterator[Callable[[int], None]]:
        """For kinds of volumes: mount one as the workspace. The body gets a function that mounts it again, with so many
        bytes if its size matters.
        """

        def mount(*how: object) -> None:
            subprocess.run(["mount", *how, self.space], check=True)

        if not kind.startswith("volume"):
            yield lambda _size: None
            return
        shutil.rmtree(self.volume, ignore_errors=True)
        self.volume.mkdir()
        self.space.mkdir()
        folder = ["--bind", self.volume] if kind == "volume gone" else None
        mount(*(folder or ["-t", "tmpfs", "-o", "size=4g", "tmpfs"]))
        try:
            yield lambda size: mount(*(folder or ["-o", f"remount,size={size}"]))
        finally:
            subprocess.run(["umount", "--lazy", self.space])

    def check(self, result: dict, mount_again: Callable[[int], None], seconds: float) -> None:
        """Fill in what a step with a fault has done, and what is wrong with it or with its second run."""
        name, kind = result["step"], result["kind"]
        code, said = self.run(name, {"FAULT_AT": result["position"]} | KINDS[kind], kind, seconds)
        result |= {"code": code, "said": said[-2000:], "hit": self.log.read_text() if self.log.exists() else ""}
        result["problem"] = self.judge(kind, code, said)
        if kind == "volume gone" and (left := list(self.space.iterdir())):
            result["problem"] = f"in the place of the volume there are {left}"
        mount_again(4 << 30)
        again, said = self.run(name, {})
        if again:
            result |= {"problem": f"afterwards exit code {again}", "again": said[-2000:]}
        elif wrong := tiny_runs.differences(STEPS[name].products(self.space), self.products[name]):
            result["problem"] = f"afterwards other results: {wrong}"
        elif not kind.startswith(("kill", "volume gone")) and (left := [*map(str, self.space.rglob("*.tmp"))]):
            result["problem"] = f"afterwards there are {left}"
        elif orphans := _processes(self.space):
            result["problem"] = f"afterwards there run {orphans}"

    def judge(self, kind: str, code: int, said: str) -> str | None:
        """What is wrong with how a step with a fault ended: it must work, be killed, or say one sentence."""
        sentences = re.findall("^coloring-gnn: ", said, re.MULTILINE)
        if "Traceback" in said:
            return "a traceback"
        right = {"clock jumps": (), "volume gone": (2, 4)}.get(kind, (4,))
        if kind.startswith("kill -9"):
            right = (-9, 2, 5, 137) if len(sentences) <= 1 else ()
        elif len(sentences) != 1:
            right = ()
        return None if code in (0, *right) else f"exit code {code}, {len(sentences)} sentences"


def _step(command: str, settings: Path, said: Path, environment: dict[str, str]) -> None:
    """In a process of its own: do a step with these variables; stderr goes to a file."""
    os.setsid()
    os.environ.update(environment)
    with open(said, "wb") as file, open(os.devnull, "wb") as nothing:
        os.dup2(file.fileno(), 2)
        os.dup2(nothing.fileno(), 1)
    sys.exit(main([command, "--settings", str(settings)]))


def _bytes(folder: Path) -> int:
    return sum(4096 + path.stat().st_size // 4096 * 4096 for path in folder.rglob("*"))


def _processes(space: Path) -> list[str]:
    """Command lines of processes that have the workspace in their environment, five seconds after the end."""
    for _ in range(25):
        if not (found := tiny_runs.marked(f"FAULT_FOLDER={space}")):
            break
        time.sleep(0.2)
    return list(found.values())


def campaign(results: Path, trials: int, names: list[str]) -> None:
    """Draw steps, faults and positions; print what went wrong and keep all results."""
    rng = random.Random(os.environ.get("FAULT_SEED", 0))
    kinds = os.environ.get("FAULT_KINDS", ",".join(KINDS)).split(",")
    found, later = [], {"export", "evaluate", "pack"} & set(names)
    with tempfile.TemporaryDirectory() as folder:
        faults = Faults(Path(folder))
        for name in STEPS:
            if name in names or later and name in ("train", "export", "evaluate"):
                faults.prepare(name)
        while len(found) < trials:
            name = rng.choice(names)
            found.append(faults.trial(name, rng.choice(kinds), rng.randint(1, faults.writes[name])))
            results.write_text(json.dumps({"writes": faults.writes, "trials": found}, indent=1) + "\n")
            if found[-1]["problem"]:
                print(found[-1], flush=True)


if __name__ == "__main__":
    campaign(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:] or list(STEPS))
