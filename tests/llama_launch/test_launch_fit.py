"""Whether a start fits the GPUs, with the reference card's figures and a stand-in for NVIDIA's library."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest
from gguf_info import read_summary
from llama_launch import DoesNotFit, Profile, load_profile, start_server
from llama_launch.cli import main
from llama_launch.fit import fit_of, free_gpu_mib
from llama_launch.flags import server_argv
from phantoms import write_phantom

MIB = 1 << 20
FakeServer = Callable[[str], Path]


@pytest.fixture(scope="module")
def gpt_oss(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("phantom") / "gpt-oss-20b.gguf"
    write_phantom("gpt-oss-20b", path)
    return path


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """NVIDIA's library with GPUs of so much free memory, in MiB."""

    def install(*free_mib: int) -> None:
        module = types.ModuleType("pynvml")
        memory = [types.SimpleNamespace(total=24564 * MIB, used=(24564 - free) * MIB) for free in free_mib]
        functions: dict[str, object] = {
            "NVMLError": type("NVMLError", (Exception,), {}),
            "nvmlInit": lambda: None,
            "nvmlDeviceGetCount": lambda: len(memory),
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetName": lambda handle: "GPU",
            "nvmlDeviceGetMemoryInfo": lambda handle: memory[handle],
        }
        for name, function in functions.items():
            setattr(module, name, function)
        monkeypatch.setitem(sys.modules, "pynvml", module)

    return install


def profile_of(model: Path, **values: object) -> Profile:
    return load_profile("gpt-oss-20b", {"model": str(model), **values})


def flags_of(profile: Profile) -> list[str]:
    argv = server_argv(Path("llama-server"), profile, model=Path(profile.model), port=1, slot_save_path=None)
    return argv[1:]


@pytest.mark.parametrize(("n_ctx", "fits"), [(524_288, True), (1_048_576, False)])
def test_what_ran_on_the_reference_card_fits_it(gpt_oss: Path, n_ctx: int, fits: bool) -> None:
    """On an RTX 4090 gpt-oss-20b ran with 524,288 tokens in 16 slots; twice that has a cache of 12.8 GiB alone."""
    profile = profile_of(gpt_oss, n_slots=16, n_ctx_slot=n_ctx // 16)
    assert fit_of(profile, read_summary(gpt_oss), flags_of(profile), {"CUDA0": 23_000.0}, 10068).fits is fits


def test_each_remedy_that_is_named_fits(gpt_oss: Path) -> None:
    free_mib = {"CUDA0": 13_500.0}
    summary = read_summary(gpt_oss)
    values: dict[str, object] = {"n_slots": 4, "n_ctx_slot": 32768, "cache_type_k": "f16", "cache_type_v": "f16"}
    profile = profile_of(gpt_oss, **values)
    fit = fit_of(profile, summary, flags_of(profile), free_mib, 10068)
    assert fit.fits is False
    assert fit.lines[0].startswith("CUDA0: needs ")
    assert any("n_ctx_slot" in remedy for remedy in fit.remedies)
    for remedy in fit.remedies:
        changes = dict(word.split("=") for word in remedy.split() if word != "--set")
        smaller = profile_of(gpt_oss, **{**values, **changes})
        assert fit_of(smaller, summary, flags_of(smaller), free_mib, 10068).fits, remedy


def test_a_start_that_does_not_fit_is_refused_with_the_numbers(
    fake_server: FakeServer,
    gpt_oss: Path,
    cards: Callable[..., None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fake_server("well")
    cards(12_000)
    words = ["serve", "gpt-oss-20b", "--set", f"model={gpt_oss}", "--run-dir", str(tmp_path / "run")]
    assert main(words) == 1
    errors = capsys.readouterr().err
    assert "of 12,000 MiB free" in errors
    assert "--set n_gpu_layers=" in errors
    assert not (tmp_path / "run" / "server.log").exists()


def test_force_starts_it_all_the_same(
    fake_server: FakeServer, gpt_oss: Path, cards: Callable[..., None], tmp_path: Path
) -> None:
    fake_server("well")
    cards(12_000)
    said: list[str] = []
    with pytest.raises(DoesNotFit):
        start_server(profile_of(gpt_oss), run_dir=tmp_path / "run")
    with start_server(profile_of(gpt_oss), run_dir=tmp_path / "run", force=True, progress=said.append) as server:
        assert server.is_alive()
    assert any("[does-not-fit]" in line for line in said)


def test_only_the_gpus_that_the_server_sees_are_counted(cards: Callable[..., None]) -> None:
    cards(1000, 2000, 3000)
    assert free_gpu_mib() == {"CUDA0": 1000, "CUDA1": 2000, "CUDA2": 3000}
    assert free_gpu_mib("2,0") == {"CUDA0": 3000, "CUDA1": 1000}


def test_without_a_driver_nothing_is_refused(gpt_oss: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    profile = profile_of(gpt_oss)
    assert free_gpu_mib() == {}
    assert fit_of(profile, read_summary(gpt_oss), flags_of(profile), {}).fits is None
