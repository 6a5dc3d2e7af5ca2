"""A Docker engine, a Debian base image and a registry of our own, made from Debian packages; needs root.

Their state stays between test sessions in one folder, so that layers and downloads are there the next time.
"""

import os
import shutil
import subprocess
import tempfile
from contextlib import ExitStack
from pathlib import Path

from checkout import answers, free_port
from filelock import FileLock
from tiny_runs import wait_for

PACKAGES = ("docker.io", "docker-registry", "debootstrap")
BASE = "local/base:bookworm"
BASE_PACKAGES = "python3,python3-venv,ca-certificates,tini"
CACHE_LIMIT = "15GB"  # a build takes 11


class Engine(ExitStack):
    """The engine, from `start` to the end of its `with`. One session at a time; others wait for it."""

    def __init__(self):
        super().__init__()
        self.folder = Path(tempfile.gettempdir(), "gnn-training-engine")
        self.folder.mkdir(exist_ok=True)
        self.client = "/usr/bin/docker"  # another one, earlier on PATH, may not know BuildKit
        own = {"DOCKER_HOST": f"unix://{self.folder}/docker.sock", "DOCKER": self.client, "DOCKER_BUILDKIT": "1"}
        self.environment = os.environ | own

    def start(self) -> None:
        """Start the engine with a base image, and a registry."""
        self.enter_context(FileLock(self.folder / "lock"))
        self._start_engine()
        self._make_base()
        self._forget_old_builds()
        self.registry = self._start_registry()

    def docker(self, *args: str, check: bool = True, **options) -> subprocess.CompletedProcess[str]:
        command = [self.client, *args]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, **options)
        assert not check or done.returncode == 0, (command, done.stderr)
        return done

    def _answers(self) -> bool:
        return self.docker("version", check=False).returncode == 0

    def _start_engine(self) -> None:
        if self._answers():  # left behind by a session that was killed
            return
        places = {"--data-root": "data", "--exec-root": "exec", "--pidfile": "pid"}
        state = [word for flag, name in places.items() for word in (flag, str(self.folder / name))]
        # The sandboxes that tests run in seldom let a container have a network of its own; ours need none.
        network = ("--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-forward=false", "--ip-masq=false")
        process = self._spawn("dockerd", *state, "--host", self.environment["DOCKER_HOST"], *network)
        wait_for(self._answers, process, 60)

    def _start_registry(self) -> str:
        port, settings = free_port(), self.folder / "registry.yml"
        address = f"127.0.0.1:{port}"
        storage = "{filesystem: {rootdirectory: registry}}"
        settings.write_text(f"version: 0.1\nstorage: {storage}\nhttp: {{addr: '{address}'}}\n")
        process = self._spawn("docker-registry", "serve", str(settings))
        wait_for(lambda: answers(port), process, 60)
        return address

    def _make_base(self) -> None:
        if self.docker("image", "inspect", BASE, check=False).returncode == 0:
            return
        with tempfile.TemporaryDirectory(dir=self.folder) as root:
            command = ["debootstrap", "--variant=minbase", f"--include={BASE_PACKAGES}", "bookworm", root]
            subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
            for name in ("var/cache/apt/archives", "var/lib/apt/lists"):
                shutil.rmtree(Path(root, name))
            with subprocess.Popen(["tar", "-C", root, "-c", "."], stdout=subprocess.PIPE) as tar:
                path = "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
                self.docker("import", "--change", path, "-", BASE, stdin=tar.stdout)

    def _forget_old_builds(self) -> None:
        self.docker("image", "prune", "--all", "--force", "--filter", "label=org.opencontainers.image.title")
        self.docker("builder", "prune", "--force", "--keep-storage", CACHE_LIMIT)

    def _spawn(self, *command: str) -> subprocess.Popen:
        with open(self.folder / f"{command[0]}.log", "w") as log:
            options = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log, "start_new_session": True}
            process = subprocess.Popen(command, cwd=self.folder, **options)
        self.callback(process.wait)
        self.callback(process.terminate)  # first
        return process
