"""build_and_push.sh without an engine: with a docker that fails."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from checkout import PartialCheckout
from tiny_runs import ROOT, git

PUSHED, OTHER = f"sha256:{'1' * 64}", f"sha256:{'2' * 64}"
BEHAVIOUR = {
    "version": "echo 20.10",
    "build": "true",
    "run": "echo 'ready after 9 s, coloring_gnn.onnx: OK'",
    "push": f"echo '1.0: digest: {PUSHED} size: 5'",
    "pull": f"echo 'Digest: {PUSHED}'",
    "manifest inspect": """printf '{"config": {\\n"size": 3\\n}, "layers": [{\\n"size": 3000000000\\n}]}'""",
    "image inspect": "echo 7",
}


class Checkout(PartialCheckout):
    """A committed checkout and a docker that notes how it was called and does what the test tells it."""

    def __init__(self, folder: Path):
        super().__init__(folder, "build_and_push.sh", "scripts/environment.sh")
        (self.root / "gnn_training").mkdir()
        (self.root / "gnn_training/__init__.py").write_text('__version__ = "1.0"\n')
        (self.root / ".gitignore").write_text("/image.json\n")
        for arguments in (["init"], ["add", "--all"], ["commit", "-m", "x"]):
            git(self.root, *arguments)

    def start(self, *flags: str, env: dict[str, str] | None = None, **behaviour: str) -> subprocess.CompletedProcess:
        """Run build_and_push.sh; behaviour: shell commands, by docker command with _ for the blank."""
        commands = BEHAVIOUR | {name.replace("_", " "): script for name, script in behaviour.items()}
        cases = [f'"{name} "*) {script} ;;' for name, script in sorted(commands.items(), reverse=True)]
        self.tool("docker", "\n".join([f'echo "$*" >>{self.calls}', 'case "$* " in', *cases, "esac"]))
        env = os.environ | {"DOCKER": str(self.bin / "docker")} | (env or {})
        return super().start("build_and_push.sh", *flags, env=env, cwd=self.root)

    def report(self) -> dict:
        return json.loads((self.root / "image.json").read_text())


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def assert_refused(done: subprocess.CompletedProcess, *words: str) -> None:
    """Exit code 2, and the last line is one sentence with these words."""
    sentence = done.stderr.splitlines()[-1]
    assert done.returncode == 2 and sentence.startswith("build_and_push.sh: "), done
    for word in words:
        assert word in sentence


def test_the_base_image_is_named_by_its_digest():
    assert re.search(r"^ARG BASE_IMAGE=\S+:\S+@sha256:[0-9a-f]{64}$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)


def test_image_is_built_tested_tagged_pushed_and_reported(checkout: Checkout):
    done = checkout.start("host/gnn")
    assert done.returncode == 0, done.stderr
    revision = checkout.report()["revision"]
    tags = [f"host/gnn:{tag}" for tag in ("1.0", revision[:7], "latest")]
    assert f"--tag {tags[0]} --build-arg VERSION=1.0 --build-arg REVISION={revision} " in checkout.called("build")[0]
    assert checkout.called("push") == [f"push {tag}" for tag in tags]
    report = checkout.report()
    assert (report["digest"], report["bytes"], report["packed_bytes"]) == (PUSHED, 7, 3_000_000_003)
    # Tested without network, as a user whom the image does not know.
    owner, *runs = checkout.called("run")
    assert "--rm --network none " in owner and "--user 0 --entrypoint chown" in owner
    assert len(runs) == 2 and all("--rm --network none " in run and "--user 12345:12345" in run for run in runs)
    assert checkout.called("volume rm")


def test_without_push_nothing_leaves_the_machine(checkout: Checkout):
    assert checkout.start("host/gnn", "--no-push").returncode == 0
    assert not checkout.called("push")
    assert (checkout.report()["digest"], checkout.report()["packed_bytes"]) == ("", None)


def test_tag_platform_base_and_flags_of_docker_build_are_passed_on(checkout: Checkout):
    flags = ("--platform", "linux/amd64", "--base", "mine", "--build-arg", "TORCH_VERSION=2.11.0", "--tag", "t")
    assert checkout.start("host/gnn", *flags, "--", "--network", "host").returncode == 0
    passed = "--platform linux/amd64 --build-arg BASE_IMAGE=mine --build-arg TORCH_VERSION=2.11.0 --network host"
    assert passed in checkout.called("build")[0]
    assert checkout.called("push") == ["push host/gnn:t"]


def test_changed_files_are_refused_or_marked(checkout: Checkout):
    (checkout.root / "new.py").touch()
    assert_refused(checkout.start("host/gnn"), "?? new.py", "--allow-dirty")
    assert checkout.start("host/gnn", "--allow-dirty").returncode == 0
    assert checkout.report()["revision"].endswith("+changes")
    assert checkout.report()["tags"][1].endswith("-dirty")


@pytest.mark.parametrize("command", [["build_and_push.sh"], ["bash", "build_and_push.sh"], ["./link"]])
def test_the_script_builds_its_own_checkout_however_it_is_named(checkout: Checkout, tmp_path: Path, command):
    (tmp_path / "link").symlink_to(checkout.root / "build_and_push.sh")
    checkout.start()  # refused, but then there is a docker
    env = os.environ | {"PATH": f"{checkout.root}:{os.environ['PATH']}", "DOCKER": str(checkout.bin / "docker")}
    for flags, words in ((("--help",), "build_and_push.sh IMAGE [--tag T]"), (("host/gnn",), "Done: host/gnn")):
        done = subprocess.run([*command, *flags], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 and words in done.stdout + done.stderr, done
    assert checkout.report()["version"] == "1.0"


def test_folder_without_history_is_refused(checkout: Checkout):
    shutil.rmtree(checkout.root / ".git")
    assert_refused(checkout.start("host/gnn", env={"GIT_CEILING_DIRECTORIES": "/"}), "not a git repository")


def test_checkout_of_another_user_is_refused_with_the_command_of_git(checkout: Checkout):
    done = checkout.start("host/gnn", env={"GIT_TEST_ASSUME_DIFFERENT_OWNER": "1"})
    assert_refused(done, "dubious ownership", f"git config --global --add safe.directory {checkout.root}")


@pytest.mark.parametrize(
    ("flags", "env", "word"),
    [
        ((), {}, "name the image"),
        (("host/gnn:1",), {}, "--tag"),
        (("host/gnn", "--pull"), {}, "there is no flag --pull"),
        (("host/gnn", "--tag"), {}, "--tag needs a value"),
        (("host/gnn",), {"DOCKER": "no-such-engine"}, "there is no no-such-engine"),
    ],
)
def test_wrong_command_line_or_a_missing_engine_is_refused(checkout: Checkout, flags, env: dict, word: str):
    assert_refused(checkout.start(*flags, env=env), word)
    assert not checkout.calls.exists()


def fails(words: str) -> str:
    return f"echo '{words}' >&2; exit 1"


@pytest.mark.parametrize(
    ("command", "script", "sentence"),
    [
        ("version", fails(""), "does not answer"),
        ("version", fails("permission denied while trying to connect to the Docker daemon socket"), "group docker"),
        ("build", fails("write /var/lib/docker/tmp: no space left on device"), "the disk is full"),
        ("build", fails("the --mount option requires BuildKit."), "BuildKit is missing"),
        ("build", fails("dial tcp: lookup host: no such host"), "cannot be reached"),
        ("build", fails("something odd"), "the build failed: see above"),
        ("run", "exit 1", "the smoke test failed"),
        ("run", "true", "the smoke test failed"),  # some engines report every run as a success
        ("push", fails("no basic auth credentials"), "docker login"),
        ("pull", f"echo 'Digest: {OTHER}'", f"({OTHER}) than was pushed ({PUSHED})"),
    ],
)
def test_what_fails_is_explained_in_one_sentence_and_not_pushed(checkout: Checkout, command: str, script, sentence):
    assert_refused(checkout.start("host/gnn", **{command: script}), sentence)
    assert not (checkout.root / "image.json").exists()
    assert bool(checkout.called("push")) == (command in ("push", "pull"))
    assert bool(checkout.called("volume rm")) == (command != "version")
