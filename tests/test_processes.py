"""Processes: none outlives the one that started it, and signals reach them."""

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from children import threads
from tiny_runs import ROOT, assert_end, wait_for

from gnn_training import processes
from gnn_training.errors import UserError
from gnn_training.files import read_json

PARENT = """
import sys
from gnn_training.processes import interruptible, run_python
try:
    with interruptible():
        print(run_python(["-c", sys.argv[1]]))
except KeyboardInterrupt as interrupt:
    sys.exit(128 + interrupt.args[0])
"""
STARTS_A_SLEEPER = """
import subprocess
child = subprocess.Popen(["sleep", "60"])
print("started", child.pid, flush=True)
child.wait()
"""
ENDS_NEVER = """
import signal, time
signal.signal(signal.SIGTERM, lambda *_: print("noticed", flush=True))
print("started 0", flush=True)
while True: time.sleep(1)
"""


def start_parent(script: str) -> tuple[subprocess.Popen[str], int]:
    """A process whose child runs `script`, which prints "started" and the process to watch."""
    command = [sys.executable, "-c", PARENT, script]
    default = partial(signal.signal, signal.SIGHUP, signal.SIG_DFL)  # which nohup ignores, and so would the process
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, preexec_fn=default)
    assert process.stdout is not None
    return process, int(process.stdout.readline().removeprefix("started "))


@pytest.mark.parametrize(("parent", "code"), [("os.getppid()", 0), ("0", -signal.SIGKILL)])
def test_child_whose_parent_died_before_it_was_ready_dies_too(parent: str, code: int):
    program = f"import os; from gnn_training.processes import die_with_parent; die_with_parent({parent})"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT).returncode == code


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signal_to_the_parent_ends_the_child_and_its_children(number: signal.Signals):
    process, sleeper = start_parent(STARTS_A_SLEEPER)
    process.send_signal(number)
    assert process.wait(timeout=20) == 128 + number
    assert_end([sleeper])


def test_second_signal_kills_a_child_that_does_not_end():
    process, _ = start_parent(ENDS_NEVER)
    process.terminate()
    assert process.stdout is not None and process.stdout.readline() == "noticed\n"
    process.terminate()
    assert process.wait(timeout=20) == 143


@pytest.mark.parametrize("name", ["INT", "HUP"])
def test_signal_that_the_shell_has_turned_off_stays_off(name: str):
    program = "import os, signal; from gnn_training.processes import interruptible\n"
    program += f"with interruptible(): os.kill(os.getpid(), signal.SIG{name})"
    ignoring = ["sh", "-c", f'trap "" {name}; exec "$@"', "sh", sys.executable, "-c", program]
    subprocess.run(ignoring, cwd=ROOT, check=True)


def test_no_child_outlives_a_parent_that_is_killed():
    process, child = start_parent("import os, time; print('started', os.getpid(), flush=True); time.sleep(60)")
    process.kill()
    process.wait()
    assert_end([child])


def test_exit_code_is_returned():
    assert processes.run_python(["-c", "raise SystemExit(1)"]) == 1
    assert processes.run_python(["-c", "import os; os.kill(os.getpid(), 9)"]) == 137


def test_python_beside_the_body_ends_with_it(tmp_path: Path):
    with processes.python(["-c", "import time; time.sleep(60)"], tmp_path / "errors") as child:
        assert child.poll() is None
    assert child.returncode == -signal.SIGTERM


def test_workers_have_one_thread_each(tmp_path: Path):
    assert sorted(processes.run_in_processes(threads, [(tmp_path,)] * 3, workers=2)) == [0, 1, 2]
    assert {path.read_text() for path in tmp_path.iterdir()} == {"1"}


@pytest.mark.parametrize(
    ("function", "argument", "sentence"),
    [(signal.raise_signal, signal.SIGKILL, "a process was killed, perhaps"), (read_json, Path("x"), "cannot be read")],
)
def test_worker_that_fails_ends_all_with_a_sentence(function, argument: object, sentence: str):
    with pytest.raises(UserError, match=sentence):
        list(processes.run_in_processes(function, [(argument,)] * 2, workers=1))


def test_workers_end_at_once_with_their_parent(tmp_path: Path):
    program = (
        "import signal, sys; from pathlib import Path; from children import sleep; "
        "from gnn_training.processes import run_in_processes\n"
        "if __name__ == '__main__': list(run_in_processes(sleep, [(Path(sys.argv[1]),)] * 2, workers=2))"
    )
    (tmp_path / "program.py").write_text(program)
    (tmp_path / "workers").mkdir()
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    for number in (signal.SIGKILL, signal.SIGINT):
        command = [sys.executable, tmp_path / "program.py", tmp_path / "workers"]
        parent = subprocess.Popen(command, env=environment, process_group=0, stderr=subprocess.PIPE, text=True)
        wait_for(lambda: len(list((tmp_path / "workers").iterdir())) == 2, parent)
        parent.kill() if number == signal.SIGKILL else os.killpg(parent.pid, number)  # as a terminal does
        assert parent.communicate(timeout=20)[1].count("Traceback") == (number == signal.SIGINT)  # workers say nothing
        for worker in (tmp_path / "workers").iterdir():
            assert_end([int(worker.name)])
            worker.unlink()
