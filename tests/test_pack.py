"""The archive is whole, the same for the same files, and never of two different trainings."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from gnn_training import __version__, archive
from gnn_training.__main__ import main
from gnn_training.archive import write_archive
from gnn_training.errors import StorageError, UserError
from gnn_training.jobs import pack as job
from gnn_training.report.scores import summarize
from gnn_training.settings import EvaluateSettings, PackSettings

ROOT = Path(__file__).parents[1]
NAMES = [
    "coloring_gnn.onnx", "coloring_gnn_web.onnx", "coloring_gnn.golden.json", "model.safetensors", "report.json",
    "config.json", "metrics.jsonl", "best.pt", "manifest.json", "report.html", "SHA256SUMS",
]  # fmt: skip
STATUS = {
    "status": "done", "step": 40, "ranks": 8, "device": "NVIDIA B200", "best": 0.5, "best_step": 35, "seconds": 2390.0,
    "graphs": 9000,
}  # fmt: skip
CHECK = {
    "kind": "validation",
    "gap": 0.5,
    "gain": 0.7,
    "gain_error": 0.1,
    "dsatur_gap": 4.0,
    "at_best_known": 0.75,
    "graphs": 64,
}
CONFIG = {"seed": 0, "preset": "multi", "data": "graphs", "run": "runs/multi", "weights": None, "validation_rounds": 9}
SECONDS = {"data": 600.0, "train": 2400.5, "check": 1.5}
MADE = 1_700_000_000  # seconds since 1970; 2023-11-14T22:13:20 UTC


@pytest.fixture
def settings(tmp_path: Path) -> PackSettings:
    """A finished job whose model and checkpoint are a few bytes that nobody looks into."""
    run, models = tmp_path / "run", tmp_path / "models"
    run.mkdir()
    models.mkdir()
    model = b"a model" * 100
    (models / "coloring_gnn.onnx").write_bytes(model)
    (models / "coloring_gnn_web.onnx").write_bytes(model)
    (models / "coloring_gnn.golden.json").write_text("{}")
    (models / "model.safetensors").write_bytes(model)
    (models / "SHA256SUMS").write_text(
        f"{hashlib.sha256(model).hexdigest()}  coloring_gnn.onnx\n"
        f"{hashlib.sha256(model).hexdigest()}  coloring_gnn_web.onnx\n"
        f"{hashlib.sha256(b'{}').hexdigest()}  coloring_gnn.golden.json\n"
        f"{hashlib.sha256(model).hexdigest()}  model.safetensors\n"
    )
    metadata = {"data_sha256": "0123abcd", "trained_steps": "35"}
    report = {
        "model": {"file": "coloring_gnn.onnx", "sha256": hashlib.sha256(model).hexdigest(), "metadata": metadata},
        "settings": {"graphs": "graphs"}, "machine": {"cpus": 64, "processor": "x86_64"}, "summary": summarize([]),
        "families": {},
    }  # fmt: skip
    steps = {name: {"command": name, "seconds": seconds} for name, seconds in SECONDS.items()}
    texts = {"report.json": report, "config.json": CONFIG, "status.json": STATUS, "steps.json": steps}
    for name, value in texts.items():
        (run / name).write_text(json.dumps(value))
    (run / "metrics.jsonl").write_text("".join(json.dumps({**CHECK, "step": step}) + "\n" for step in (0, 35)))
    (run / "best.pt").write_bytes(b"weights")
    for path in (*run.iterdir(), *models.iterdir()):
        os.utime(path, (MADE, MADE))
    return PackSettings(run=run, models=models)


def unpacked(archive: Path, folder: Path) -> Path:
    subprocess.run(["tar", "xzf", archive, "-C", folder], check=True)
    return folder / "trained_model"


def manifest(settings: PackSettings, **changes) -> dict:
    archive = job.pack(settings.model_copy(update=changes))
    with tarfile.open(archive) as tar:
        return json.load(tar.extractfile("trained_model/manifest.json"))


def test_whoever_unpacks_it_can_check_every_file(settings: PackSettings, tmp_path: Path):
    folder = unpacked(job.pack(settings), tmp_path)
    assert {path.name for path in folder.iterdir()} == set(NAMES)
    checked = subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=folder, capture_output=True, text=True)
    assert checked.returncode == 0
    assert checked.stdout.split("\n")[:-1] == [f"{name}: OK" for name in NAMES[:-1]]
    for source in (settings.models / "coloring_gnn.onnx", settings.run / "best.pt", settings.run / "report.html"):
        assert (folder / source.name).read_bytes() == source.read_bytes()


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
        "version": __version__,
        "image_digest": "sha256:feed",
        "git_revision": "c0ffee",
        "locks_sha256": hashlib.sha256(locks).hexdigest(),
        "data_sha256": "0123abcd",
        "created": "2023-11-14T22:13:20+00:00",
        "training": STATUS,
        "seconds": SECONDS,
        "hours": 0.834,
    }


def test_the_manifest_and_the_page_have_the_cost_if_the_price_is_given(settings: PackSettings):
    found = manifest(settings, price_per_hour=32.0)
    assert (found["price_per_hour"], found["cost"]) == (32.0, pytest.approx(3002 / 3600 * 32, abs=0.01))
    page = (settings.run / "report.html").read_text()
    assert "8 &times; NVIDIA B200" in page and f"{found['cost']:.2f} for 0.83 hours at\n32.00 an hour" in page


@pytest.mark.parametrize("content", [None, "{}", '{"train": {"command": "train"}}'])
def test_without_times_there_is_no_cost(settings: PackSettings, content: str | None):
    steps = settings.run / "steps.json"
    steps.unlink() if content is None else steps.write_text(content)
    found = manifest(settings, price_per_hour=32.0)
    assert found["seconds"] == {} and "cost" not in found


@pytest.mark.parametrize("name", ["report.json", "config.json", "metrics.jsonl", "best.pt", "status.json"])
def test_a_missing_file_of_the_run_is_named(settings: PackSettings, name: str):
    (settings.run / name).unlink()
    with pytest.raises(UserError, match=rf"run/{name}: cannot be read \(no such file or directory\); do the whole job"):
        job.pack(settings)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xfe", b"7", b"[0]", b'{"train": {"seconds": "x"}}', b"[" * 100_000]
)
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


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\n", b"no sums\n"])
def test_damaged_checksums_are_not_taken_for_right_ones(settings: PackSettings, content: bytes):
    (settings.models / "SHA256SUMS").write_bytes(content)
    with pytest.raises(UserError, match="is not the file that was exported; export again"):
        job.pack(settings)


def test_an_archive_that_unpacks_to_more_than_can_be_read_is_refused(tmp_path: Path, monkeypatch):
    write_archive(tmp_path / "large.tar.gz", {"zeros": bytes(100_000)}, 0)
    monkeypatch.setattr(archive, "LIMIT", 100_000)
    with pytest.raises(ValueError, match="unpacks to more than"):
        archive.read_archive(tmp_path / "large.tar.gz")


def test_links_and_holes_of_an_archive_are_not_read(tmp_path: Path):
    with tarfile.open(tmp_path / "links.tar.gz", "w:gz") as tar:
        for name, kind in (("SHA256SUMS", tarfile.LNKTYPE), ("best.pt", tarfile.GNUTYPE_SPARSE)):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "best.pt"
            tar.addfile(member)
    with pytest.raises(ValueError, match="KeyError: 'SHA256SUMS'"):
        archive.read_archive(tmp_path / "links.tar.gz")


def test_before_an_export_there_is_nothing_to_pack(tmp_path: Path, capsys):
    assert main(["pack", str(tmp_path / "run"), "--models", str(tmp_path / "models")]) == 2
    assert "models/coloring_gnn.onnx: cannot be read" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_is_not_the_exported_one_is_not_packed(settings: PackSettings):
    with open(settings.models / "coloring_gnn.golden.json", "a") as file:
        file.write(" ")
    with pytest.raises(UserError, match=r"coloring_gnn\.golden\.json: is not the file that was exported; export again"):
        job.pack(settings)


def test_a_report_on_another_model_is_not_packed(settings: PackSettings):
    report = json.loads((settings.run / "report.json").read_text())
    report["model"]["sha256"] = "0" * 64
    (settings.run / "report.json").write_text(json.dumps(report))
    with pytest.raises(UserError, match="report.json is of another model .*; evaluate again"):
        job.pack(settings)


def test_a_model_of_an_older_checkpoint_is_not_packed(settings: PackSettings):
    (settings.run / "status.json").write_text(json.dumps({**STATUS, "best_step": 40}))
    with pytest.raises(UserError, match="models has step 35, the best of .*run is 40; export again"):
        job.pack(settings)


def flipped(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: flipped(content, len(content) // 2),
        lambda content: flipped(content, len(content) - 6),  # the checksum of gzip
        lambda content: content[:-20],
        lambda content: b"",
    ],
    ids=["a bit", "the last bytes", "the end", "all"],
)
def test_an_archive_that_reads_back_damaged_never_gets_its_name(
    settings: PackSettings, monkeypatch, damage: Callable[[bytes], bytes]
):
    def write(path: Path, *rest: object) -> None:
        real(path, *rest)
        path.write_bytes(damage(path.read_bytes()))

    archive = job.pack(settings)
    before, real = archive.read_bytes(), job.write_archive
    monkeypatch.setattr(job, "write_archive", write)
    with pytest.raises(StorageError, match="the archive reads back damaged"):
        job.pack(settings)
    assert archive.read_bytes() == before
    assert len(list(settings.models.iterdir())) == 6


def test_an_archive_of_other_content_never_gets_its_name(settings: PackSettings, monkeypatch):
    real = job.write_archive
    monkeypatch.setattr(
        job, "write_archive", lambda path, contents, made: real(path, contents | {"best.pt": b"?"}, made)
    )
    with pytest.raises(StorageError, match=r"reads back damaged \(best\.pt\)"):
        job.pack(settings)


def test_packing_loads_neither_torch_nor_onnx(settings: PackSettings):
    script = (
        "import sys; from gnn_training.__main__ import main; code = main(sys.argv[1:]);"
        "sys.exit(code or bool({'torch', 'onnx', 'onnxruntime', 'numba'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", script, "pack", str(settings.run), "--models", str(settings.models)]
    subprocess.run(command, cwd=ROOT, check=True)


@pytest.mark.slow
def test_what_the_other_jobs_leave_behind_can_be_packed(trained: Path, exported: Path, tiny_data: Path, tmp_path: Path):
    from gnn_training.jobs.evaluate import evaluate

    run, models = (Path(shutil.copytree(folder, tmp_path / folder.name)) for folder in (trained, exported))
    model = models / "coloring_gnn.onnx"
    evaluate(EvaluateSettings(graphs=tiny_data, model=model, limit=1, report=run / "report.json", threads=1))
    found = manifest(PackSettings(run=run, models=models))
    assert found["data_sha256"] == json.loads((tiny_data / "manifest.json").read_text())["sha256"]
    assert found["training"]["status"] == "done" and found["training"]["step"] == 40
    assert "A graph before and after" in (run / "report.html").read_text()


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=me", "-c", "user.email=me@localhost", "-c", "commit.gpgsign=false"]
    ran = subprocess.run(["git", "-C", folder, *who, *arguments], capture_output=True, text=True, check=True)
    return ran.stdout.strip()


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("GNN_REVISION", raising=False)
    git(tmp_path, "init", "-q")
    (tmp_path / "requirements.lock").write_text("a==1\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    git(tmp_path, "tag", "v1")
    return tmp_path


def test_the_revision_of_a_clone_tells_of_changes(clone: Path):
    revision = git(clone, "rev-parse", "HEAD")
    assert job.provenance(clone)["git_revision"] == revision
    (clone / "requirements.lock").write_text("a==2\n")
    assert job.provenance(clone)["git_revision"] == f"{revision}+changes"


def test_a_copy_within_a_foreign_repository_has_no_revision(clone: Path):
    (clone / "vendored").mkdir()
    found = job.provenance(clone / "vendored")
    assert found["git_revision"] == found["locks_sha256"] == "unknown"


def test_without_git_the_revision_is_unknown(clone: Path, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert job.provenance(clone)["git_revision"] == "unknown"
