from __future__ import annotations

from pathlib import Path

import pytest
from opencode_harness.isolation import ModelLimits, opencode_config, opencode_environment
from opencode_harness.workspace import create_layout


def test_nothing_of_the_users_environment_but_path_reaches_opencode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "OPENCODE_CONFIG_CONTENT", "HTTPS_PROXY", "XDG_RUNTIME_DIR", "NODE_OPTIONS"):
        monkeypatch.setenv(name, "poison")
    monkeypatch.setenv("HOME", "/poison")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    environment = opencode_environment(create_layout(tmp_path / "trial"))
    assert "poison" not in " ".join(environment.values())
    assert environment["PATH"].startswith("/usr/bin:/bin")


def test_home_and_all_xdg_folders_and_the_configuration_lie_in_the_trial(tmp_path: Path) -> None:
    layout = create_layout(tmp_path / "trial")
    environment = opencode_environment(layout)
    own = ("HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "TMPDIR", "OPENCODE_CONFIG")
    assert all(Path(environment[name]).is_relative_to(layout.root) for name in own)
    assert not Path(environment["OPENCODE_CONFIG"]).is_relative_to(layout.workspace)


def test_the_background_install_is_sent_to_a_closed_port(tmp_path: Path) -> None:
    environment = opencode_environment(create_layout(tmp_path / "trial"))
    assert environment["npm_config_registry"] == "http://127.0.0.1:9/"


def test_permissions_are_granted_beforehand_and_can_be_withheld_one_by_one() -> None:
    config = opencode_config("http://127.0.0.1:1/v1", ModelLimits(8192, 512), {"external_directory": "ask"})
    granted = config["permission"]
    assert {name: granted[name] for name in ("read", "glob", "grep", "edit", "write", "doom_loop")} == dict.fromkeys(
        ("read", "glob", "grep", "edit", "write", "doom_loop"), "allow"
    )
    assert granted["external_directory"] == "ask"


def test_the_configuration_names_the_proxy_and_the_model_limits() -> None:
    config = opencode_config("http://127.0.0.1:4321/v1", ModelLimits(8192, 512), {})
    (provider,) = config["provider"].values()
    (model,) = provider["models"].values()
    assert provider["options"]["baseURL"] == "http://127.0.0.1:4321/v1"
    assert model["limit"] == {"context": 8192, "output": 512}
    assert config["model"].split("/") == [*config["provider"], *provider["models"]]
    assert config["autoupdate"] is False
    assert config["share"] == "disabled"
