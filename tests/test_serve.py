"""`serve` sends the files of the page and nothing else, on this machine alone, and says what is missing."""

import http.client
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from checkout import answers
from tiny_runs import ROOT

from gnn_training.__main__ import main
from gnn_training.contract import SHIPPED_MODEL, WEB_FILE
from gnn_training.jobs import serve as job

TYPES = {
    "/": "text/html; charset=utf-8", "/index.html": "text/html; charset=utf-8", "/style.css": "text/css",
    "/icon.svg": "image/svg+xml", f"/{WEB_FILE}": "application/octet-stream",
    **{f"/{name}.js": "text/javascript" for name in ("color", "graph", "page", "picture", "worker")},
    "/runtime/ort.wasm.bundle.min.mjs": "text/javascript",
    "/runtime/ort-wasm-simd-threaded.wasm": "application/wasm",
}  # fmt: skip


@pytest.fixture
def runtime(tmp_path: Path) -> Path:
    """A folder with the names of ONNX Runtime's files."""
    folder = tmp_path / "dist"
    folder.mkdir()
    for name in job.RUNTIME_FILES:
        (folder / name).write_text(f"the file {name}")
    return folder


@pytest.fixture
def server(runtime: Path) -> Iterator[tuple[subprocess.Popen, int]]:
    """The process and its port."""
    command = [sys.executable, "-m", "gnn_training", "serve", "--port", "0", "--runtime", str(runtime)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        line = process.stdout.readline()
        yield process, int(re.search(r"http://127\.0\.0\.1:(\d+) shows the page", line)[1])
        process.kill()


def get(port: int, path: str, **headers: str) -> tuple[int, str | None, bytes]:
    """Status, type and content of an answer; http.client sends the path as it is."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.getheader("Content-Type"), answer.read()


def test_it_sends_the_page_the_model_and_the_runtime_and_nothing_else_on_this_machine_alone(server, runtime: Path):
    _, port = server
    for path, kind in TYPES.items():
        assert get(port, path)[:2] == (200, kind)
    assert set(job.served_files(job.ServeSettings(runtime=runtime))) == set(TYPES)
    assert get(port, f"/{WEB_FILE}?again")[2] == SHIPPED_MODEL.with_name(WEB_FILE).read_bytes()
    for path in ("/package.json", "/../rust/Cargo.toml", "/runtime/../package.json", "//etc/passwd", "/runtime/", "/x"):
        assert get(port, path)[0] == 404
    # A name of somebody else for this machine is refused.
    assert [get(port, "/", Host=f"{host}:{port}")[0] for host in ("localhost", "evil.example")] == [200, 403]
    assert not answers(port, "127.0.0.2")  # this machine, too, but not the address it listens on
    pipe = runtime / job.RUNTIME_FILES[0]
    pipe.unlink()
    os.mkfifo(pipe)
    assert get(port, f"/runtime/{pipe.name}")[0] == 404  # and does not wait for a writer


def test_nothing_is_said_of_a_browser_that_goes_away(capsys):
    with socket.socket() as connection, job.PageServer(("127.0.0.1", 0), job.PageHandler) as server:
        for error, is_shown in ((ConnectionResetError(), False), (RuntimeError("a mistake"), True)):
            try:
                raise error
            except Exception:
                server.handle_error(connection, ("127.0.0.1", 1))
            assert ("a mistake" in capsys.readouterr().err) == is_shown


def test_sigterm_ends_it_well(server):
    """tests/test_web.py has SIGINT."""
    process, port = server
    process.terminate()
    assert process.wait(10) == 0
    assert not answers(port)


def test_what_is_missing_or_taken_is_named_with_the_way_out(runtime: Path, tmp_path: Path, monkeypatch, capsys):
    def refused(code: int, *flags: str | Path) -> str:
        assert main(["serve", *map(str, flags)]) == code
        return capsys.readouterr().err

    said = refused(2, "--runtime", tmp_path)
    assert f"{tmp_path}: ONNX Runtime for browsers is not there; install it once with `npm ci --prefix " in said
    said = refused(2, "--runtime", runtime, "--models", tmp_path)
    assert f"{tmp_path}/{WEB_FILE}: there is no such file; export again" in said
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = refused(3, "--runtime", runtime, "--port", str(port))
    assert f"port {port}: address already in use; name another with --port" in said
    monkeypatch.setattr(job, "PAGES", (tmp_path / "web",))
    assert "start serve in a clone, or install the package" in refused(2, "--runtime", runtime)


def test_an_installation_finds_the_runtime_in_the_clone(runtime: Path, tmp_path: Path, monkeypatch):
    installed = tmp_path / "site-packages"
    shutil.copytree(ROOT / "clients/web", installed, ignore=shutil.ignore_patterns("node_modules"))
    shutil.copytree(runtime, tmp_path / "clients/web/node_modules/onnxruntime-web/dist")
    monkeypatch.setattr(job, "PAGES", (installed,))
    monkeypatch.chdir(tmp_path)
    assert set(job.served_files(job.ServeSettings())) == set(TYPES)
