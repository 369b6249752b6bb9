"""Profiles for other programs, read back by those programs' own formats."""

from __future__ import annotations

import configparser
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from llama_launch import ProfileError, load_profile
from llama_launch.cli import main
from llama_launch.export import ExportedModel, compose_file, preset_file, systemd_unit
from llama_launch.flags import read_help
from phantoms import write_phantom

Capture = pytest.CaptureFixture[str]
KNOWN = read_help((Path(__file__).with_name("data") / "llama-server-b10068.help.txt").read_text())


def exported(name: str, model: str = "/models/a b.gguf", **values: object) -> ExportedModel:
    return ExportedModel(load_profile("gpt-oss-20b", {"name": name, "model": model, **values}), Path(model))


def sections(text: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    head, _, rest = text.partition("version = 1\n")
    assert all(line.startswith(";") for line in head.splitlines())
    parser.read_string(rest)
    return parser


def test_a_preset_has_every_flag_of_the_profile_but_the_routers_own() -> None:
    extra = ["--no-warmup", "--top-k", "-1", "--alias=x"]
    text = preset_file([exported("big", kv_unified=False, extra_flags=extra), exported("small", n_slots=1)])
    found = sections(text)
    assert found.sections() == ["big", "small"]
    assert dict(found["big"]) == {
        "model": "/models/a b.gguf",
        "parallel": "4",
        "ctx-size": "131072",
        "kv-unified": "false",
        "cache-type-k": "q8_0",
        "cache-type-v": "q8_0",
        "cache-ram": "0",
        "flash-attn": "on",
        "n-gpu-layers": "999",
        "verbosity": "4",
        "jinja": "true",
        "metrics": "true",
        "warmup": "false",
        "top-k": "-1",
        "alias": "x",
    }
    assert all(f"--{key}" in KNOWN for section in found.sections() for key in found[section])


@pytest.mark.parametrize("model", ["/models/a\nport = 1", "/models/ends with space "])
def test_a_path_that_an_ini_file_cannot_hold_is_refused(model: str) -> None:
    with pytest.raises(ProfileError, match="cannot be written into a preset"):
        preset_file([exported("big", model)])


def test_two_sections_of_one_name_are_refused() -> None:
    with pytest.raises(ProfileError, match="two profiles are called 'big'"):
        preset_file([exported("big"), exported("big")])


def test_the_preset_says_how_many_models_fit_together(tmp_path: Path, capsys: Capture) -> None:
    """gpt-oss-20b has 11 GB of weights, so 20 GB hold one of it, or one and the small model."""
    for name in ("gpt-oss-20b", "smollm2-135m"):
        write_phantom(name, tmp_path / f"{name}.gguf")
    profiles = []
    for name, file in (("first", "gpt-oss-20b"), ("second", "gpt-oss-20b"), ("small", "smollm2-135m")):
        path = tmp_path / f"{name}.toml"
        path.write_text(f'model = "{file}.gguf"\nn_slots = 1\nn_ctx_slot = 8192\n')
        profiles.append(str(path))
    assert main(["profile", "export", *profiles, "--to", "preset", "--memory", "CUDA0=20000"]) == 0
    text = capsys.readouterr().out
    assert "; fit together: {first + small}, {second + small}" in text
    assert "; any 1 of them fit: --models-max 1" in text
    assert sections(text).sections() == ["first", "second", "small"]


def test_a_unit_is_one_that_systemd_takes(tmp_path: Path, capsys: Capture) -> None:
    assert main(["profile", "export", "gpt-oss-20b", "--to", "systemd"]) == 0
    text = capsys.readouterr().out
    assert f'ExecStart="{sys.executable}" "-m" "llama_launch" "serve" "gpt-oss-20b"' in text
    assert "Restart=on-failure" in text
    if shutil.which("systemd-analyze"):
        unit = tmp_path / "llama.service"
        unit.write_text(text)
        subprocess.run(["systemd-analyze", "verify", unit], check=True)


def test_words_of_a_unit_mean_nothing_to_systemd() -> None:
    profile = load_profile("smollm2-135m", {"name": "50%\nExecStart=evil"})
    text = systemd_unit(profile, ["/bin/x", 'a"b\\c', "%h $HOME", "line\nbreak"], Path("/a%b"))
    assert 'ExecStart="/bin/x" "a\\"b\\\\c" "%%h $$HOME" "line\\x0abreak"\n' in text
    assert "WorkingDirectory=/a%%b\n" in text
    assert text.count("\nExecStart=") == 1


def test_a_compose_file_serves_each_profile_on_loopback() -> None:
    models = [exported("big", gpus="1"), exported("other", "/m/$x.gguf", port=9000, n_gpu_layers=0)]
    services = yaml.safe_load(compose_file(models))["services"]
    assert services["big"]["ports"] == ["127.0.0.1:8080:8080"]
    assert services["other"]["ports"] == ["127.0.0.1:9000:8080"]
    assert services["big"]["command"][:4] == ["--model", "/models/a b.gguf", "--port", "8080"]
    assert services["big"]["command"][-1] == "--metrics"
    assert services["big"]["volumes"] == ["/models:/models:ro"]
    assert services["other"]["command"][1] == "/models/$$x.gguf"  # compose makes one `$` of two
    assert services["big"]["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"] == ["1"]
    assert "deploy" not in services["other"]


def test_keys_are_given_as_a_file_and_never_as_text(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("secret-9\n")
    text = compose_file([exported("big", api_key_file=str(keys))])
    (service,) = yaml.safe_load(text)["services"].values()
    assert "secret-9" not in text
    assert f"{keys}:/run/keys:ro" in service["volumes"]
    assert service["command"][service["command"].index("--api-key-file") + 1] == "/run/keys"


def test_workers_cannot_be_reached_from_a_container() -> None:
    with pytest.raises(ProfileError, match="workers"):
        compose_file([exported("big", rpc=["10.0.0.2:50052"])])


def test_a_unit_is_for_one_profile(capsys: Capture) -> None:
    assert main(["profile", "export", "gpt-oss-20b", "smollm2-135m", "--to", "systemd"]) == 2
    assert "a unit runs one profile" in capsys.readouterr().err
