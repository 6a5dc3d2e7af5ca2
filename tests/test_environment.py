"""run.sh and run_multigpu.sh: the environment that they install, their messages and the command that they start."""

import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import zipfile
from functools import partial
from itertools import product
from pathlib import Path

import pytest
from checkout import PartialCheckout, write_program
from tiny_runs import ROOT, wait_for

LOCK = "requirements.lock"
HASH = f"    --hash=sha256:{'0' * 64}\n"
SCRIPTS = ("run.sh", "run_multigpu.sh", "test.sh")
NAMES = ("{path}", "{name}", "bash {name}", "sh -c '{name} \"$@\"' sh", "bash {path}", "link", "bash link")
TOOLS = (
    "awk", "bash", "cat", "chmod", "dirname", "env", "find", "flock", "ls", "mkdir", "readlink", "rm", "sed",
    "sha256sum", "sleep", "tail", "tee", "touch",
)  # fmt: skip
PROGRAM = "import json, os, sys; print(json.dumps({'args': sys.argv[1:], 'preset': os.environ['GNN_TRAINING_PRESET']}))"
UV = """
echo "$*" >>{calls}
case $1 in
  venv)
    bin=${{@: -1}}/bin
    mkdir -p "$bin"
    printf '#!/bin/sh\\nexec {python} "$@"' >"$bin/python"
    chmod +x "$bin/python" ;;
  pip)
    {install} ;;
esac
"""


class Clone(PartialCheckout):
    """The real scripts, a program that only prints its arguments, and a PATH of its own."""

    def __init__(self, folder: Path):
        super().__init__(folder, *SCRIPTS, "scripts/environment.sh")
        self.env = {"PATH": str(self.bin), "HOME": str(folder)}
        (self.root / LOCK).write_text(f"torch==2.13.0 \\\n{HASH}")
        write_program(self.root / "gnn_training/__main__.py", PROGRAM)
        self.tool("python3", f'exec {sys.executable} "$@"')
        for tool in TOOLS:
            (self.bin / tool).symlink_to(shutil.which(tool))
        self.uv()
        self.tool("df", "printf 'Filesystem\\n/dev/x 99999 0 99999 0%% /\\n'")  # whatever this machine has free

    def uv(self, install: str = "true") -> None:
        """A uv that notes its calls, makes an environment at once and does `install` for `uv pip install`."""
        self.tool("uv", UV.format(calls=self.calls, python=sys.executable, install=install))

    def start(self, script: str = "run.sh", *flags: str, **env: str) -> subprocess.CompletedProcess[str]:
        return super().start(script, *flags, env=self.env | env)


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path)


def assert_refused(done: subprocess.CompletedProcess[str], *words: str) -> None:
    """Exit code 2 and one sentence of help, after the lines about progress."""
    progress = ("Making the environment", "Installing", "  ")
    lines = [line for line in done.stderr.splitlines() if not line.startswith(progress)]
    assert (done.returncode, len(lines), done.stdout) == (2, 1, ""), done
    for word in words:
        assert word in lines[0]


def test_only_the_first_start_and_one_with_a_changed_lock_install_and_show_large_packages(clone: Clone):
    clone.uv(install="echo '   Downloading torch (506.0MiB)'; echo ' + torch==2.13.0'")
    progress = f"Installing {LOCK} ...\n  torch 506.0MiB\n"
    assert re.fullmatch(f"Making the environment .*\n{progress}", clone.start().stderr)
    assert clone.start().stderr == ""
    (clone.root / LOCK).write_text("numpy==2.0\n")
    assert clone.start().stderr == progress
    installs = clone.called("pip install")
    assert len(installs) == 2 and all("--no-deps --require-hashes" in call for call in installs)


def test_after_the_installation_there_are_the_help_and_the_command_of_the_program(clone: Clone):
    clone.start()
    (clone.bin / "link").symlink_to(clone.root / "run.sh")
    helped = ["run", "--help"]
    commands = {
        ("run.sh", "--help"): helped,
        ("../../bin/link", "--help"): helped,
        (".venv/bin/coloring-gnn", "b"): ["b"],
    }
    for command, args in commands.items():
        assert json.loads(clone.start(*command, GNN_TRAINING_PRESET="cpu").stdout)["args"] == args
    assert "./test.sh --all" in clone.start("test.sh", "--help").stdout


