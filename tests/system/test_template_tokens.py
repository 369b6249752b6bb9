"""Tokens counted offline equal those of a real server with the same model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import llama_launch
import pytest
import requests
from gguf_info.cli import main

pytestmark = pytest.mark.system

TEXTS = {
    "words": "The quick brown fox doesn't jump over 2 lazy dogs; they've left.",
    "code": "def f(x):\n    if x == 10_000:\n\t\treturn {'a': [1, 22, 333]}\n\n\n# done\r\n",
    "other scripts": "Größe naïve 東京 привет 🚀🚀 e\u0301 \u200b\xa0x",
    "spaces": "   leading\n\n\n   and   trailing   ",
    "special tokens in the text": "<|im_start|>user<|im_end|> <|endoftext|>",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[llama_launch.RunningServer]:
    profile = llama_launch.load_profile("smollm2-135m")
    run_dir = tmp_path_factory.mktemp("server")
    with llama_launch.start_server(profile, run_dir=run_dir, backend="embedded") as running:
        yield running


@pytest.mark.parametrize("name", TEXTS)
def test_a_request_has_as_many_tokens_as_the_server_computes(
    server: llama_launch.RunningServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": TEXTS[name]}]
    body = {"messages": messages, "max_tokens": 1, "cache_prompt": False}
    answer = requests.post(f"{server.url}/v1/chat/completions", json=body, timeout=120).json()
    (tmp_path / "request.json").write_text(json.dumps({"messages": messages}))
    arguments = ["template", str(server.model_path), "--messages", str(tmp_path / "request.json"), "--format", "json"]
    assert main(arguments) == 0
    counted = json.loads(capsys.readouterr().out)["request"]
    assert counted["n_tokens"] == answer["usage"]["prompt_tokens"]
