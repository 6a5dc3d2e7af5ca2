"""What RunPod is asked for, by a real server: the commands of its page, and the order to stop the pod."""

import json
import logging
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.server import ThreadingHTTPServer
from pathlib import Path

import debian
import hub_server
import pytest
from checkout import check_schema, free_port, write_program
from tiny_runs import ROOT

from gnn_training import runpod as job
from gnn_training.errors import MachineError, UserError

PAGE = (ROOT / "docs/PODS.md").read_text()
REQUESTS = [block for block in re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL) if "curl " in block]
KEY = "rpa_0123456789SECRET"
POD = {"RUNPOD_POD_ID": "abc123xyz", "RUNPOD_API_KEY": KEY}
Order = tuple[str, str, str | None, object]


class Server(ThreadingHTTPServer):
    """Answers with these codes, the last for ever; None is silence. Notes method, path, key and body of every order."""

    def __init__(self, *codes: int | None, location: str = ""):
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}/v2"
        self.codes, self.location, self.orders = list(codes), location, list[Order]()


class Handler(hub_server.Handler):
    def answer(self) -> None:
        orders, codes = self.server.orders, self.server.codes
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or "null")
        orders.append((self.command, self.path, self.headers["Authorization"], body))
        code = codes[min(len(orders), len(codes)) - 1]
        if code is None:
            time.sleep(1)
        else:
            self.send(code, {"title": "Trouble", "status": code, "detail": "the reason"}, Location=self.server.location)

    do_GET = do_POST = do_DELETE = answer


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Server]]:
    """serve(*codes): a server that runs until the test ends."""
    with ExitStack() as stack:

        def start(*codes: int | None, location: str = "") -> Server:
            if None in codes:
                monkeypatch.setattr(job, "ANSWER_SECONDS", 0.4 if any(codes) else 0.1)
            return stack.enter_context(hub_server.running(Server(*codes, location=location)))

        yield start


@pytest.fixture
def send(serve, tmp_path: Path) -> Callable[[str], list[Order]]:
    """send(commands): what RunPod gets from a shell whose curl takes a server here for every other."""

    def run(commands: str) -> list[Order]:
        server = serve(200)
        here = f"--noproxy '*' --connect-to ::127.0.0.1:{server.server_port}"
        curl = tmp_path / "bin/curl"
        write_program(curl, f'#!/bin/bash\nexec {debian.command("curl")} {here} "${{@/#https:/http:}}"\n')
        variables = os.environ | {"PATH": f"{curl.parent}:{os.environ['PATH']}", "RUNPOD_API_KEY": KEY}
        subprocess.run(["bash", "-euo", "pipefail", "-c", commands], cwd=ROOT, env=variables, check=True)
        assert {key for _, _, key, _ in server.orders} == {f"Bearer {KEY}"}
        return server.orders

    return run


@pytest.mark.parametrize("other", [None, "other.example:5000/me/gnn@sha256:0a1b"])
@pytest.mark.parametrize("name", [path.name for path in (ROOT / "deploy").glob("runpod-*.json")])
def test_commands_of_the_page_are_requests_of_version_2_of_the_api_and_rent_the_pod_of_a_file(name: str, other, send):
    [image] = re.findall(rf"image=(\S+) file=deploy/{name}", PAGE)
    chosen = f"image={other or image} file=deploy/{name}"
    commands, choices = re.subn(r"image=\S+ file=\S+", chosen, "\n".join(REQUESTS))
    assert choices == 1 and "rest.runpod" not in PAGE
    volume, pod, action, end = send(commands)
    assert [order[:2] for order in (volume, pod, action)] == [
        ("POST", "/v2/network-volumes"),
        ("POST", "/v2/pods"),
        ("POST", "/v2/pods/xyz789/action"),
    ]
    assert end == ("DELETE", "/v2/pods/xyz789", f"Bearer {KEY}", None)
    schemas = ("CreateNetworkVolumeRequest", "CreatePodRequest", "PodActionRequest")
    for schema, order in zip(schemas, (volume, pod, action), strict=True):
        check_schema("runpod_schema.json", schema)(order[3])
    file = json.loads((ROOT / "deploy" / name).read_text())
    network = [{"volumeId": "abc123", "path": "/workspace"}]
    assert pod[3] == file | {"image": other or image, "mounts": {"network": network}}


def failure(api: str) -> str:
    """Why the pod could not be stopped."""
    with pytest.raises(MachineError) as refused:
        job.stop_pod(POD, api, 0.01)
    assert "STILL BILLED" in str(refused.value) and "runpodctl pod stop abc123xyz" in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize("codes", [(200,), (500, 200), (503, 200), (429, 200), (None, 200)])
def test_the_order_is_repeated_until_it_is_taken(serve, codes: tuple[int | None, ...], caplog):
    server = serve(*codes)
    with caplog.at_level(logging.INFO):
        job.stop_pod(POD, server.url, 0.01)
    order = ("POST", "/v2/pods/abc123xyz/action", f"Bearer {KEY}", {"action": "stop"})
    assert server.orders == [order] * len(codes)
    assert "RunPod stops pod abc123xyz" in caplog.text and KEY not in caplog.text


@pytest.mark.parametrize(
    ("code", "orders", "words"), [(401, 1, "HTTP 401 Unauthorized"), (500, 5, "HTTP 500"), (None, 5, "timed out")]
)
def test_a_refusal_is_told_loudly_and_repeated_only_if_that_may_help(serve, code: int | None, orders: int, words: str):
    server = serve(code)
    assert words in failure(server.url)
    assert len(server.orders) == orders


def test_a_server_that_is_not_there_is_named_as_the_reason(caplog):
    said = failure(f"http://127.0.0.1:{free_port()}")
    assert "Connection refused" in said and KEY not in said + caplog.text


def test_a_redirect_does_not_get_the_key(serve):
    other = serve(200)
    server = serve(302, location=other.url)
    assert "HTTP 302" in failure(server.url)
    assert other.orders == []


@pytest.mark.parametrize("name", POD)
@pytest.mark.parametrize("value", [None, "", "two words", "line\n", "caf\u00e9"])
def test_what_is_missing_or_wrong_is_said_without_the_key(name: str, value: str | None):
    environ = {**POD, name: value} if value is not None else {k: v for k, v in POD.items() if k != name}
    with pytest.raises(UserError, match=f"stop_pod needs {name}") as refused:
        job.require_pod(environ)
    assert not value or value not in str(refused.value)
