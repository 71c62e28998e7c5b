"""A local HTTP server that stands in for the Hugging Face hub, with the faults that downloads meet."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"
NAME = "org/tiny"


@dataclass(slots=True)
class Hub:
    """One model and how the server behaves; tests change it between commands."""

    files: dict[str, bytes]
    gated: bool = False
    """Metadata is public, files are answered with 403."""
    hidden: bool = False
    """Everything is answered with 401, as for a name that does not exist."""
    cut_after: int = 0
    """Bytes of a safetensors file after which the connection is closed; 0 for none."""
    held_after: int = 0
    """Bytes of a safetensors file after which nothing comes until `go_on` is set; 0 for none."""
    go_on: threading.Event = field(default_factory=threading.Event)
    stated_size: int | None = None
    """Size that the listing gives for each file instead of its own."""
    stated_checksum: str = ""
    """Checksum that the listing gives for a large file instead of its own."""
    ranges: list[str] = field(default_factory=list)
    """Range headers of requests for safetensors files; '' for a request for all of it."""
    requests: int = 0
    """Number of requests of any kind."""
    url: str = ""


@contextlib.contextmanager
def serve(directory: Path) -> Iterator[Hub]:
    """Serve the files of a model directory as `NAME`."""
    hub = Hub({file.name: file.read_bytes() for file in directory.iterdir() if file.is_file()})
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    """Set on a subclass per server."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, *, body: bool) -> None:
        path = self.path.partition("?")[0]
        self.hub.requests += 1
        if self.hub.hidden:
            self._refuse(401, "RepoNotFound")
        elif path.startswith(f"/api/models/{NAME}/tree/"):
            self._send(json.dumps([{"type": "file", **each} for each in _listing(self.hub, "path")]).encode(), body)
        elif path == f"/api/models/{NAME}" or path.startswith(f"/api/models/{NAME}/revision/"):
            self._send(json.dumps(_info(self.hub)).encode(), body)
        elif path.startswith(f"/{NAME}/resolve/"):
            self._file(path.rsplit("/", 1)[1], body)
        else:
            self._refuse(404, "EntryNotFound")

    def _file(self, name: str, body: bool) -> None:
        if self.hub.gated:
            self._refuse(403, "GatedRepo")
            return
        data = self.hub.files.get(name)
        if data is None:
            self._refuse(404, "EntryNotFound")
            return
        wanted = self.headers.get("Range", "")
        if body and name.endswith(".safetensors"):
            self.hub.ranges.append(wanted)
        start = int(wanted.removeprefix("bytes=").split("-")[0]) if wanted else 0
        self.send_response(206 if wanted else 200)
        self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(data) - start))
        if wanted:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.end_headers()
        if not body:
            return
        if self.hub.cut_after and name.endswith(".safetensors"):
            self.wfile.write(data[start : max(start, self.hub.cut_after)])
            self.close_connection = True
            return
        if self.hub.held_after and name.endswith(".safetensors"):
            middle = max(start, self.hub.held_after)
            self.wfile.write(data[start:middle])
            self.hub.go_on.wait(60)
            start = middle
        with contextlib.suppress(OSError):  # the other side has left
            self.wfile.write(data[start:])

    def _send(self, content: bytes, body: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if body:
            self.wfile.write(content)

    def _refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", f"{code} for {NAME}")
        self.send_header("Content-Length", "0")
        self.end_headers()


def _info(hub: Hub) -> dict[str, object]:
    return {
        "_id": "0", "id": NAME, "modelId": NAME, "sha": COMMIT, "private": False, "disabled": False,
        "gated": "manual" if hub.gated else False, "tags": ["license:apache-2.0"], "downloads": 0, "likes": 0,
        "siblings": _listing(hub, "rfilename"),
    }  # fmt: skip


def _listing(hub: Hub, key: str) -> list[dict[str, object]]:
    return [
        {key: name, "size": len(data) if hub.stated_size is None else hub.stated_size, "oid": "0" * 40,
         "blobId": "0" * 40, **_lfs(hub, name, data)}
        for name, data in hub.files.items()
    ]  # fmt: skip


def _lfs(hub: Hub, name: str, data: bytes) -> dict[str, object]:
    """What the hub says of a large file, which it knows by its checksum."""
    if not name.endswith(".safetensors"):
        return {}
    size = len(data) if hub.stated_size is None else hub.stated_size
    checksum = hub.stated_checksum or hashlib.sha256(data).hexdigest()
    return {"lfs": {"sha256": checksum, "size": size, "pointerSize": 134, "oid": checksum}}
