"""The archive is whole, the same for the same files, and never of two different trainings."""

import hashlib
import json
import os
import subprocess
import tarfile
from pathlib import Path

import pytest
from checkout import loaded_by
from tiny_runs import ROOT, git

from gnn_training import __version__, files
from gnn_training.errors import StorageError, UserError
from gnn_training.files import Contents, checksums, read_archive, write_archive
from gnn_training.jobs import pack as job
from gnn_training.report.scores import summarize
from gnn_training.settings import PackSettings

NAMES = [
    "coloring_gnn.onnx", "coloring_gnn_web.onnx", "coloring_gnn.golden.json", "model.safetensors", "report.json",
    "config.json", "metrics.jsonl", "best.pt", "manifest.json", "report.html", "SHA256SUMS",
]  # fmt: skip
STATUS = {"status": "done", "step": 40, "ranks": 8, "device": "NVIDIA B200", "best_gap": 0.5, "best_step": 35,
          "crossover_step": 14, "seconds": 2390.0, "graphs": 9000}  # fmt: skip
CHECK = {"kind": "validation", "epoch": 0.0, "gap": 0.5, "gain": 0.7, "gain_error": 0.1, "dsatur_gap": 4.0,
         "at_best_known": 0.75, "graphs": 64}  # fmt: skip
CONFIG = {"seed": 0, "preset": "multi", "data": "graphs", "run": "runs/multi", "weights": None, "validation_rounds": 9}
SECONDS = {"data": 600.0, "train": 2400.5, "check": 1.5}
MADE = 1_700_000_000  # seconds since 1970; 2023-11-14T22:13:20 UTC


@pytest.fixture
def settings(tmp_path: Path) -> PackSettings:
    """A finished job whose model and checkpoint are a few bytes that nobody looks into."""
    run, models = tmp_path / "run", tmp_path / "models"
    model = b"a model" * 100
    exported = dict.fromkeys(NAMES[:4], model) | {"coloring_gnn.golden.json": b"{}"}
    metadata = {"data_sha256": "0123abcd", "trained_steps": "35"}
    report = {
        "model": {"file": "coloring_gnn.onnx", "sha256": hashlib.sha256(model).hexdigest(), "metadata": metadata},
        "settings": {"graphs": "graphs"}, "machine": {"cpus": 64, "processor": "x86_64"}, "summary": summarize([]),
        "families": {},
    }  # fmt: skip
    steps = {name: {"command": name, "seconds": seconds} for name, seconds in SECONDS.items()}
    records = {"report.json": report, "config.json": CONFIG, "status.json": STATUS, "steps.json": steps}
    metrics = "".join(json.dumps({**CHECK, "step": step}) + "\n" for step in (0, 35)).encode()
    contents = {name: json.dumps(value).encode() for name, value in records.items()}
    contents |= {"metrics.jsonl": metrics, "best.pt": b"weights"}
    for folder, those in ((run, contents), (models, exported | {"SHA256SUMS": checksums(exported).encode()})):
        folder.mkdir()
        for name, content in those.items():
            (folder / name).write_bytes(content)
            os.utime(folder / name, (MADE, MADE))
    return PackSettings(run=run, models=models)


def manifest(settings: PackSettings, **changes) -> dict:
    return json.loads(read_archive(job.pack(settings.model_copy(update=changes)))["manifest.json"])


def test_whoever_unpacks_it_can_check_every_file(settings: PackSettings, tmp_path: Path):
    subprocess.run(["tar", "xzf", job.pack(settings), "-C", tmp_path], check=True)
    folder = tmp_path / "trained_model"
    checked = subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=folder, capture_output=True, text=True)
    assert checked.returncode == 0
    assert checked.stdout.split("\n")[:-1] == [f"{name}: OK" for name in NAMES[:-1]]
    for source in (settings.models / "coloring_gnn.onnx", settings.run / "best.pt", settings.run / "report.html"):
        assert (folder / source.name).read_bytes() == source.read_bytes()


def test_the_newest_checkpoint_comes_along_if_asked_for(settings: PackSettings):
    settings = settings.model_copy(update={"checkpoint": True})
    with pytest.raises(UserError, match=r"checkpoints/step-00000000\.pt: cannot be read .*do the whole job first"):
        job.pack(settings)
    (settings.run / "checkpoints").mkdir()
    for step in (20, 40):
        (settings.run / f"checkpoints/step-000000{step}.pt").write_bytes(b"state %d" % step)
    contents = read_archive(job.pack(settings))
    assert contents.keys() == {*NAMES, "step-00000040.pt"} and contents["step-00000040.pt"] == b"state 40"
    assert b"step-00000040.pt" in contents["SHA256SUMS"]


