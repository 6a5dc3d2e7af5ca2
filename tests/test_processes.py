"""No process below a supervisor outlives the one that started it, however early that one dies."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gnn_training.processes import Supervisor

ROOT = Path(__file__).parents[1]
PARENT = """
import os, subprocess, sys
subprocess.Popen([sys.executable, *sys.argv[1:], str(os.getpid())], start_new_session=True)
"""
RANK = """
import os, sys, time
from gnn_training.processes import die_with_parent_if_supervised
said, when, parent = sys.argv[1:]
with open(said, "w") as file:
    file.write("is there")
    file.flush()
    while when == "late" and os.getppid() == int(parent):
        time.sleep(0.01)
    die_with_parent_if_supervised()
    file.write(", lives")
"""


@pytest.mark.parametrize(("waits", "when", "heard"), [(True, "early", "is there, lives"), (False, "late", "is there")])
def test_rank_whose_parent_died_before_it_was_ready_dies_too(tmp_path: Path, waits: bool, when: str, heard: str):
    (tmp_path / "parent.py").write_text(PARENT + ("os.wait()\n" if waits else ""))
    (tmp_path / "rank.py").write_text(RANK)
    said = tmp_path / "said"
    os.mkfifo(said)
    with ThreadPoolExecutor() as pool, Supervisor() as supervisor:
        all_of_it = pool.submit(said.read_text)  # ends when nobody is left to write
        arguments = [*map(str, (tmp_path / "parent.py", tmp_path / "rank.py", said)), when]
        assert supervisor.run(arguments, PYTHONPATH=str(ROOT)) == 0
        assert all_of_it.result() == heard
