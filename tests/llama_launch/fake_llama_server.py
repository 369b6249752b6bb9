"""A llama-server that misbehaves on command: FAKE_LLAMA names how. Its log lines are those of llama.cpp build 10068."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

HELP = Path(__file__).with_name("data") / "llama-server-b10068.help.txt"
LOGS = Path(__file__).parents[2] / "fixtures" / "logs"
KEY = os.environ.get("FAKE_LLAMA_KEY")


def log(line: str) -> None:
    print(f"0.00.031.046 {line}", file=sys.stderr, flush=True)


def value_of(flag: str) -> str:
    return sys.argv[sys.argv.index(flag) + 1]


class Handler(BaseHTTPRequestHandler):
    """/health, /props, /slots, /tokenize and /metrics, as far as the client reads them."""

    cached_tokens = 0
    is_sleeping = False

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        n_slots, n_ctx = int(value_of("--parallel")), int(value_of("--ctx-size"))
        slots: list[dict[str, object]] = [
            {"id": number, "n_ctx": n_ctx, "is_processing": number == 1} for number in range(n_slots)
        ]
        slots[-1]["n_prompt_tokens"] = slots[1 % n_slots]["n_prompt_tokens"] = self.cached_tokens
        answers: dict[str, object] = {
            "/health": {"status": "ok"},
            "/slots": slots,
            "/props": {
                "total_slots": n_slots,
                "is_sleeping": self.is_sleeping,
                "default_generation_settings": {"n_ctx": n_ctx},
                "model_path": value_of("--model"),
            },
        }
        if path == "/metrics":
            self.answer(200, "# HELP llamacpp:requests_processing Requests\nllamacpp:requests_processing 2\n")
        elif path in answers:
            self.answer(200, json.dumps(answers[path]))
        else:
            self.answer(404, '{"error": {"message": "File Not Found"}}')

    def do_POST(self) -> None:
        url = urlsplit(self.path)
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        if KEY and self.headers.get("Authorization") != f"Bearer {KEY}":
            self.answer(401, '{"error": {"message": "Invalid API Key"}}')
        elif "--slot-save-path" not in sys.argv and url.path.startswith("/slots"):
            self.answer(501, '{"error": {"message": "This server does not support slots action."}}')
        else:
            found = {"n_erased": 17, "n_saved": 5, "n_written": 99, "n_restored": 5, "n_read": 99, "tokens": [1, 2]}
            self.answer(200, json.dumps({**found, "echo": body, "query": url.query}))

    def answer(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


def serve(handler: type[BaseHTTPRequestHandler] = Handler) -> None:
    port = int(value_of("--port"))
    try:
        server = ThreadingHTTPServer((value_of("--host"), port), handler)
    except OSError:
        bind_failure()
    log("I srv          init: using 8 threads for HTTP server")
    log(f"I srv    load_model: loading model '{value_of('--model')}'")
    log(f"I srv  llama_server: server is listening on http://127.0.0.1:{port}")
    server.serve_forever()


def bind_failure() -> None:
    port = value_of("--port")
    log(f"E srv         start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: {port}")
    log("E srv  llama_server: exiting due to HTTP server error")
    sys.exit(1)


def missing_tensor() -> None:
    log("I srv    load_model: loading model 'm.gguf'")
    log("E llama_model_load: error loading model: missing tensor 'token_embd.weight'")
    log("E srv  llama_server: exiting due to model loading error")
    sys.exit(1)


def chatty() -> None:
    """More lines while it starts than a small disk can take."""
    for number in range(200):
        log(f"I load_tensors: layer {number:3d} assigned to device CPU, is_swa = 0")
    serve()


def hang() -> None:
    log("I srv    load_model: loading model 'm.gguf'")
    log("W cmn  common_init_: warming up the model with an empty run - please wait ... (--no-warmup to disable)")
    while True:
        time.sleep(60)


def out_of_memory_above() -> None:
    """The recorded failure of an allocation, for contexts above FAKE_LLAMA_MOST."""
    if int(value_of("--ctx-size")) <= int(os.environ["FAKE_LLAMA_MOST"]):
        serve()
    print((LOGS / "llama-server-b10068.err_oom_kv_lv4.log").read_text(), file=sys.stderr, flush=True)
    sys.exit(1)


def silent() -> None:
    sys.exit(7)


def stubborn() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    serve()


def with_a_child() -> None:
    marker = os.environ["FAKE_LLAMA_MARKER"]
    subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()", marker])
    serve()


def port_taken_once() -> None:
    marker = Path(os.environ["FAKE_LLAMA_MARKER"])
    if not marker.exists():
        marker.write_text(value_of("--port"))
        bind_failure()
    serve()


def healthy_without_a_word() -> None:
    ThreadingHTTPServer(("127.0.0.1", int(value_of("--port"))), Handler).serve_forever()


class Loading(Handler):
    """503 for the first calls of /health, as while a model loads."""

    calls = 0

    def do_GET(self) -> None:
        Loading.calls += 1
        if Loading.calls <= 3:
            self.answer(503, '{"error": {"message": "Loading model", "code": 503}}')
        else:
            super().do_GET()


class DiesWhenReady(Handler):
    """Answers /health once, and is gone."""

    def do_GET(self) -> None:
        super().do_GET()
        self.wfile.flush()
        os._exit(9)


class Asleep(Handler):
    """A server that has unloaded its model until the next request."""

    is_sleeping = True


class Refilled(Handler):
    """A slot that a request fills again as soon as it is erased."""

    cached_tokens = 40


BEHAVIOURS: dict[str, Callable[[], None]] = {
    "well": serve,
    "bind-failure": bind_failure,
    "missing-tensor": missing_tensor,
    "hang": hang,
    "chatty": chatty,
    "out-of-memory-above": out_of_memory_above,
    "dies-when-ready": lambda: serve(DiesWhenReady),
    "asleep": lambda: serve(Asleep),
    "silent": silent,
    "stubborn": stubborn,
    "with-a-child": with_a_child,
    "port-taken-once": port_taken_once,
    "healthy-without-a-word": healthy_without_a_word,
    "refilled": lambda: serve(Refilled),
    "loading": lambda: serve(Loading),
}


def main() -> None:
    if os.environ.get("FAKE_LLAMA") == "cannot-run":
        print("llama-server: error while loading shared libraries: libllama-common.so.0: cannot open", file=sys.stderr)
        sys.exit(127)
    if "--version" in sys.argv:
        print("version: 10068 (571d0d5)\nbuilt with GNU 11.4.0 for Linux x86_64", file=sys.stderr)
    elif "--help" in sys.argv:
        text = HELP.read_text()
        print(text.replace("--kv-unified", "--kv-unify") if os.environ.get("FAKE_LLAMA_OLD") else text)
    else:
        BEHAVIOURS[os.environ.get("FAKE_LLAMA", "well")]()


if __name__ == "__main__":
    main()
