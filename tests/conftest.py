"""Products that many tests look at, made once per session, whichever pytest-xdist worker is first to ask."""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import debian
import fake_cuda
import hypothesis
import pytest
import tiny_onnx
import tiny_runs
import torch
from filelock import FileLock
from playwright.sync_api import Browser, sync_playwright

from gnn_training import distributed, run_files
from gnn_training.data.packed import PackedGraphs
from gnn_training.jobs.evaluate import evaluate
from gnn_training.jobs.export import export
from gnn_training.jobs.pack import pack
from gnn_training.jobs.train import train
from gnn_training.network.network import ColoringNetwork
from gnn_training.onnx_program.session import Model
from gnn_training.search.portfolio import compile_all
from gnn_training.settings import EvaluateSettings, ExportSettings, PackSettings

# A runner in the background ignores Ctrl-C, or SIGHUP, and hands that down to every process that the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start with the tests of the image, which take longest, and end with files of quick tests, so that both processes
    end together.
    """
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (item.get_closest_marker("container") is None, item.path not in slow))


# Tests share the cores of a small machine: how long an example takes says nothing. Without FUZZ_SEED, examples are
# always the same, so that no test fails by chance.
always = "FUZZ_SEED" not in os.environ
hypothesis.settings.register_profile("quick", deadline=None, max_examples=60, derandomize=always)
hypothesis.settings.load_profile("quick")

Once = Callable[[str, Callable[[Path], object]], Path]


@pytest.fixture(autouse=True)
def signal_handlers() -> Iterator[None]:
    """Those before a test come back after it: a training in this process replaces them."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def compiled() -> None:
    """The compiled search, so that the first test with a time limit does not wait for the compiler."""
    compile_all()


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Once:
    """once(name, make): a folder of the session that `make(folder)` has filled, in this process or another."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def once(name: str, make: Callable[[Path], object]) -> Path:
        with FileLock(shared / f"{name}.lock"):
            if not (shared / f"{name}.made").exists():
                make(shared / name)
                (shared / f"{name}.made").touch()
        return shared / name

    return once


@pytest.fixture(scope="session")
def tiny_data(once: Once) -> Path:
    """Folder of 24 packed graphs, see tiny_runs.write_data."""
    return once("tiny-data", tiny_runs.write_data)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ONNX file with the contract's inputs and outputs and no network inside, see tiny_onnx."""
    return tiny_onnx.write(tmp_path_factory.mktemp("model") / "coloring_gnn.onnx")


@pytest.fixture(scope="session")
def model(tiny_model: Path) -> Model:
    """That file, in ONNX Runtime."""
    return Model(tiny_model, threads=1)


@pytest.fixture
def network() -> ColoringNetwork:
    """A network before any training, always the same."""
    torch.manual_seed(0)
    return ColoringNetwork()


@pytest.fixture(scope="session")
def trained(once: Once, tiny_data: Path) -> Path:
    """Run folder of an uninterrupted training with tiny_runs.settings."""

    def make(folder: Path) -> None:
        assert tiny_runs.finish(train, tiny_runs.settings(tiny_data, folder)) == 0

    return once("tiny-run", make)


@pytest.fixture(scope="session")
def exported(once: Once, trained: Path) -> Path:
    """Folder with coloring_gnn.onnx of that training and what belongs to it."""
    return once("tiny-models", lambda folder: export(ExportSettings(run=trained, models=folder, rounds=24)))


@pytest.fixture(scope="session")
def archive(once: Once, trained: Path, exported: Path, tiny_data: Path) -> Path:
    """The archive of that model, evaluated, in a folder with the model's files."""

    def make(folder: Path) -> None:
        run, models = (Path(shutil.copytree(source, folder / source.name)) for source in (trained, exported))
        model, report = models / "coloring_gnn.onnx", run / "report.json"
        evaluate(EvaluateSettings(graphs=tiny_data, model=model, limit=1, report=report, threads=1, tabucol=True))
        pack(PackSettings(run=run, models=models))

    return once("tiny-archive", make) / exported.name / run_files.ARCHIVE


@pytest.fixture(scope="session")
def modules() -> Path:
    """The packages that the page for browsers needs, fetched once per checkout."""
    web = Path(__file__).parents[1] / "clients" / "web"
    with FileLock(Path(tempfile.gettempdir(), "gnn-training-npm.lock")):
        if not (web / "node_modules" / ".package-lock.json").exists():  # npm writes it last
            subprocess.run([debian.command("npm"), "ci", "--prefix", web], check=True, stdout=subprocess.DEVNULL)
    return web / "node_modules"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Chromium, which finds no host but this machine."""
    flags = ["--disable-gpu", "--disable-quic", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]
    with sync_playwright() as driver:
        yield driver.chromium.launch(executable_path=debian.command("chromium"), args=flags)


@pytest.fixture
def gpus(once: Once, tmp_path: Path) -> fake_cuda.FakeCuda:
    """GPUs that compute nothing, see fake_cuda."""
    if reason := fake_cuda.why_not():
        pytest.skip(reason)
    return fake_cuda.FakeCuda(once("fake-cuda", fake_cuda.build), tmp_path)


@pytest.fixture
def data(tiny_data: Path) -> PackedGraphs:
    return PackedGraphs.open(tiny_data)


@pytest.fixture(scope="module")
def rt() -> Iterator[distributed.Runtime]:
    """A group of one on the CPU."""
    with distributed.join("cpu") as rt:
        yield rt
