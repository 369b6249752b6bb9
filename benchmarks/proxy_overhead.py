"""What the opencode-harness proxy adds to each streamed token, on loopback.

A fake model server (a process of its own) streams tokens, each with its time of sending; the client takes each
token's age when it arrives, once straight from the server and once through the proxy. The added time is the
difference of the medians. Run: python benchmarks/proxy_overhead.py [TOKENS]

Exit status 1 when the added median is 1 ms or more.
"""

from __future__ import annotations

import http.client
import json
import multiprocessing
import statistics
import sys
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from urllib.parse import urlsplit

from opencode_harness.proxy import Proxy

TOKENS = 2_000
# A pause between tokens, as a model makes it: without one the pieces pile up and their age says nothing.
TOKEN_INTERVAL_S = 0.001
LIMIT_MS = 1.0


class TokenSource(BaseHTTPRequestHandler):
    """Streams as many tokens as `max_tokens` asks for; each token's text is the monotonic time of its sending."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def do_POST(self) -> None:
        """Answer a chat request."""
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for _ in range(request["max_tokens"]):
            time.sleep(TOKEN_INTERVAL_S)
            delta = {"choices": [{"index": 0, "delta": {"content": str(time.monotonic_ns())}, "finish_reason": None}]}
            self._chunk(b"data: " + json.dumps(delta).encode() + b"\n\n")
        self._chunk(b"data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))


def serve(ready: Connection) -> None:
    """Run the fake server until the process is ended."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), TokenSource)
    ready.send(server.server_address[1])
    server.serve_forever()


def token_ages_ms(base_url: str, tokens: int) -> list[float]:
    """Ages of the tokens of one answer at their arrival, in milliseconds."""
    body = {"model": "m", "stream": True, "max_tokens": tokens, "tools": [{}], "messages": []}
    connection = http.client.HTTPConnection(urlsplit(base_url).netloc)
    connection.request("POST", "/v1/chat/completions", json.dumps(body))
    ages = []
    with connection.getresponse() as response:
        while line := response.readline():
            if line.startswith(b"data: {"):
                arrived_ns = time.monotonic_ns()
                sent_ns = int(json.loads(line[6:])["choices"][0]["delta"]["content"])
                ages.append((arrived_ns - sent_ns) / 1e6)
    connection.close()
    return ages


def main(argv: Sequence[str]) -> int:
    """Measure and print; see the module's text."""
    tokens = int(argv[0]) if argv else TOKENS
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=serve, args=(sender,), daemon=True)
    process.start()
    server_url = f"http://127.0.0.1:{receiver.recv()}"
    try:
        direct = token_ages_ms(server_url, tokens)
        with Proxy(upstream=server_url) as proxy:
            proxied = token_ages_ms(proxy.base_url, tokens)
    finally:
        process.terminate()
        process.join()
    for name, ages in (("direct", direct), ("proxied", proxied)):
        p99 = statistics.quantiles(ages, n=100)[98]
        print(f"{name:8} {len(ages)} tokens  median {statistics.median(ages):.3f} ms  p99 {p99:.3f} ms")
    added_ms = statistics.median(proxied) - statistics.median(direct)
    print(f"added    {added_ms:.3f} ms a token (limit {LIMIT_MS:g} ms)")
    return 0 if added_ms < LIMIT_MS else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
