"""Files are whole or absent, a folder has one writer, and checksums find what changed."""

import errno
import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from tiny_runs import ROOT

from gnn_training import files
from gnn_training.errors import StorageError, UserError


def test_a_failed_or_interrupted_write_keeps_the_old_file_and_leaves_nothing_behind(tmp_path: Path, monkeypatch):
    path = tmp_path / "graph.sol"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt), files.replace_file(path) as temporary:
        temporary.write_text("ne")
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
    with pytest.raises(StorageError, match=r"graph.sol: cannot be written \(no space left on device\); make room"):
        files.write_text(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_has_gone_is_not_made_again(tmp_path: Path):
    with pytest.raises(StorageError, match="a.txt: cannot be written .no such file or directory"):
        files.write_text(tmp_path / "gone" / "a.txt", "in the place of a volume")
    assert not list(tmp_path.iterdir())


def test_a_name_of_as_many_letters_as_the_system_takes_can_be_written(tmp_path: Path):
    path = tmp_path / ("n" * 251 + ".sol")
    files.write_text(path, "l 1 1")
    assert list(tmp_path.iterdir()) == [path]


def test_a_locked_folder_is_refused_until_its_process_is_killed(tmp_path: Path):
    program = (
        "import pathlib, sys, time; from gnn_training import files\n"
        "with files.lock_folder(pathlib.Path(sys.argv[1])): print('locked', flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "run")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "locked\n"
        with pytest.raises(UserError, match="run: another process is writing it"), files.lock_folder(tmp_path / "run"):
            pass
        process.kill()
    for _ in range(2):
        with files.lock_folder(tmp_path / "run"):
            pass


@pytest.mark.parametrize(
    "make",
    [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("/dev/null"), lambda path: path.symlink_to("nothing")],
)
def test_what_is_no_regular_file_is_never_replaced(make, tmp_path: Path):
    path = tmp_path / "out"
    make(path)
    before = os.lstat(path)
    with pytest.raises(UserError, match="is not a regular file and is never replaced; name a file"):
        files.write_text(path, "")
    assert os.lstat(path)[:3] == before[:3]  # type, number and device


def test_checksums_name_the_first_file_that_is_missing_or_differs(tmp_path: Path):
    contents = {"a": b"one", "b": b"two"}
    sums = files.checksums(contents).encode()
    assert files.first_mismatch(sums, contents, "ab") is None
    assert (
        files.first_mismatch(sums, {"a": b"one"}, "") == files.first_mismatch(sums, {"a": b"one", "b": b"2"}, "") == "b"
    )
    assert files.first_mismatch(sums, contents, "abc") == "c"
    assert files.first_mismatch(b"\n" + sums, {"a": b"1"}, "") == "a line without a name"  # and not nothing
    (tmp_path / "a").write_bytes(b"one")
    assert sums.startswith(f"{files.sha256(tmp_path / 'a')}  a\n".encode())


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda path: path.symlink_to("/dev/zero"), "has more than 0.001 MB"),
        (lambda path: path.symlink_to(path), r"cannot be read \(too many levels of symbolic links\)"),
        (lambda path: path.mkdir(), r"cannot be read \(is a directory\)"),
        (lambda path: path.write_bytes(bytes(1001)), "has more than 0.001 MB"),
        (lambda path: path.open("wb").truncate(1 << 40), "has more than 0.001 MB"),
        (lambda path: None, r"cannot be read \(no such file or directory\)"),
    ],
)
def test_only_a_file_below_the_limit_is_read(tmp_path: Path, make, expected: str):
    path = tmp_path / "file"
    make(path)
    with pytest.raises(UserError, match=rf"file: {expected}.*; name another"):
        files.read_bytes(path, 1000, "name another")


@pytest.mark.parametrize("name", ["n" * 300, "zero\0byte"])
def test_a_file_with_a_name_that_no_file_can_have_is_named(tmp_path: Path, name: str):
    with pytest.raises(UserError, match=r"(nnn|zero\\x00byte): cannot be read \(.*\); name a file"):
        files.read_bytes(tmp_path / name, 1000)
