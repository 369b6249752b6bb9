"""Profiles: what ships, how files are laid together, and what a wrong one is told."""

from __future__ import annotations

import os
import re
from pathlib import Path

import platformdirs
import pytest
from llama_launch import ProfileError, load_profile, profile_names, read_profile
from llama_launch.fleet import read_fleet


def write_user(name: str, text: str) -> Path:
    path = Path(platformdirs.user_config_dir("llama-launch")) / "profiles" / f"{name}.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def write_project(name: str, text: str) -> Path:
    path = Path(".llama-launch").absolute() / f"{name}.toml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def test_the_small_profile_has_four_slots_in_one_pool() -> None:
    profile = load_profile("smollm2-135m")
    assert (profile.n_slots, profile.n_ctx_slot, profile.n_ctx) == (4, 8192, 32768)
    assert (profile.kv_unified, profile.cache_ram_mib, profile.verbosity) == (True, 0, 4)
    assert (profile.slot_save, profile.metrics, profile.host) == (True, True, "127.0.0.1")


def test_gpt_oss_has_a_pool_of_131072_tokens_in_q8_0() -> None:
    profile = load_profile("gpt-oss-20b")
    assert (profile.n_slots, profile.n_ctx_slot, profile.n_ctx) == (4, 32768, 131072)
    assert (profile.cache_type_k, profile.cache_type_v, profile.flash_attn) == ("q8_0", "q8_0", "on")
    assert (profile.kv_unified, profile.jinja, profile.root) == (True, True, "/tmp/llama-server")


def test_later_layers_win_key_by_key(monkeypatch: pytest.MonkeyPatch) -> None:
    user = write_user("gpt-oss-20b", 'model = "/models/mine.gguf"\nn_slots = 2\n')
    project = write_project("gpt-oss-20b", "\nn_slots = 3\n")
    below = Path("deep/down")
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    loaded = read_profile("gpt-oss-20b", {"n_ctx_slot": "1024"})
    assert (loaded.profile.model, loaded.profile.n_slots) == ("/models/mine.gguf", 3)
    assert loaded.profile.cache_type_k == "q8_0"
    assert [file.layer for file in loaded.files] == ["package", "user", "project"]
    assert loaded.origins["model"] == f"{user}:1"
    assert loaded.origins["n_slots"] == f"{project}:2"
    assert loaded.origins["n_ctx_slot"] == "--set"
    assert loaded.origins["cache_type_k"].startswith("package:gpt-oss-20b.toml:")


def test_extends_lies_below_the_file_that_names_it() -> None:
    write_user("fast", 'extends = "gpt-oss-20b"\nn_slots = 1\n')
    profile = load_profile("fast")
    assert (profile.name, profile.n_slots, profile.n_ctx_slot, profile.cache_type_v) == ("fast", 1, 32768, "q8_0")
    assert "fast" in profile_names()


