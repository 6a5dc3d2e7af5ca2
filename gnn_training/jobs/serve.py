"""Show the page that colors graphs in a browser, on this machine alone."""

import logging
import os
import sys
from contextlib import suppress
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from gnn_training import files
from gnn_training.contract import WEB_FILE
from gnn_training.errors import MachineError, UserError
from gnn_training.settings import ServeSettings

log = logging.getLogger(__name__)
PACKAGE = Path(__file__).resolve().parents[1]
PAGES = (PACKAGE / "web", PACKAGE.parent / "clients" / "web")  # in an installation and in a clone
CLONE = Path("clients/web")  # where `npm ci --prefix clients/web` has run, in a clone that is the current folder
RUNTIME_FILES = ("ort.wasm.bundle.min.mjs", "ort-wasm-simd-threaded.wasm")
TYPES = {
    ".html": "text/html; charset=utf-8", ".css": "text/css", ".svg": "image/svg+xml", ".js": "text/javascript",
    ".mjs": "text/javascript", ".wasm": "application/wasm", ".onnx": "application/octet-stream",
}  # fmt: skip
HEADERS = {
    # The browser itself refuses any request to another host.
    "Content-Security-Policy": "default-src 'self'; script-src 'self' 'wasm-unsafe-eval'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


def serve(settings: ServeSettings) -> None:
    """Answer requests on 127.0.0.1 until Ctrl-C or SIGTERM. UserError if the page, the model or ONNX Runtime for
    browsers is not there, MachineError if the port is taken.
    """
    handler = type("Handler", (PageHandler,), {"served": served_files(settings)})
    try:
        server = PageServer(("127.0.0.1", settings.port), handler)
    except OSError as error:
        raise MachineError(f"port {settings.port}: {files.reason(error)}; name another with --port") from error
    with suppress(KeyboardInterrupt), server:  # a second Ctrl-C may come while it closes
        log.info("http://127.0.0.1:%d shows the page; Ctrl-C ends it", server.server_port)
        server.serve_forever()


def served_files(settings: ServeSettings) -> dict[str, Path]:
    """The files of the page by the path of their address; nothing else is served."""
    web = next((folder for folder in PAGES if folder.is_dir()), None)
    if web is None:
        raise UserError(f"the page is not in {PACKAGE}: start serve in a clone, or install the package")
    folders = [folder / "node_modules" / "onnxruntime-web" / "dist" for folder in (web, CLONE)]
    runtime = settings.runtime or next((folder for folder in folders if folder.is_dir()), folders[0])
    runtime_files, model = {f"/runtime/{name}": runtime / name for name in RUNTIME_FILES}, settings.models / WEB_FILE
    if not model.is_file():
        raise UserError(f"{model}: there is no such file; export again or name another --models")
    if not all(path.is_file() for path in runtime_files.values()):
        hint = f"install it once with `npm ci --prefix {web}`, or name its folder with --runtime"
        raise UserError(f"{runtime}: ONNX Runtime for browsers is not there; {hint}")
    pages = {f"/{path.name}": path for path in web.iterdir() if path.suffix in TYPES}
    return {**pages, **runtime_files, "/": web / "index.html", f"/{WEB_FILE}": model}


class PageServer(ThreadingHTTPServer):
    """A server that says nothing of connections that end."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class PageHandler(SimpleHTTPRequestHandler):
    """A handler that sends a served file, or 404."""

    served: dict[str, Path]
    extensions_map = TYPES
    timeout = 60  # seconds, for a connection that sends nothing

    def send_head(self) -> Any:
        """Send the head of an answer. Refuse requests to another host: a foreign page could point a name of its own at
        this machine and read the model.
        """
        port = self.connection.getsockname()[1]
        if self.headers["Host"] in (f"127.0.0.1:{port}", f"localhost:{port}"):
            return super().send_head()
        return self.send_error(HTTPStatus.FORBIDDEN)

    def translate_path(self, path: str) -> str:
        """The file of an address, or a path that does not exist if none is served. Reading a FIFO would block."""
        file = self.served.get(path.partition("?")[0])
        return str(file) if file and file.is_file() else os.devnull + "/"

    def end_headers(self) -> None:
        for name, value in HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing about single requests."""