@pytest.mark.parametrize(
    ("script", "command"), [*(("run.sh", name) for name in NAMES), *product(SCRIPTS[1:], ("{name}", "link"))]
)
def test_a_script_helps_before_it_installs_and_starts_from_any_folder(clone: Clone, script: str, command: str):
    """Named by its path, by PATH, by bash, which finds it by PATH, too, or by a link to it."""
    program = "import os, sys; print(os.getcwd(), sys.argv[1:][-2:]); sys.exit(143)"
    (clone.root / "gnn_training/__main__.py").write_text(program)
    (clone.bin / "link").symlink_to(clone.root / script)
    (clone.bin / "sh").symlink_to(shutil.which("sh"))
    words = shlex.split(command.format(path=clone.root / script, name=script))
    start = partial(
        subprocess.run, cwd=clone.bin.parent, env=clone.env | {"PATH": f"{clone.bin}:{clone.root}"},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    done = start([*words, "--help"])
    assert done.returncode == 0 and f"{script} --" in done.stdout, done
    assert not (clone.root / ".venv").exists()
    if script != "test.sh":
        done = start([*words, "--data", "my graphs"])
        assert (done.stdout, done.returncode) == (f"{clone.bin.parent} ['--data', 'my graphs']\n", 143), done


@pytest.mark.parametrize(
    ("command", "smi", "preset", "args"),
    [
        (["run.sh"], None, "cpu", ["run"]),
        (["run.sh", "--seed", "1"], "nvidia-smi", "single", ["run", "--seed", "1"]),
        (["run.sh"], "amd-smi", "single", ["run"]),
        (["run_multigpu.sh"], "nvidia-smi", "multi", ["run"]),
        (["run_multigpu.sh", "3", "--seed", "1"], "nvidia-smi", "multi", ["run", "--ranks", "3", "--seed", "1"]),
    ],
)
def test_scripts_take_the_preset_that_fits_the_gpus(clone: Clone, command, smi, preset, args):
    (clone.root / "torch.py").write_text("class cuda:\n    device_count = staticmethod(lambda: 4)")
    if smi:
        clone.tool(smi, "exit 0")
    assert json.loads(clone.start(*command).stdout) == {"args": args, "preset": preset}


def test_torch_index_url_brings_torch_from_there_and_the_rest_from_the_lock(clone: Clone):
    lock = clone.root / LOCK
    lock.write_text(f"numpy==2.0 \\\n{HASH}{lock.read_text()}")
    clone.uv(install="cat ${@: -1} 2>/dev/null >>${0%/bin/uv}/contents || true")
    assert clone.start(TORCH_INDEX_URL="https://example.org/cpu").returncode == 0
    contents = (clone.bin.parent / "contents").read_text()
    assert "numpy" in contents and "torch" not in contents.partition("torch==2.13.0")[0]
    rest, torch = clone.called("pip install")
    assert "--require-hashes" in rest and rest.endswith(f".venv/tmp/{LOCK}")
    assert torch.endswith("--index-url https://example.org/cpu torch==2.13.0")


def test_torch_version_is_taken_instead_of_the_locked_one_with_the_searches_on_gpus_for_its_cuda(clone: Clone):
    with open(clone.root / LOCK, "a") as lock:
        lock.write(f"numba-cuda==0.30.4 ; sys_platform == 'linux' \\\n{HASH}")
    for cuda, numba_cuda in (("12.8", ["numba-cuda[cu12]==0.30.4 cuda-toolkit==12.8.*"]), ("", [])):
        (clone.root / "torch.py").write_text(f"from types import SimpleNamespace as S\nversion = S(cuda={cuda!r})\n")
        shutil.rmtree(clone.root / ".venv", ignore_errors=True)
        clone.calls.unlink(missing_ok=True)
        said = clone.start(TORCH_VERSION="2.11.0").stderr
        assert said.endswith(f"\nInstalling {LOCK}, torch and its libraries without hashes ...\n")
        calls = [call.partition(f"{clone.root}/.venv/bin/python ")[2] for call in clone.called("pip install")]
        assert calls[1:] == ["torch==2.11.0", *numba_cuda]


def test_set_up_killed_half_way_is_repaired_by_the_next_start(clone: Clone):
    clone.uv(install="sleep 60")
    first = subprocess.Popen([clone.root / "run.sh"], env=clone.env, start_new_session=True, stderr=subprocess.DEVNULL)
    wait_for(lambda: clone.called("pip install"))
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    clone.uv()
    assert clone.start().returncode == 0
    assert len(clone.called("venv")) == 2


def test_two_first_starts_share_one_set_up(clone: Clone):
    clone.uv(install="sleep 0.5")
    first = subprocess.Popen([clone.root / "run.sh"], env=clone.env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    wait_for(lambda: clone.called("pip install"))
    second = clone.start()
    first.communicate()
    assert first.returncode == second.returncode == 0
    assert second.stderr.startswith("Waiting for another start")
    assert len(clone.called("pip install")) == 1


@pytest.mark.parametrize(
    ("python", "words"),
    [
        ("exit 127", ("Python 3.11 or newer is needed:", "apt install python3")),
        (
            'case "$*" in *"print("*) echo 3.9 ;; *) exit 1 ;; esac',
            ("Python 3.11 or newer is needed and python3 is 3.9", "apt install python3"),
        ),
        (
            f'case "$*" in *ensurepip*) exit 1 ;; esac\nexec {sys.executable} "$@"',
            ("no venv module", f"apt install python3.{sys.version_info.minor}-venv"),
        ),
    ],
)
def test_missing_or_old_python_and_one_without_venv_are_refused(clone: Clone, python: str, words: tuple[str, str]):
    (clone.bin / "uv").unlink()
    clone.tool("python3", python)
    assert_refused(clone.start(), *words)


def test_little_disk_is_refused_before_the_download(clone: Clone):
    clone.tool("df", "printf 'Filesystem\\n/dev/x 9999 5000 4999 50%% /\\n'")
    assert_refused(clone.start(), "4 GiB free", "needs 6", "GNN_VENV", "TORCH_INDEX_URL")
    assert_refused(clone.start(TORCH_INDEX_URL="https://example.org/rocm7.2"), "4 GiB free", "needs 30")
    assert not clone.calls.exists()
    assert clone.start(TORCH_INDEX_URL="https://example.org/cpu").returncode == 0


def test_folder_that_cannot_be_made_or_has_other_files_is_refused_and_left_alone(clone: Clone, tmp_path: Path):
    (tmp_path / "home").mkdir()
    thesis = tmp_path / "home/.thesis"
    thesis.touch()
    assert_refused(clone.start(GNN_VENV=str(thesis.parent)), "holds other files", "GNN_VENV")
    assert_refused(clone.start(GNN_VENV=f"{thesis}/venv"), "cannot write", "GNN_VENV")
    assert thesis.exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("OSError: [Errno 28] No space left on device", "the disk is full"),
        ("  × Hash mismatch for `numpy==2.0`", "not the one that the lock names"),
        ("Caused by: dns error: failed to lookup address information", "cannot be reached"),
        ("ERROR: Could not find a version that satisfies numpy==2.0 (from versions: none)", "cannot be reached"),
        ("× No solution found when resolving dependencies", "no build for this Python"),
        ("error: something odd", "the installation failed"),
    ],
)
def test_failed_installation_is_explained_in_one_sentence_and_repaired_by_the_next_start(clone, words, sentence):
    clone.uv(install=f"echo '{words}'; exit 1")
    assert_refused(clone.start(), sentence, "install.log")
    assert words in (clone.root / ".venv/install.log").read_text()
    clone.uv()
    assert clone.start().returncode == 0


