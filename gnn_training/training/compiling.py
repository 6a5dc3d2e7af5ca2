"""Compiled refinement rounds: one kernel where there were twenty, in one form for all sizes of graphs."""

import os
import shutil
import sysconfig
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
import torch._dynamo
import torch._inductor.codegen.cpp

from gnn_training.model.graphs import Graphs
from gnn_training.model.network import Refiner


def compile_rounds(refiner: Refiner) -> None:
    """Let torch compile a round when it first runs. The result lies in a cache that later processes read."""
    # Else batches of as many graphs as colors, or of more than 4096 cells, would each be compiled in a form of their
    # own, which takes a minute. (The second adds long sums up in chunks; a few digits more than training needs.)
    torch.fx.experimental._config.use_duck_shape = False
    torch._inductor.codegen.cpp.CppKernel.need_use_acc_helper = lambda *_: False
    torch._dynamo.config.suppress_errors = True  # a compiler that fails is said, and the rounds run as written
    refiner.compile(dynamic=True)


def obstacle(device: torch.device) -> str | None:
    """What this machine lacks to compile for the device, in C++ for a CPU and in C around the kernels of a GPU."""
    variable, usual = ("CXX", "g++") if device.type == "cpu" else ("CC", "gcc")
    if not shutil.which(os.environ.get(variable, usual)):
        return "there is no C++ compiler (Debian: apt install g++)"
    header = Path(sysconfig.get_path("include"), "Python.h")
    return None if header.exists() else f"{header} is missing (Debian: apt install python3-dev)"


def as_written(graphs: Graphs) -> AbstractContextManager:
    """For graphs that stand alone, too rare to compile another form for: run the rounds as they are written."""
    return torch.compiler.set_stance("force_eager") if len(graphs.mask) == 1 else nullcontext()
