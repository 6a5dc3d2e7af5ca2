"""What ranks and workers do in tests. A module of its own, which every one of them loads in a moment."""

import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

from gnn_training.errors import MachineError


def rank(what: str) -> object:
    """As one of two ranks, do what the test wants."""
    number = int(os.environ["RANK"])
    if what == "place":
        return number, os.environ["WORLD_SIZE"], os.environ["OMP_NUM_THREADS"], os.environ["OMP_WAIT_POLICY"]
    if what in ("come too late", "wait too long", "freeze"):
        from gnn_training.distributed import join

        if number == 1 and what == "come too late":
            time.sleep(60)
        with join("cpu", timedelta(seconds=2)) as rt:
            if number == 1:
                os.kill(os.getpid(), signal.SIGSTOP) if what == "freeze" else time.sleep(60)
            rt.barrier()
    if what in ("refuse", "die", "fail"):
        if number == 0:
            time.sleep(60)
        if what == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        raise MachineError("no: not here") if what == "refuse" else ValueError("NCCL error\nLast error:\nno link\n")
    received: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: received.append(number))
    print(f"pid {os.getpid()}\n", end="", flush=True)
    while not received:
        time.sleep(0.02)
    sys.exit(143)  # as a training does


def threads(folder: Path) -> None:
    """As a worker, leave the number of threads that numerical libraries take."""
    import numba
    from threadpoolctl import threadpool_info

    counts = {numba.get_num_threads(), *(pool["num_threads"] for pool in threadpool_info())}
    (folder / str(os.getpid())).write_text(" ".join(map(str, counts)))


def sleep(folder: Path) -> None:
    """As a worker, leave the process number and take long."""
    (folder / str(os.getpid())).touch()
    time.sleep(60)
