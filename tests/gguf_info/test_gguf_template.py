"""Chat templates: written here in the ways that real ones refuse, leave out and misbehave."""

from __future__ import annotations

import io
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
from gguf_info.cli import main

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
STRICT = (
    "{% if tools %}[TOOLS]{{ tools | tojson }}[/TOOLS]{% endif %}"
    "{% for m in messages %}"
    "{% if m.role == 'system' and not loop.first %}{{ raise_exception('System message must be at the beginning.') }}"
    "{% endif %}"
    "{% for call in m.tool_calls or [] %}"
    "{% if call.id is not defined or call.id | length != 9 %}"
    "{{ raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}{% endif %}"
    "[CALL]{{ call.function.name }}{{ call.function.arguments | tojson }}{% endfor %}"
    "[{{ m.role }}]{{ m.content }}"
    "{% endfor %}{{ eos_token }}"
)
Templates = str | list[dict[str, str]] | None
WriteModel = Callable[..., Path]


@pytest.fixture
def model_with(tmp_path: Path) -> WriteModel:
    """A model with a template and a byte-level vocabulary of a few merges."""

    def write(template: Templates, pre: str = "gpt-2", add_bos: bool | None = None) -> Path:
        path = tmp_path / "model.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        letters = [chr(code) for code in range(33, 127)] + ["Ġ", "Ċ"]
        merged = ["he", "ll", "hell", "hello", "Ġw", "world"]
        special = ["<|im_start|>", "<|im_end|>"]
        tokens = [*letters, *merged, *special]
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(pre)
        writer.add_token_list(tokens)
        writer.add_token_types([1] * (len(letters) + len(merged)) + [3] * len(special))
        writer.add_token_merges(["h e", "l l", "he ll", "hell o", "Ġ w"])
        writer.add_bos_token_id(len(tokens) - 2)
        writer.add_eos_token_id(len(tokens) - 1)
        if add_bos is not None:
            writer.add_add_bos_token(add_bos)
        if template is not None:
            writer.add_chat_template(template)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()
        return path

    return write


def ask(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, model: Path, request: object | None = None
) -> tuple[int, dict[str, Any]]:
    arguments = ["template", str(model), "--format", "json"]
    if request is not None:
        (tmp_path / "request.json").write_text(json.dumps(request))
        arguments += ["--messages", str(tmp_path / "request.json")]
    status = main(arguments)
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return status, document


def checks(document: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {check["rule"]: (check["outcome"], check["message"]) for check in document["checks"]}


def test_a_template_that_leaves_tools_out_is_told_so(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, model_with: WriteModel
) -> None:
    status, document = ask(capsys, tmp_path, model_with(CHATML))
    assert status == 0
    assert document["renders_tools"] is False
    assert checks(document)["tools are rendered"] == ("left out", "")
    assert checks(document)["a system message later"] == ("yes", "")


def test_a_template_for_tools_takes_the_requests_with_tools(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, model_with: WriteModel
) -> None:
    templates = [
        {"name": "default", "template": "{{ messages[0].content }}"},
        {"name": "tool_use", "template": "{{ tools[0].function.name }}: {{ messages[0].content }}"},
    ]
    model = model_with(templates)
    request: dict[str, object] = {"messages": [{"role": "user", "content": "hello"}]}
    _, document = ask(capsys, tmp_path, model, request)
    assert document["request"]["prompt"] == "hello"
    assert document["renders_tools"] is True
    _, document = ask(capsys, tmp_path, model, request | {"tools": [{"function": {"name": "read"}}]})
    assert document["request"]["prompt"] == "read: hello"


def test_rules_of_a_strict_template_are_named_in_its_own_words(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, model_with: WriteModel
) -> None:
    _, document = ask(capsys, tmp_path, model_with(STRICT))
    found = checks(document)
    assert document["renders_tools"] is True
    assert found["a system message first"][0] == "yes"
    assert found["a system message later"] == ("refused", "System message must be at the beginning.")
    assert found["tool calls and results"][0] == "yes"
    outcome, message = found["tool-call ids of any form"]
    assert outcome == "refused"
    assert "length 9" in message


def test_the_message_that_is_refused_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, model_with: WriteModel
) -> None:
    conversation = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
        {"role": "system", "content": "Be polite."},
        {"role": "user", "content": "Again"},
    ]
    model = model_with(STRICT)
    status, document = ask(capsys, tmp_path, model, {"messages": conversation})
    assert status == 1
    assert document["request"]["failed_message"] == 2
    assert document["request"]["error"] == "System message must be at the beginning."
    assert main(["template", str(model), "--messages", str(tmp_path / "request.json")]) == 1
    assert "messages[2] (role system)" in capsys.readouterr().out


def test_a_request_is_rendered_as_the_template_says(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, model_with: WriteModel
) -> None:
    call = {"id": "abcdefghi", "type": "function", "function": {"name": "read", "arguments": '{"path": "a"}'}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "Read a"}, {"type": "text", "text": "now"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
    ]
    _, document = ask(capsys, tmp_path, model_with(STRICT), messages)
    assert document["request"]["prompt"] == '[user]Read a\nnow[CALL]read{"path": "a"}[assistant]<|im_end|>'