def test_the_same_files_give_the_same_bytes(settings: PackSettings):
    archive = job.pack(settings)
    first = archive.read_bytes()
    archive.unlink()
    steps = json.loads((settings.run / "steps.json").read_text())
    steps["pack"] = {"command": "pack", "seconds": 0.4}  # what the job notes about packing itself
    (settings.run / "steps.json").write_text(json.dumps(steps))
    assert job.pack(settings).read_bytes() == first


def test_the_archive_has_no_trace_of_this_machine(settings: PackSettings):
    archive = job.pack(settings)
    assert archive.read_bytes()[:10] == b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\xff"  # gzip without name and time
    with tarfile.open(archive) as tar:
        members = tar.getmembers()
    assert [member.name for member in members] == [f"trained_model/{name}" for name in NAMES]
    assert {(m.uid, m.gid, m.uname, m.gname, m.mode, m.mtime) for m in members} == {(0, 0, "", "", 0o644, MADE)}


def test_the_manifest_says_where_the_model_comes_from(settings: PackSettings, monkeypatch):
    monkeypatch.setenv("GNN_IMAGE_DIGEST", "sha256:feed")
    monkeypatch.setenv("GNN_REVISION", "c0ffee")
    found = manifest(settings)
    locks = b"".join(path.read_bytes() for path in sorted(ROOT.glob("requirements*.lock")))
    assert found == {
        "version": __version__, "image_digest": "sha256:feed", "git_revision": "c0ffee",
        "locks_sha256": hashlib.sha256(locks).hexdigest(), "data_sha256": "0123abcd",
        "created": "2023-11-14T22:13:20+00:00", "training": STATUS, "seconds": SECONDS, "hours": 0.834,
    }  # fmt: skip


def test_the_manifest_and_the_page_have_the_cost_if_the_price_is_given(settings: PackSettings):
    found = manifest(settings, price_per_hour=32.0)
    assert (found["price_per_hour"], found["cost"]) == (32.0, pytest.approx(3002 / 3600 * 32, abs=0.01))
    page = (settings.run / "report.html").read_text()
    assert "8 &times; NVIDIA B200" in page and f"{found['cost']:.2f} for 0.83 hours at\n32.00 an hour" in page


@pytest.mark.parametrize("content", [None, "{}"])
def test_without_times_there_is_no_cost(settings: PackSettings, content: str | None):
    steps = settings.run / "steps.json"
    steps.unlink() if content is None else steps.write_text(content)
    found = manifest(settings, price_per_hour=32.0)
    assert found["seconds"] == {} and "cost" not in found


@pytest.mark.parametrize(
    "name", [f"run/{name}" for name in (*NAMES[4:8], "status.json")] + [f"models/{name}" for name in NAMES[:4]]
)
def test_a_missing_file_is_named(settings: PackSettings, name: str):
    (settings.run.parent / name).unlink()
    with pytest.raises(UserError, match=rf"{name}: cannot be read \(no such file or directory\); do the whole job"):
        job.pack(settings)
    assert not (settings.models / "trained_model.tar.gz").exists()


@pytest.mark.parametrize("content", [b"", b"7", b"[0]", b'{"train": {"seconds": "x"}}'])
@pytest.mark.parametrize("name", ["report.json", "config.json", "status.json", "steps.json"])
def test_a_damaged_record_of_the_run_is_named(settings: PackSettings, name: str, content: bytes):
    (settings.run / name).write_bytes(content)
    with pytest.raises(UserError) as caught:
        job.pack(settings)
    said = str(caught.value)
    assert "is damaged" in said or "the best of" in said, said  # an empty status has no best step
    assert "\n" not in said and not (settings.models / "trained_model.tar.gz").exists()


def test_damaged_lines_of_the_metrics_are_left_out_of_the_page(settings: PackSettings, caplog):
    metrics = settings.run / "metrics.jsonl"
    whole = metrics.read_text()
    metrics.write_text(whole + "\0\0\0\n[]\n{}\n" + '{"kind": "train", "step": "x"}\n' + '{"kind": "tr')
    job.pack(settings)
    assert [f"line {number} is damaged" in caplog.text for number in range(2, 8)] == [False, *[True] * 4, False]
    metrics.write_text("")
    job.pack(settings)  # the page is without the scores of the training


