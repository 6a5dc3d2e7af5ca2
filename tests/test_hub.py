"""Models on the Hugging Face Hub: a real push and real fetches, in other processes, against a server on loopback that
follows the Hub's protocol.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import hub_server
import pytest
import torch
import yaml
from dimacs import queens, read_solution
from safetensors.torch import load
from tiny_runs import ROOT

from gnn_training import hub
from gnn_training.contract import SUMS_FILE, WEIGHTS_FILE
from gnn_training.errors import UserError
from gnn_training.files import checksums, read_archive, write_archive
from gnn_training.graph import is_proper
from gnn_training.jobs.push import dry_run
from gnn_training.settings import PushSettings

# Reads names of models, prints for each its file or why it cannot be fetched.
FETCH = """
import sys
from gnn_training.hub import UserError, model_file
for name in sys.stdin:
    try:
        print(model_file(name.strip()), flush=True)
    except UserError as error:
        print(error, flush=True)
"""
PUSHED = {"README.md", SUMS_FILE, *hub.FILES}


@pytest.fixture(scope="module")
def server() -> Iterator[hub_server.Hub]:
    with hub_server.running(hub_server.Hub()) as server:
        yield server


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The variables of all processes: an empty cache and no token of this machine."""
    for name in [name for name in os.environ if name.startswith("HF_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.fixture
def online(server: hub_server.Hub, monkeypatch: pytest.MonkeyPatch) -> hub_server.Hub:
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    return server


@pytest.fixture(scope="module")
def fetch(server: hub_server.Hub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    """fetch(name): what FETCH prints, in one process with one cache for all tests."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    variables |= {"HF_HOME": str(tmp_path_factory.mktemp("cache")), "HF_ENDPOINT": server.url, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", FETCH]
    with subprocess.Popen(command, env=variables, stdin=-1, stdout=-1, text=True, bufsize=1) as process:

        def ask(name: str) -> str:
            process.stdin.write(f"{name}\n")
            return process.stdout.readline().rstrip("\n")

        yield ask
        process.stdin.close()


def python(*arguments: str | Path, stdin: str = "", **variables: str) -> subprocess.CompletedProcess:
    """Run Python; what it prints has no token."""
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, env=os.environ | variables, input=stdin, capture_output=True, text=True)
    assert "hf_" not in done.stdout + done.stderr.replace("hf_hub", "") and "Traceback" not in done.stderr, done
    return done


def fetched_with(name: str, **variables: str) -> str:
    """What FETCH prints in a process of its own."""
    [line] = python("-c", FETCH, stdin=name, **variables).stdout.splitlines()
    return line


def put(server: hub_server.Hub, name: str, **changes: bytes) -> hub_server.Repository:
    """Make a repository of small files with right checksums, and then change files of it."""
    files = {file: file.encode() for file in hub.FILES}
    files[SUMS_FILE] = checksums(files).encode()
    server.repositories[name] = hub_server.Repository([files | changes])
    return server.repositories[name]


def push(repo: str, archive: Path, *flags: str, token: str = hub_server.TOKEN) -> subprocess.CompletedProcess:
    return python("-m", "gnn_training", "push", repo, "--archive", archive, *flags, HF_TOKEN=token)


@pytest.mark.slow  # trains, exports and evaluates
def test_a_pushed_model_is_fetched_checked_and_used_also_without_the_hub(archive: Path, tmp_path: Path, monkeypatch):
    with hub_server.running(hub_server.Hub()) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        done = push("me/tiny", archive)
        pinned = re.search(r"hf://me/tiny@[0-9a-f]{40}$", done.stdout)[0]
        (files,) = server.repositories["me/tiny"].commits
        assert files.keys() == PUSHED
        packed = read_archive(archive)
        assert all(files[name] == packed[name] for name in hub.FILES if name not in (WEIGHTS_FILE, "report.json"))
        (tmp_path / "best.pt").write_bytes(packed["best.pt"])
        shown = push("me/tiny", archive, "--dry-run")
        assert shown.returncode == 0 and files["README.md"].decode().strip() in shown.stdout, shown
        assert len(server.repositories["me/tiny"].commits) == 1
        weights, best = load(files[WEIGHTS_FILE]), torch.load(tmp_path / "best.pt")["network"]
        assert weights.keys() == best.keys() and all(torch.equal(weights[name], best[name]) for name in best)

        _, head, text = files["README.md"].decode().split("---\n", 2)
        card, summary = yaml.safe_load(head), (report := json.loads(files["report.json"]))["summary"]
        assert {**report, "picture": None} == {**json.loads(packed["report.json"]), "picture": None}
        assert "picture" not in report  # a graph of the user
        assert "pip install '.[hub]'" in text and report["verdict"] and report["verdict"] in text
        assert (card["library_name"], card["license"], card["pipeline_tag"]) == ("coloring-gnn", "mit", "graph-ml")
        scores = [f"{summary['methods']['one_call'][name]:.2f}" for name in ("mean_gap", "mean_colors")]
        assert f"\n| one call | {' | '.join(scores)} | " in text and text.count("\n| ") == 2 + len(summary["methods"])

        (program,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
        done = python("-c", program)
        assert done.returncode == 0 and re.match(r"\{0: \d, 1: \d, .*9: \d\}$", done.stdout), done

        model, asked = Path(fetched_with("hf://me/tiny")), len(server.requests)
        assert model.read_bytes() == files["coloring_gnn.onnx"]

    out = tmp_path / "queens.sol"  # the server is stopped
    command = ["-m", "gnn_training", "color", ROOT / "examples/queen8_8.col", "--model", "hf://me/tiny"]
    done = python(*command, "--out", out, "--seconds", "0")
    assert done.returncode == 0 and is_proper(queens(8, 8), read_solution(out)), done
    for name in ("hf://me/tiny", pinned):
        assert fetched_with(name, HF_HUB_OFFLINE="1") == str(model)
    assert len(server.requests) == asked


@pytest.mark.slow
def test_a_push_that_the_hub_refuses_says_why_in_a_sentence(archive: Path, online: hub_server.Hub, tmp_path: Path):
    def said(*arguments, **options) -> str:
        done = push(*arguments, **options)
        assert done.returncode == 2 and done.stderr.startswith("coloring-gnn: ") and done.stderr.count("\n") == 1, done
        return done.stderr

    assert re.search("do not serve it .*401.*: correct the name, log in with", said("me/no", archive, token="hf_wrong"))
    assert '"license" must be one of' in said("me/no", archive, "--license", "wtf")
    assert online.repositories["me/no"].commits == []
    write_archive(tmp_path / "damaged.tar.gz", read_archive(archive) | {"best.pt": b"?"}, 0)
    assert "damaged.tar.gz: is damaged (ValueError: best.pt); pack again" in said("me/no", tmp_path / "damaged.tar.gz")


def test_a_fetch_asks_for_the_files_of_one_commit_and_no_others(server: hub_server.Hub, fetch):
    put(server, "me/all", huge=b"not ours")
    server.requests.clear()
    folder = Path(fetch("hf://me/all")).parent
    assert {path.name for path in folder.iterdir()} == {SUMS_FILE, *hub.FILES}
    commits = {request.split("/resolve/")[1][:40] for request in server.requests if "/resolve/" in request}
    assert commits == {folder.name}


def test_later_commits_replace_earlier_ones_unless_the_name_has_a_revision(server: hub_server.Hub, fetch):
    repository = put(server, "me/two")
    old = Path(fetch("hf://me/two"))
    files = {file: b"newer" for file in hub.FILES}
    repository.commits.append(files | {SUMS_FILE: checksums(files).encode()})
    assert Path(fetch("hf://me/two")).read_bytes() == b"newer"
    assert fetch(f"hf://me/two@{old.parent.name}") == str(old) and old.read_bytes() == b"coloring_gnn.onnx"


def test_a_file_that_differs_from_its_checksum_is_refused(server: hub_server.Hub, fetch):
    put(server, "me/changed", **{"coloring_gnn.onnx": b"changed"})
    said = "me--changed/.*/coloring_gnn.onnx: differs from its checksum in SHA256SUMS; delete "
    assert re.search(said, fetch("hf://me/changed"))


def test_what_cannot_be_fetched_is_refused_in_a_sentence(online: hub_server.Hub, fetch, monkeypatch, tmp_path: Path):
    put(online, "me/gated").gated = True
    put(online, "me/model")
    (tmp_path / "file").touch()
    nobody = {"HF_ENDPOINT": "http://127.0.0.1:9"}  # the discard port
    for name, variables, reason in (
        ("hf://me/gated", {}, "403"), ("hf://me/none", {}, "404"), ("hf://me/model@v9", {}, "404"),
        ("hf://me/model", {"HF_HUB_OFFLINE": "1"}, "disabled"), ("hf://me/model", nobody, "onnection"),
        ("hf://me/model", {"HF_HOME": str(tmp_path / "file")}, "Not a directory"),
        ("hf://me/model", {"HTTPS_PROXY": "foo://bar"}, "foo"),
    ):  # fmt: skip
        said = fetched_with(name, **variables) if variables else fetch(name)
        assert re.match(f"{name}: the Hub and its cache do not serve it .*{reason}.*: correct", said)
    monkeypatch.setattr(online, "status", 401)
    assert "log in with `hf auth login` or set HF_TOKEN" in fetched_with("hf://me/model", HF_TOKEN="hf_wrong")


def test_a_misspelt_name_is_refused_before_any_work_and_a_path_is_none():
    for name in ("hf://queens", "hf:/me/queens", "hf:me/queens", "hf://me/queens/x", "hf://me/q@", "hf://"):
        with pytest.raises(UserError, match="is no name of a model on the Hub: it is hf://owner/name or"):
            hub.model_file(name)
    with pytest.raises(UserError, match=r"repo \(me/x@v1\) must be owner/name: a push goes to the main branch"):
        dry_run(PushSettings(repo="me/x@v1"))
    with pytest.raises(UserError, match="owner/name: no such file; if you mean a model on the Hub, name it hf://owner"):
        hub.model_file("owner/name")
    assert hub.model_file("models/none.onnx") == Path("models/none.onnx") and hub.model_file(ROOT / "tests")


def test_without_the_extra_the_sentence_names_it(monkeypatch: pytest.MonkeyPatch):
    for name in ("huggingface_hub", "jinja2"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UserError, match=r"^push needs jinja2: pip install '\.\[hub\]' in a clone"):
        dry_run(PushSettings(repo="me/x"))
    with pytest.raises(UserError, match=r"hf://me/x needs huggingface_hub: pip install '\.\[hub\]' in a clone"):
        hub.model_file("hf://me/x")


def test_an_installation_that_cannot_be_imported_is_told_in_a_sentence(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub.errors", None)
    monkeypatch.delattr("huggingface_hub.errors", raising=False)
    with pytest.raises(UserError, match=r"hf://me/x: the Hub and its cache do not serve it \(.*import.*\): correct"):
        hub.model_file("hf://me/x")