def test_tokens_are_counted_as_by_hand(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, model_with: WriteModel
) -> None:
    _, document = ask(capsys, tmp_path, model_with("{{ messages[0].content }}<|im_end|>"), [{"content": "hello world"}])
    # hello | Ġw o r l d | <|im_end|>
    assert document["request"]["n_tokens"] == 1 + 5 + 1
    assert document["request"]["n_tool_tokens"] == 0


@pytest.mark.parametrize(
    ("pre", "add_bos", "template", "n_tokens"),
    [
        ("gpt-2", None, "{{ messages[0].content }}", 1),
        ("gpt-2", True, "{{ messages[0].content }}", 2),
        ("gpt-2", True, "{{ bos_token }}{{ messages[0].content }}", 2),
        ("gpt-2", False, "{{ bos_token }}{{ messages[0].content }}", 2),
        ("llama-bpe", None, "{{ messages[0].content }}", 2),
        ("llama-bpe", None, "{{ bos_token }}{{ messages[0].content }}", 2),
        ("llama-bpe", False, "{{ messages[0].content }}", 1),
    ],
)
def test_a_first_token_counts_once(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    model_with: WriteModel,
    pre: str,
    add_bos: bool | None,
    template: str,
    n_tokens: int,
) -> None:
    """As common/chat.cpp has it: the template's own first token is taken away where the vocabulary adds one."""
    model = model_with(template, pre=pre, add_bos=add_bos)
    _, document = ask(capsys, tmp_path, model, [{"content": "hello"}])
    assert document["request"]["n_tokens"] == n_tokens


def test_a_word_that_is_a_token_needs_no_merges_in_a_llama_3_vocabulary(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, model_with: WriteModel
) -> None:
    counts = []
    for pre in ("gpt-2", "llama-bpe"):
        model = model_with("{{ messages[0].content }}", pre=pre, add_bos=False)
        _, document = ask(capsys, tmp_path, model, [{"content": "world"}])
        counts.append(document["request"]["n_tokens"])
    assert counts == [5, 1]


def test_tokens_of_tools_are_the_difference_that_they_make(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, model_with: WriteModel
) -> None:
    template = "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}{{ messages[0].content }}"
    request = {"messages": [{"content": "abc"}], "tools": [{"type": "function", "function": {"name": "hello"}}]}
    _, document = ask(capsys, tmp_path, model_with(template), request)
    assert (document["request"]["n_tokens"], document["request"]["n_tool_tokens"]) == (4, 1)


def test_the_prompt_alone_goes_to_stdout(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, model_with: WriteModel
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO('[{"role": "user", "content": "Hi"}]'))
    assert main(["template", str(model_with(CHATML)), "--messages", "-", "--prompt"]) == 0
    assert capsys.readouterr().out == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


HOSTILE = {
    "endless": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "a doubling text": "{% set n = namespace(x='ab') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "a long product": "{{ 'ab' * 10000000000 }}",
    "a large power": "{{ 9 ** 99999999 }}",
    "a long range": "{% for i in range(999999999) %}x{% endfor %}",
    "a long output": "{% for a in range(9999) %}{% for b in range(9999) %}{{ 'x' * 9999 }}{% endfor %}{% endfor %}",
    "a way to Python": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "a module": "{{ self.__init__.__globals__ }}",
    "a macro without end": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "a change of the request": "{{ messages.clear() }}",
    "an unknown name": "{{ nothing.there }}",
    "no jinja": "{% if %}",
    "an unclosed block": "{% for m in messages %}",
    "a file": "{% include '/etc/passwd' %}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_template_ends_soon_without_a_trace_or_a_way_out(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, model_with: WriteModel, name: str
) -> None:
    monkeypatch.setattr("gguf_info.cli._TEMPLATE_TIMEOUT_S", 1.0)
    started_s = time.monotonic()
    status = main(["template", str(model_with(HOSTILE[name]))])
    assert time.monotonic() - started_s < 20
    captured = capsys.readouterr()
    assert status in (0, 2)
    assert "Traceback" not in captured.err
    assert "subclasses" not in captured.out.replace("__subclasses__", "")
    assert "root:" not in captured.out
    assert "│ a user's message             │ yes" not in captured.out


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("no json", "expected JSON"),
        ('"text"', "a list of objects under 'messages'"),
        ('{"messages": [1]}', "a list of objects under 'messages'"),
        ('{"messages": [], "tools": {"a": 1}}', "a list of objects under 'tools'"),
        ("[" * 100_000, "expected JSON"),
    ],
)
def test_a_request_that_is_none_is_an_error_with_status_2(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, model_with: WriteModel, text: str, found: str
) -> None:
    (tmp_path / "request.json").write_text(text)
    assert main(["template", str(model_with(CHATML)), "--messages", str(tmp_path / "request.json")]) == 2
    error = capsys.readouterr().err
    assert found in error
    assert "request.json" in error


def test_a_missing_request_or_template_or_library_is_told_with_its_remedy(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model_with: WriteModel
) -> None:
    assert main(["template", str(model_with(CHATML)), "--messages", str(tmp_path / "none.json")]) == 2
    assert "no such file" in capsys.readouterr().err
    assert main(["template", str(model_with(None))]) == 2
    assert "expected a chat template" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert main(["template", str(model_with(CHATML))]) == 2
    assert "pip install 'gguf-info[template]'" in capsys.readouterr().err
