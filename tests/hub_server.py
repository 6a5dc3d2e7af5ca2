"""The part of the Hugging Face Hub's protocol that huggingface_hub needs to push and fetch a model, on loopback."""

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import unquote, urlsplit

TOKEN = "hf_ThisIsTheTokenOfATest"  # a push without it is refused
Files = dict[str, bytes]


@dataclass
class Repository:
    """Commits, oldest first: files by name. gated: whether files can be seen and not fetched."""

    commits: list[Files] = field(default_factory=list)
    gated: bool = False


def commit_id(files: Files) -> str:
    return hashlib.sha1(b"".join(name.encode() + content for name, content in sorted(files.items()))).hexdigest()


class Hub(ThreadingHTTPServer):
    """A server; url: its address; repositories: by name; requests: "METHOD /path" of all so far."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.repositories: dict[str, Repository] = {}
        self.requests: list[str] = []
        self.status = 0  # instead of all answers, if set

    def routes(self) -> Iterator[tuple[str, str]]:
        """Regular expressions of "METHOD /path" and the names of the methods that answer."""
        repo = r"(?P<name>[^/]+/[^/]+)"
        yield "POST /api/validate-yaml", "validate"
        yield "POST /api/repos/create", "create"
        yield f"GET /api/models/{repo}/revision/(?P<revision>[^/]+)", "info"
        yield f"GET /api/models/{repo}/tree/(?P<revision>[^/]+)", "tree"
        yield f"POST /api/models/{repo}/preupload/main", "preupload"
        yield f"POST /api/models/{repo}/commit/main", "commit"
        yield f"(HEAD|GET) /{repo}/resolve/(?P<revision>[^/]+)/(?P<file>.+)", "resolve"


class Handler(BaseHTTPRequestHandler):
    """One request. Every answer is a status, headers and a body."""

    server: Any  # a Hub
    protocol_version = "HTTP/1.1"

    def answer(self) -> None:
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        request = f"{self.command} {unquote(urlsplit(self.path).path)}"
        self.server.requests.append(request)
        if self.server.status:
            return self.send(self.server.status)
        for pattern, method in self.server.routes():
            if match := re.fullmatch(pattern, request):
                if self.command == "POST" and self.token() != TOKEN:
                    return self.send(401, error="Invalid username or password.")
                return self.find(getattr(self, method), match.groupdict())
        self.send(404, error=f"no route for {request}")

    def find(self, method: Callable, parts: dict[str, str]) -> None:
        """Call a method with the repository, the commit and the files of a path, or answer that one is missing."""
        self.name, revision = parts.pop("name", ""), parts.pop("revision", "")
        if self.name:
            if self.name not in self.server.repositories:
                return self.send(404, code="RepoNotFound", error="Repository not found")
            self.repository = self.server.repositories[self.name]
        if revision:
            commits = {commit_id(files): files for files in self.repository.commits}
            self.revision = [revision, *commits][-1] if revision == "main" else revision
            if self.revision not in commits:
                return self.send(404, code="RevisionNotFound", error=f"Invalid rev id: {revision}")
            self.files = commits[self.revision]
        method(**parts)

    do_GET = do_HEAD = do_POST = answer

    def token(self) -> str:
        return self.headers.get("Authorization", "").removeprefix("Bearer ")

    def send(self, status: int, body: object = b"", code: str = "", error: str = "", **headers: str) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers |= {"X-Error-Code": code} if code else {}
        headers |= {"X-Error-Message": error} if error else {}
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(content))} | headers).items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass

    def validate(self) -> None:
        head = json.loads(self.body)["content"].split("---\n")[1]
        known = any(f"license: {license}\n" in head for license in ("mit", "apache-2.0"))
        errors = [] if known else [{"message": '"license" must be one of [mit, apache-2.0]'}]
        self.send(200 if known else 400, {"errors": errors, "warnings": []})

    def create(self) -> None:
        asked = json.loads(self.body)
        name = f"{asked['organization']}/{asked['name']}"
        exists = name in self.server.repositories
        self.server.repositories.setdefault(name, Repository())
        self.send(409 if exists else 200, {"url": f"{self.server.url}/{name}"})

    def preupload(self) -> None:
        """How to upload files; the Hub takes large ones by LFS, which is the business of its library."""
        regular = {"shouldIgnore": False, "uploadMode": "regular"}
        self.send(200, {"files": [{"path": file["path"], **regular} for file in json.loads(self.body)["files"]]})

    def commit(self) -> None:
        header, *operations = (json.loads(line) for line in self.body.splitlines())
        assert header["key"] == "header" and header["value"]["summary"]
        files = dict(self.repository.commits[-1]) if self.repository.commits else {}
        for operation in operations:
            files[operation["value"]["path"]] = base64.b64decode(operation["value"]["content"])
        self.repository.commits.append(files)
        commit = commit_id(files)
        self.send(200, {"commitUrl": f"{self.server.url}/{self.name}/commit/{commit}", "commitOid": commit})

    def info(self) -> None:
        siblings = [{"rfilename": file} for file in self.files]
        self.send(200, {"id": self.name, "sha": self.revision, "siblings": siblings})

    def tree(self) -> None:
        self.send(200, [{"type": "file", "path": file, "size": len(content), "oid": etag(content)}
                        for file, content in self.files.items()])  # fmt: skip

    def resolve(self, file: str) -> None:
        if self.repository.gated:
            return self.send(403, code="GatedRepo", error="Access to this model is restricted")
        if file not in self.files:
            return self.send(404, code="EntryNotFound", error="Entry not found", X_Repo_Commit=self.revision)
        content = self.files[file]
        self.send(200, content, ETag=f'"{etag(content)}"', X_Repo_Commit=self.revision)


def etag(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


@contextmanager
def running(server: ThreadingHTTPServer) -> Iterator[Any]:
    """A server in a thread of its own."""
    with server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
