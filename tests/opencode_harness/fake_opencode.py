"""A stand-in for OpenCode's terminal that a test can make misbehave: same screen signs, same files, same requests.

It reads the configuration that OPENCODE_CONFIG names, shows the prompt box, sends one title and then main requests to
the provider, runs the read and write tools for real, and writes OpenCode's log lines. FAKE_OPENCODE (set in the
script that a test makes) says how to misbehave: `rude` writes an unrequested file, `silent` never leaves its loop,
`unlogged` leaves it and never logs that.
"""

from __future__ import annotations

import json
import os
import sys
import termios
import time
import tty
import urllib.request
from pathlib import Path
from typing import Any

MISBEHAVIOUR = os.environ.get("FAKE_OPENCODE", "")


def draw(*rows: str) -> None:
    sys.stdout.write("\x1b[2J\x1b[H" + "\r\n".join(rows))
    sys.stdout.flush()


def log(line: str) -> None:
    folder = Path(os.environ["XDG_DATA_HOME"], "opencode", "log")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "opencode.log").open("a") as stream:
        stream.write(f"timestamp=2026-12-01T00:00:00 level=INFO {line}\n")


def read_prompt() -> str:
    """Keys until Enter; bracketed-paste marks are not part of the prompt."""
    keys = bytearray()
    while not keys.endswith(b"\r"):
        keys += os.read(0, 4096)
        if b"\x03" in keys:
            raise SystemExit(0)
        draw("  ┃  " + keys.decode(errors="replace").strip(), "  ┃  Build · model local")
    return keys[:-1].decode().replace("\x1b[200~", "").replace("\x1b[201~", "")


def complete(base_url: str, messages: list[dict[str, Any]], tools: list[str]) -> dict[str, Any]:
    """One streamed chat completion, put together again."""
    body: dict[str, Any] = {"model": "model", "messages": messages, "stream": True, "max_tokens": 100}
    body["stream_options"] = {"include_usage": True}
    if tools:
        body |= {"tools": [{"type": "function", "function": {"name": name}} for name in tools], "tool_choice": "auto"}
    headers = {"content-type": "application/json", "x-session-id": "ses_main"}
    request = urllib.request.Request(f"{base_url}/chat/completions", json.dumps(body).encode(), headers)
    text = ""
    calls: dict[int, dict[str, Any]] = {}
    with urllib.request.urlopen(request, timeout=30) as answer:
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            for choice in json.loads(line[6:]).get("choices", []):
                text += choice["delta"].get("content") or ""
                for part in choice["delta"].get("tool_calls") or []:
                    call = calls.setdefault(part["index"], {"id": "", "type": "function", "function": {}})
                    call["id"] = part.get("id") or call["id"]
                    function = call["function"]
                    for key in ("name", "arguments"):
                        function[key] = function.get(key, "") + (part.get("function", {}).get(key) or "")
    return {"role": "assistant", "content": text, **({"tool_calls": list(calls.values())} if calls else {})}


def run_tool(name: str, arguments: dict[str, str]) -> str:
    if name == "read":
        return Path(arguments["filePath"]).read_text()
    if name == "write":
        Path(arguments["filePath"]).parent.mkdir(parents=True, exist_ok=True)
        Path(arguments["filePath"]).write_text(arguments["content"])
        return "Wrote file successfully."
    return f"no such tool: {name}"


def converse(base_url: str, prompt: str) -> str:
    title = [{"role": "system", "content": "You are a title generator."}, {"role": "user", "content": prompt}]
    complete(base_url, title, [])
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "You are a coding agent."},
        {"role": "user", "content": prompt},
    ]
    log("message=loop session.id=ses_main step=0")
    while True:
        answer = complete(base_url, messages, ["read", "write"])
        messages.append(answer)
        if "tool_calls" not in answer:
            return str(answer["content"])
        for call in answer["tool_calls"]:
            function = call["function"]
            result = run_tool(function["name"], json.loads(function["arguments"] or "{}"))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})


def main() -> None:
    if "--version" in sys.argv:
        print("1.18.33")
        return
    config = json.loads(Path(os.environ["OPENCODE_CONFIG"]).read_text())
    (provider,) = config["provider"].values()
    tty.setraw(0, termios.TCSANOW)
    draw('  ┃  Ask anything… "Fix a bug"', "  ┃  Build · model local")
    prompt = read_prompt()
    draw(f"  ┃  {prompt[:60]}", "", "  ▣  Build · model", "  ⬝⬝⬝⬝ esc interrupt")
    print("fake noise on stderr", file=sys.stderr, flush=True)
    if MISBEHAVIOUR == "rude":
        Path("uninvited.txt").write_text("surprise")
    try:
        text = converse(provider["options"]["baseURL"], prompt)
    except OSError as error:
        text = f"request failed: {error}"
    if MISBEHAVIOUR not in ("silent", "unlogged"):
        log('message="exiting loop" session.id=ses_main')
    turn = "  ▣  Build · model" if MISBEHAVIOUR == "silent" else "  ▣  Build · model · 0.1s"
    draw(f"  ┃  {prompt[:60]}", "", f"     {text}", "", turn, "  ┃", "  110 (0%)")
    while os.read(0, 1) not in (b"\x03", b""):
        time.sleep(0)
    raise SystemExit(0)


main()
