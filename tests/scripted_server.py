"""An HTTP server in this process whose answers a test gives: by path, one after another, the last one again."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Scripted:
    """What is answered and what was asked."""

    url: str = ""
    answers: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    asked: list[tuple[str, str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)

    def answer(self, path: str, *answers: object, status: int = 200) -> None:
        texts = [answer if isinstance(answer, str) else json.dumps(answer) for answer in answers]
        self.answers.setdefault(path, []).extend((status, text) for text in texts)


@contextmanager
def scripted_server() -> Iterator[Scripted]:
    """A server on a port of its own."""
    scripted = Scripted()

    class Handler(BaseHTTPRequestHandler):
        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            scripted.asked.append((self.command, self.path, json.loads(body) if body else None))
            scripted.keys.append(self.headers.get("Authorization"))
            answers = scripted.answers.get(self.path, [(404, "not here")])
            status, text = answers.pop(0) if len(answers) > 1 else answers[0]
            self.send_response(status)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        do_GET = do_POST = handle_any  # noqa: N815 (http.server's names)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    scripted.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield scripted
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