def test_a_path_in_a_file_starts_from_the_files_folder(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text('model = "models/a.gguf"\n')
    path = tmp_path / "top.toml"
    path.write_text('extends = "./base.toml"\napi_key_file = "keys"\n')
    profile = load_profile(os.path.relpath(path))
    assert profile.model == f"{tmp_path}/models/a.gguf"
    assert profile.api_key_file == f"{tmp_path}/keys"


def test_profiles_that_extend_each_other_are_an_error() -> None:
    write_user("a", 'extends = "b"\n')
    write_user("b", 'extends = "a"\n')
    with pytest.raises(ProfileError, match="in a circle: a -> b -> a"):
        load_profile("a")


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ('model = "m"\nn_slot = 4\n', r":2: unknown key 'n_slot'", "did you mean 'n_slots'?"),
        ('# four\nmodel = "m"\nn_slots = "many"\n', r":3: n_slots: 'many' is not a whole number", ""),
        ('model = "m"\nn_slots = 0\n', r":2: n_slots: 0 is not between 1 and 256", ""),
        ('model = "m"\nn_slots = true\n', r":2: n_slots: True is not a whole number", ""),
        ('model = "m"\njinja = 1\n', r":2: jinja: 1 is not true or false", ""),
        ("model = 3\n", r":1: model: 3 is not text", ""),
        ('model = "m"\nextra_flags = 3\n', r":2: extra_flags: 3 is not a list of words", ""),
        (
            'model = "m"\ncache_type_k = "q8"\n',
            r":2: cache_type_k: unknown value 'q8'",
            "did you mean 'q8_0'?",
        ),
        ('model = "m"\n[server]\nport = 1\n', r":2: unknown key 'server'", "known keys: name, model"),
        ('model = "m\n', r"not TOML: .*at line 1, column 11", ""),
        ("n_slots = 4\n", r"'model' is missing", 'model = "PATH"'),
        ('model = "m"\nextends = "gpt-os-20b"\n', r":2: no profile is called 'gpt-os-20b'", "'gpt-oss-20b'"),
        ('model = "m"\nextends = 4\n', r":2: extends: 4 is not the name of a profile", ""),
    ],
)
def test_a_wrong_profile_is_told_the_line(tmp_path: Path, text: str, message: str, hint: str) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    with pytest.raises(ProfileError, match=re.escape(str(path)) + ".*" + message) as caught:
        load_profile(str(path))
    assert hint in caught.value.hint


def test_an_unknown_name_is_answered_with_the_closest() -> None:
    with pytest.raises(ProfileError, match="no profile is called 'gpt-oss'") as caught:
        load_profile("gpt-oss")
    assert caught.value.hint == "did you mean 'gpt-oss-20b'?"


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("n_slots", "8", 8),
        ("kv_unified", "off", False),
        ("n_gpu_layers", "20", 20),
        ("extra_flags", "--threads 4 --no-warmup", ("--threads", "4", "--no-warmup")),
        ("host", "::1", "::1"),
    ],
)
def test_overrides_are_read_as_the_fields_type(key: str, text: str, value: object) -> None:
    assert getattr(load_profile("smollm2-135m", {key: text}), key) == value


def test_a_file_that_is_not_there_or_not_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"none\.toml: No such file"):
        load_profile(str(tmp_path / "none.toml"))
    (tmp_path / "binary.toml").write_bytes(b"model\xff")
    with pytest.raises(ProfileError, match=r"binary\.toml: not UTF-8 at byte 5"):
        load_profile(str(tmp_path / "binary.toml"))


def test_a_file_that_never_ends_or_nests_too_deeply_is_refused_and_not_read(tmp_path: Path) -> None:
    fifo, deep, large = tmp_path / "fifo.toml", tmp_path / "deep.toml", tmp_path / "large.toml"
    os.mkfifo(fifo)
    deep.write_text("x = " + "[" * 100_000)
    large.write_bytes(b"#" * (1 << 21))
    for path, said in (
        (fifo, "not a regular file"),
        (Path("/dev/zero"), "not a regular file"),
        (tmp_path, "Is a directory"),
        (deep, "nested too deeply"),
        (large, "larger than 1 MiB"),
    ):
        with pytest.raises(ProfileError, match=said):
            load_profile(str(path))
        with pytest.raises(ProfileError, match=said):
            read_fleet(path)


def test_a_model_in_place_of_a_profile_is_answered_with_how_it_is_named(tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(b"GGUF\x03\x00\x00\x00")
    for word in ("model.gguf", str(model)):
        with pytest.raises(ProfileError) as caught:
            load_profile(word)
        assert caught.value.hint == f"llama-launch serve --set model={word}"


@pytest.mark.parametrize(("written", "hint"), [("32k", "write 32768"), ("1M", "write 1048576"), ("many", "")])
def test_a_number_with_a_unit_is_answered_with_the_number_in_full(written: str, hint: str) -> None:
    with pytest.raises(ProfileError, match="not a whole number") as caught:
        load_profile("smollm2-135m", {"n_ctx_slot": written})
    assert caught.value.hint == hint
