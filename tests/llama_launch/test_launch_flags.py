"""The command line of a profile, checked against the recorded help of llama.cpp build 10068."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from gguf_info import read_summary
from llama_launch import Footgun, footguns, load_profile, server_argv
from llama_launch.flags import check_flags, read_help
from phantoms import write_phantom

KNOWN = read_help((Path(__file__).with_name("data") / "llama-server-b10068.help.txt").read_text())
GPT_OSS_COMMAND = """\
llama-server --model gpt-oss.gguf --port 8080 --slot-save-path /tmp/llama-server/slots/ --host 127.0.0.1 --parallel 4
--ctx-size 131072 --kv-unified --cache-type-k q8_0 --cache-type-v q8_0 --cache-ram 0 --flash-attn on
--n-gpu-layers 999 --verbosity 4 --jinja --metrics"""


def argv_of(name: str, **overrides: object) -> list[str]:
    return server_argv(
        Path("llama-server"),
        load_profile(name, overrides),
        model=Path("gpt-oss.gguf"),
        port=8080,
        slot_save_path=Path("/tmp/llama-server/slots"),
    )


def test_the_command_line_of_gpt_oss() -> None:
    assert argv_of("gpt-oss-20b") == GPT_OSS_COMMAND.split()


def test_a_divided_cache_is_asked_for_by_name() -> None:
    argv = argv_of("gpt-oss-20b", kv_unified=False)
    assert "--no-kv-unified" in argv
    assert "--kv-unified" not in argv


@pytest.mark.parametrize("name", ["smollm2-135m", "gpt-oss-20b"])
def test_the_recorded_server_takes_every_flag_of_the_shipped_profiles(name: str) -> None:
    assert check_flags(argv_of(name, api_key_file="/keys", kv_unified=False)[1:], KNOWN) == []


@pytest.mark.parametrize(
    ("flag", "takes_value"),
    [
        ("-c", True),
        ("--ctx-size", True),
        ("--flash-attn", True),
        ("--kv-unified", False),
        ("-no-kvu", False),
        ("--cache-type-k-draft", True),
        ("-ctkd", True),
        ("--override-tensor-draft", True),
        ("--no-webui-mcp-proxy", False),
        ("--docker-repo", True),
        ("--metrics", False),
        ("--no-skip-chat-parsing", False),
    ],
)
def test_the_help_says_which_flags_take_a_value(flag: str, takes_value: bool) -> None:
    assert KNOWN[flag].takes_value is takes_value


def test_a_removed_flag_is_named_with_its_replacement() -> None:
    (problem,) = check_flags(["--draft-max", "8"], KNOWN)
    assert problem.message == (
        "--draft-max: the argument has been removed. use --spec-draft-n-max or --spec-ngram-mod-n-max"
    )


@pytest.mark.parametrize(
    ("argv", "message", "hint"),
    [
        (["--no-such-flag"], "this llama-server does not know --no-such-flag", "leave it out"),
        (["--paralel", "4"], "this llama-server does not know --paralel", "did you mean --parallel?"),
        (["--metrics", "on"], "--metrics takes no value in this llama-server", "leave 'on' out"),
    ],
)
def test_a_flag_that_does_not_work_is_named(argv: list[str], message: str, hint: str) -> None:
    (problem,) = check_flags(argv, KNOWN)
    assert problem.message == message
    assert hint in problem.hint


def test_a_negative_number_is_a_value_and_no_flag() -> None:
    assert check_flags(["--cache-ram", "-1", "--n-predict", "-2"], KNOWN) == []


@pytest.mark.parametrize(
    ("overrides", "code"),
    [
        ({"kv_unified": False}, "divided-kv"),
        ({"cache_ram_mib": 8192}, "prompt-cache-brings-back"),
        (
            {"cache_type_v": "q8_0", "cache_type_k": "q8_0", "flash_attn": "off"},
            "quantized-v-without-flash-attention",
        ),
        ({"cache_type_v": "q8_0"}, "cache-types-on-cpu"),
        ({"cache_type_k": "q5_1", "cache_type_v": "q5_1"}, "cache-types-on-cpu"),
        ({"host": "0.0.0.0"}, "open-without-key"),
        ({"n_ctx_slot": 8193}, "context-over-training"),
        ({"n_agents": 5}, "fewer-slots-than-agents"),
        ({"n_gpu_layers": 99}, "gpu-without-effect"),
    ],
)
def test_a_footgun_is_named(model: Path, overrides: dict[str, object], code: str) -> None:
    found = footguns(load_profile("smollm2-135m", overrides), model=read_summary(model), is_embedded=True)
    assert [footgun.code for footgun in found] == [code]


def test_layers_that_predict_tokens_are_told_where_they_are_run(tmp_path: Path) -> None:
    phantom = tmp_path / "mtp.gguf"
    write_phantom("qwen3.5-0.8b-mtp", phantom)
    profile = load_profile("smollm2-135m", {"model": str(phantom), "n_ctx_slot": 256})
    assert footguns(profile, model=read_summary(phantom)) == []
    with_mtp = replace(profile, extra_flags=("--spec-type", "draft-mtp"))
    (footgun,) = footguns(with_mtp, model=read_summary(phantom))
    assert footgun.code == "mtp-layers"


@pytest.mark.parametrize("name", ["smollm2-135m", "gpt-oss-20b"])
def test_the_shipped_profiles_have_no_footgun(name: str) -> None:
    assert footguns(load_profile(name)) == []


def test_a_pool_above_the_training_context_is_no_footgun(model: Path) -> None:
    """A slot is cut to the training context, the pool is not: four slots of 8192 tokens fill a pool of 32768."""
    assert footguns(load_profile("smollm2-135m"), model=read_summary(model)) == []


def test_a_footgun_says_what_to_set() -> None:
    (footgun,) = footguns(load_profile("smollm2-135m", {"kv_unified": False}))
    assert footgun == Footgun(
        "divided-kv",
        "the KV cache is divided: no slot can use more than 8192 of 32768 tokens, whatever the others need; "
        "kv_unified = true shares them",
    )
