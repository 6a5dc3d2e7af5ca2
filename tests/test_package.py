"""The package: its locks, what an installation without the extra [train] can do, and the installed command."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LOCKS = ("requirements.lock", "requirements-oldest.lock", "requirements-dev.lock")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize("lock", LOCKS)
def test_locks_pin_everything_by_hash_and_name_no_host(lock: str):
    text = (ROOT / lock).read_text()
    assert "://" not in text
    for entry in re.split(r"\n(?=\S)", text):
        assert re.match(r"[a-z0-9-]+==\S+ (;.*)?\\\n    --hash=sha256:[0-9a-f]{64}", entry), entry


def test_locks_hold_what_the_package_asks_for():
    base, extras = PROJECT["dependencies"], PROJECT["optional-dependencies"]
    pinned = {lock: set(re.findall(r"^([a-z0-9-]+)==", (ROOT / lock).read_text(), re.MULTILINE)) for lock in LOCKS}
    names = {extra: {re.match(r"[\w-]+", entry)[0] for entry in entries} for extra, entries in extras.items()}
    assert names["train"] | set(base) <= pinned["requirements.lock"]
    assert names["dev"] - {PROJECT["name"]} <= pinned["requirements-dev.lock"]
    assert not pinned["requirements.lock"] & pinned["requirements-dev.lock"]


# The modules that an installation without [train] can use.
BASE = """
__init__ __main__ api archive coloring console contract errors files graph hub machine processes settings
data.formats data.sources jobs.color jobs.push jobs.serve model.session solve.kernels solve.portfolio
solve.problem
"""
WITHOUT_EXTRA = """
import importlib, sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name in sys.argv[1].split():
            raise ModuleNotFoundError(f"{name} is not in the base installation", name=name)
sys.meta_path.insert(0, Missing())
for module in sys.argv[2].split():
    importlib.import_module(f"gnn_training.{module}".removesuffix(".__init__"))
"""


def test_base_installation_imports_no_package_of_the_extra():
    names = [re.match(r"[\w-]+", entry)[0].replace("-", "_") for entry in PROJECT["optional-dependencies"]["train"]]
    subprocess.run([sys.executable, "-c", WITHOUT_EXTRA, " ".join(names), BASE], env=environment(), check=True)


def environment() -> dict[str, str]:
    """The variables of this process; gnn_training comes from this checkout."""
    return os.environ | {"PYTHONPATH": str(ROOT)}


@pytest.mark.slow
def test_installed_package_colors_a_graph_without_torch(tmp_path: Path):
    """Needs the package index."""
    subprocess.run([sys.executable, "-m", "venv", tmp_path], check=True)
    pip = [tmp_path / "bin/python", "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--quiet", ROOT], check=True)
    installed = subprocess.run([*pip, "list", "--format", "json"], capture_output=True, text=True, check=True).stdout
    assert "torch" not in {package["name"] for package in json.loads(installed)}
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    graph, solution = ROOT / "examples/queen8_8.col", tmp_path / "queen8_8.sol"
    command = [tmp_path / "bin/coloring-gnn", "color", graph, "--out", solution, "--seconds", "5"]
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True)
    assert done.returncode == 0 and "9 colors" in done.stdout, done
    program = "import networkx as nx; print(nx.greedy_color(nx.path_graph(2), backend='coloring_gnn'))"
    done = subprocess.run([tmp_path / "bin/python", "-c", program], cwd=tmp_path, env=variables, capture_output=True)
    assert done.stdout == b"{0: 0, 1: 1}\n", done
    page = next(tmp_path.glob("lib/python*/site-packages/gnn_training/web"))
    command = [tmp_path / "bin/coloring-gnn", "serve"]
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True)
    assert done.returncode == 2 and f"install it once with `npm ci --prefix {page}`" in done.stderr, done
    assert (page / "package-lock.json").exists() and not (page / "node_modules").exists()