@pytest.mark.parametrize(
    ("name", "before", "after", "sentence"),
    [
        ("models/SHA256SUMS", b"", b"no sums\n", "models/no sums: differs from its checksum in SHA256SUMS"),
        ("models/model.safetensors", b"a", b"b", "model.safetensors: differs from its checksum in SHA256SUMS"),
        ("run/report.json", b'"sha256": "', b'"sha256": "0', "report.json is of another model .*; evaluate again"),
        ("run/config.json", b'"preset": "', b'"preset": "\\ud800', "a record in .*run: is damaged .UnicodeEncode"),
        ("run/status.json", b'"best_step": 35', b'"best_step": 40', "models has step 35, the best of .*run is 40; exp"),
        ("run/status.json", b'"crossover_step": 14', b'"crossover_step": 40', "step 35, .* is 40; export again"),
    ],
)
def test_files_of_two_trainings_are_not_packed(settings: PackSettings, name: str, before, after, sentence: str):
    path = settings.run.parent / name
    path.write_bytes(path.read_bytes().replace(before, after, 1))
    with pytest.raises(UserError, match=sentence):
        job.pack(settings)


def test_an_archive_that_unpacks_to_more_than_can_be_read_is_refused(tmp_path: Path, monkeypatch):
    write_archive(tmp_path / "large.tar.gz", {"zeros": bytes(100_000)}, 0)
    monkeypatch.setattr(files, "MAX_FILE_BYTES", 100_000)
    with pytest.raises(UserError, match="unpacks to more than"):
        read_archive(tmp_path / "large.tar.gz")


def test_links_and_holes_of_an_archive_are_not_read(tmp_path: Path):
    with tarfile.open(tmp_path / "links.tar.gz", "w:gz") as tar:
        for name, kind in (("SHA256SUMS", tarfile.LNKTYPE), ("best.pt", tarfile.GNUTYPE_SPARSE)):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "best.pt"
            tar.addfile(member)
    with pytest.raises(UserError, match="KeyError: 'SHA256SUMS'"):
        read_archive(tmp_path / "links.tar.gz")


def test_an_archive_that_reads_back_damaged_never_gets_its_name(settings: PackSettings, monkeypatch):
    def write(path: Path, contents: Contents, made: int) -> None:
        write_archive(path, contents | {"best.pt": b"?"}, made)

    before = job.pack(settings).read_bytes()
    monkeypatch.setattr(job.files, "write_archive", write)
    with pytest.raises(StorageError, match=r"the archive reads back damaged \(best\.pt\)"):
        job.pack(settings)
    assert (settings.models / "trained_model.tar.gz").read_bytes() == before
    assert len(list(settings.models.iterdir())) == 6


def test_packing_loads_neither_torch_nor_onnx(settings: PackSettings):
    loaded = loaded_by("pack", settings.run, "--models", settings.models)
    assert not {"torch", "onnx", "onnxruntime", "numba"} & loaded


@pytest.mark.slow
def test_what_the_other_jobs_leave_behind_can_be_packed(archive: Path, tiny_data: Path):
    contents = read_archive(archive)
    found = json.loads(contents["manifest.json"])
    assert found["data_sha256"] == json.loads((tiny_data / "manifest.json").read_text())["sha256"]
    assert found["training"]["status"] == "done" and found["training"]["step"] == 40
    assert b"What was trained" in contents["report.html"]


def test_the_revision_of_a_clone_tells_of_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("GNN_REVISION", raising=False)
    git(tmp_path, "init", "-q")
    (tmp_path / "requirements.lock").write_text("a==1\n")
    (tmp_path / "vendored").mkdir()
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    git(tmp_path, "tag", "v1")
    revision = git(tmp_path, "rev-parse", "HEAD")
    assert job.provenance(tmp_path)["git_revision"] == revision
    (tmp_path / "requirements.lock").write_text("a==2\n")
    assert job.provenance(tmp_path)["git_revision"] == f"{revision}+changes"
    copied = job.provenance(tmp_path / "vendored")  # into the repository of somebody else
    assert copied["git_revision"] == copied["locks_sha256"] == "unknown"
    monkeypatch.setenv("PATH", "/nowhere")  # no git
    assert job.provenance(tmp_path)["git_revision"] == "unknown"