@pytest.mark.slow
def test_pip_serves_where_there_is_no_uv_and_refuses_another_package_than_the_locked_one(clone: Clone, tmp_path: Path):
    (clone.bin / "uv").unlink()
    file = tmp_path / "tiny-1.0-py3-none-any.whl"  # which pip installs without any network
    with zipfile.ZipFile(file, "w") as wheel:
        wheel.writestr("tiny.py", "")
        wheel.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        wheel.writestr("tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("tiny-1.0.dist-info/RECORD", "tiny.py,,\n")
    for digest in ("0" * 64, hashlib.sha256(file.read_bytes()).hexdigest()):
        (clone.root / LOCK).write_text(f"tiny==1.0 --hash=sha256:{digest}\n")
        done = clone.start(PIP_NO_INDEX="1", PIP_FIND_LINKS=str(tmp_path))
        if digest == "0" * 64:
            assert_refused(done, "not the one that the lock names")
    assert done.returncode == 0
    assert list((clone.root / ".venv").glob("lib/*/site-packages/tiny.py"))


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs a git checkout to clone")
def test_a_checkout_for_windows_keeps_the_line_ends_of_scripts(tmp_path: Path):
    subprocess.run(["git", "clone", "-q", "-c", "core.autocrlf=true", ROOT, tmp_path / "clone"], check=True)
    scripts = [*tmp_path.glob("clone/*.sh"), *tmp_path.glob("clone/*/*.sh"), *tmp_path.glob("clone/*/slurm.sbatch")]
    assert len(scripts) > 8
    for script in [*scripts, tmp_path / "clone/.ci/run"]:
        subprocess.run(["bash", "-n", script], check=True)
    env = {**os.environ, "GNN_VENV": sys.prefix}
    command = [tmp_path / "clone/run.sh", "--dry-run"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "gnn_training train" in done.stdout, done
