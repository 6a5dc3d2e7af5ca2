"""What the ranks of test_launch.py do. A module of its own: it loads in a moment, in every rank of every test."""

import os
import signal
import sys
import time
from datetime import timedelta

from gnn_training.errors import MachineError


def refuse() -> None:
    raise MachineError("no: not here")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fail() -> None:
    raise ValueError("NCCL error\nLast error:\nno link\n")


FAILURES = {"refuse": refuse, "die": die, "fail": fail}


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
            rt.any(False)
    if what in FAILURES:
        FAILURES[what]() if number == 1 else time.sleep(60)
    received: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: received.append(number))
    print(f"pid {os.getpid()}\n", end="", flush=True)
    while not received:
        time.sleep(0.02)
    sys.exit(143)  # as a training does
