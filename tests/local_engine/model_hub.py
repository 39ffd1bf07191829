"""A model hub on loopback: enough of its HTTP interface for one file at a time."""

from __future__ import annotations

import hashlib
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMIT = "c0ffee" + "0" * 34


class Hub:
    """Files of one repository, `org/repo`, and what clients asked for."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.digests = {name: hashlib.sha256(raw).hexdigest() for name, raw in files.items()}
        self.ranges: list[str | None] = []
        self.drop_after_bytes: int | None = None
        self.endpoint = ""

    def description(self) -> dict[str, object]:
        siblings = [
            {
                "rfilename": name,
                "size": len(raw),
                "lfs": {"sha256": self.digests[name], "size": len(raw), "pointerSize": 130},
            }
            for name, raw in self.files.items()
        ]
        return {"id": "org/repo", "sha": COMMIT, "siblings": siblings}


@contextmanager
def serve_hub(files: dict[str, bytes]) -> Iterator[Hub]:
    """Serve until the block ends; `hub.drop_after_bytes` breaks the next answer off once."""
    hub = Hub(files)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            if self.path.startswith("/api/models/org/repo/revision/"):
                body = json.dumps(hub.description()).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
                return
            self._answer(with_body=True)

        def _answer(self, *, with_body: bool) -> None:
            name = self.path.removeprefix(f"/org/repo/resolve/{COMMIT}/")
            raw = hub.files.get(name)
            if raw is None:
                self.send_response(404)
                self.send_header("X-Error-Code", "RepoNotFound")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            start = 0
            asked = self.headers.get("Range")
            if with_body:
                hub.ranges.append(asked)
            if asked is not None:
                start = int(asked.removeprefix("bytes=").split("-")[0])
            self.send_response(206 if asked else 200)
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("ETag", f'"{hub.digests[name]}"')
            self.send_header("Content-Length", str(len(raw) - start))
            if asked:
                self.send_header("Content-Range", f"bytes {start}-{len(raw) - 1}/{len(raw)}")
            self.end_headers()
            if not with_body:
                return
            stop = len(raw)
            if hub.drop_after_bytes is not None:
                stop, hub.drop_after_bytes = start + hub.drop_after_bytes, None
            self.wfile.write(raw[start:stop])
            if stop < len(raw):
                self.close_connection = True

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
