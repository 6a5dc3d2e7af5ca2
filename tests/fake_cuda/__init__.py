"""GPUs that torch takes for real ones, see fake_cuda.cpp: to see what the host does with GPUs where there are none."""

import importlib.util
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import fake_gpus
import torch
from tiny_runs import ROOT

HERE = Path(__file__).parent
LIBRARY = "libcuda.so.1"


def build(folder: Path) -> None:
    """Compile the library into `folder`."""
    (nvidia,) = importlib.util.find_spec("nvidia").submodule_search_locations  # type: ignore[union-attr, misc]
    include = next(Path(nvidia).glob("cu*/include/cuda.h")).parent
    folder.mkdir()
    flags = ["-std=c++17", "-O1", "-shared", "-fPIC", "-w", f"-I{include}", f"-I{HERE}", "-o", folder / LIBRARY]
    subprocess.run(["g++", *flags, HERE / "fake_cuda.cpp", "-ldl"], check=True)
    for name in ("libcuda.so", "libnvidia-ml.so.1"):
        (folder / name).symlink_to(LIBRARY)
    for gpus in (1, 2, 8):
        (folder / str(gpus)).mkdir()
        fake_gpus.nvidia_smi(folder / str(gpus), gpus)


@dataclass(frozen=True)
class FakeCuda:
    """The library, and a folder for what processes write."""

    library: Path
    folder: Path

    def environment(self, gpus: int = 1, **options: object) -> dict[str, str]:
        """Variables of a process that sees so many GPUs. options: `kind` and others of the library, and variables."""
        (self.folder / "cuda").mkdir(exist_ok=True)
        shared = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
        variables = {
            "PATH": f"{self.library / str(gpus)}:{os.environ['PATH']}", "PYTHONPATH": f"{ROOT}:{HERE / 'site'}",
            "LD_PRELOAD": self.library / LIBRARY, "LD_LIBRARY_PATH": self.library, "OMP_NUM_THREADS": 1,
            "FAKE_CUDA_DEVICES": gpus, "FAKE_CUDA_LOG": self.folder / "cuda",
            **{f"FAKE_CUDA_{name.upper()}" if name.islower() else name: value for name, value in options.items()},
        }  # fmt: skip
        return shared | {name: str(value) for name, value in variables.items()}

    def run(self, *arguments: object, gpus: int = 1, **options: object) -> str:
        """Run Python with these arguments to its end; what it has printed."""
        command, environment = [sys.executable, *map(str, arguments)], self.environment(gpus, **options)
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    def logs(self) -> list[str]:
        """Of every process that used a GPU: its rank, the devices with launches and memory, and problems."""
        return [file.read_text() for file in sorted((self.folder / "cuda").glob("*.txt"))]


def why_not() -> str | None:
    """Why the library cannot be built here."""
    if torch.version.cuda is None:
        return "torch is a build for CPUs"
    return None if importlib.util.find_spec("numba_cuda") else "there is no numba-cuda"
