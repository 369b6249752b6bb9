"""The terminal driver against a program that draws OpenCode's screens and misbehaves on command."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest
from opencode_harness.tui import Start, TerminalStartError, Timeouts, TuiRun, run_opencode_tui

FAKE = r"""
import os, signal, subprocess, sys, termios, tty
from pathlib import Path
how = set(sys.argv[1].split(","))
tty.setraw(0, termios.TCSANOW)
Path("pid").write_text(str(os.getpid()))
print("noise on stderr", file=sys.stderr, flush=True)
if "daemon" in how:
    options = "start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL"
    start = f"import subprocess; print(subprocess.Popen(['sleep', '600'], {options}).pid)"
    Path("daemon").write_bytes(subprocess.run([sys.executable, "-c", start], stdout=subprocess.PIPE).stdout)
def draw(*rows):
    sys.stdout.write("\x1b[2J\x1b[H" + "\r\n".join(rows)); sys.stdout.flush()
def key():
    pressed = os.read(0, 1)
    return pressed + os.read(0, 2) if pressed == b"\x1b" else pressed
def ask(title, labels):
    chosen = 0
    while True:
        shown = [f"\x1b[48;2;245;167;66m{l}\x1b[0m" if i == chosen else l for i, l in enumerate(labels)]
        draw("  ▣  Build · m · 9.9s", "  ┃  " + title, "  ┃  " + "   ".join(shown) + " " * 60 + "enter confirm")
        pressed = key()
        if pressed == (b"\t" if "tab" in how else b"\x1b[C"):
            chosen = (chosen + 1) % len(labels)
        elif pressed == b"\r":
            return labels[chosen]
        elif pressed == b"\x03":
            sys.exit(0)
if "stubborn" in how:
    signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.signal(signal.SIGHUP, signal.SIG_IGN)
if "dies-at-start" in how:
    sys.exit(7)
draw("starting" if "never-ready" in how else "  ┃  Ask anything...")
typed = b""
while not typed.endswith(b"\r"):
    typed += os.read(0, 1)
    if len(typed) == 1: draw("  ┃  typing")
    if typed.endswith(b"\x03"): sys.exit(0)
draw("  ┃  " + typed.decode()[:-1].replace("\x1b[200~", "").replace("\x1b[201~", ""), "  ▣  Build · m", "esc interrupt")
Path("prompt").write_bytes(typed)
if "dies" in how:
    os.kill(os.getpid(), signal.SIGKILL)
answers = []
for _ in range(2 if "two" in how else 1 if "dialog" in how else 0):
    answers.append(ask("△ Permission required", ["Allow once", "Allow always", "Reject"]))
    if answers[-1] == "Allow always":
        answers.append(ask("△ Always allow", ["Confirm", "Cancel"]))
Path("answers").write_text(",".join(answers))
if "Reject" in answers:
    draw("  ▣  Build · m")
elif "silent" not in how:
    draw("  The fruit is kiwi.", "  ▣  Build · m · 0.1s")
    open("ended", "a").write("x")
while key() != b"\x03" or "stubborn" in how:
    pass
"""
QUICK = Timeouts(ready_s=10, input_s=10, turn_s=20, quiet_s=3, exit_s=5, settle_s=0.1)


def drive(
    folder: Path, how: str, timeouts: Timeouts = QUICK, prompts: Sequence[str] = ("Say it.",), **options: object
) -> TuiRun:
    (folder / "fake.py").write_text(FAKE, encoding="utf-8")
    artefacts = folder / "artefacts"
    artefacts.mkdir()
    run = run_opencode_tui(
        [Start([sys.executable, str(folder / "fake.py"), how], prompts)],
        env={"PATH": os.environ["PATH"], "TERM": "xterm-256color", "LANG": "C.UTF-8", "PYTHONUTF8": "1"},
        cwd=folder,
        turn_ended=lambda turns: (folder / "ended").exists() and len((folder / "ended").read_text()) >= turns,
        artefacts=artefacts,
        timeouts=timeouts,
        **options,  # type: ignore[arg-type]
    )
    with pytest.raises(ProcessLookupError):
        os.kill(int((folder / "pid").read_text()), 0)
    return run


def test_a_plain_answer_is_done_and_everything_is_recorded(tmp_path: Path) -> None:
    run = drive(tmp_path, "plain", prompts=["first\nsecond"])
    assert (run.outcome, run.exit_status) == ("done", 0)
    assert "The fruit is kiwi." in run.screen_text
    assert run.stderr_text == "noise on stderr\n"
    assert "noise" not in run.stdout_text
    assert (tmp_path / "prompt").read_bytes() == b"\x1b[200~first\nsecond\x1b[201~\r"
    recorded = {path.name for path in (tmp_path / "artefacts").iterdir()}
    assert recorded >= {"stdout.raw", "stdout.txt", "stderr.txt", "screen-ready.txt", "screen-done.txt", "screen.cast"}


@pytest.mark.parametrize("how", ["dialog", "dialog,tab", "two"])
def test_dialogs_are_answered_always_and_old_text_ends_no_wait(tmp_path: Path, how: str) -> None:
    run = drive(tmp_path, how)
    times = 2 if how == "two" else 1
    assert run.outcome == "done"
    assert (tmp_path / "answers").read_text() == ",".join(["Allow always,Confirm"] * times)
    assert [dialog.kind for dialog in run.dialogs] == ["permission", "always-confirm"] * times


def test_a_rejected_permission_ends_the_run_without_a_signal(tmp_path: Path) -> None:
    assert drive(tmp_path, "dialog", answer="reject").outcome == "rejected"


@pytest.mark.parametrize("answer", ["reject", "always"])
def test_the_program_is_left_only_when_the_caller_has_heard_of_every_permission(tmp_path: Path, answer: str) -> None:
    was_running: list[bool] = []

    def heard_of(permissions: int) -> bool:
        assert permissions == 1
        was_running.append(psutil.pid_exists(int((tmp_path / "pid").read_text())))
        return len(was_running) == 5

    assert drive(tmp_path, "dialog", answer=answer, heard_of=heard_of).outcome in ("done", "rejected")
    assert was_running == [True] * 5


def test_a_dialog_left_open_is_named_at_the_turn_timeout(tmp_path: Path) -> None:
    run = drive(tmp_path, "dialog", Timeouts(turn_s=0.5), answer=None)
    assert run.outcome == "turn-timeout"
    assert "timeout 'turn' is 0.5 s" in run.message
    assert "a dialog is open: △ Permission required" in run.message


def test_a_program_that_is_never_ready_is_a_ready_timeout(tmp_path: Path) -> None:
    run = drive(tmp_path, "never-ready", Timeouts(ready_s=1.0))
    assert run.outcome == "ready-timeout"
    assert "timeout 'ready' is 1 s" in run.message


@pytest.mark.parametrize(("how", "status"), [("dies-at-start", 7), ("dies", -9)])
def test_a_program_that_dies_ends_the_wait_with_its_status(tmp_path: Path, how: str, status: int) -> None:
    run = drive(tmp_path, how)
    assert (run.outcome, run.exit_status) == ("exited", status)


def test_a_program_that_ignores_ctrl_c_and_sigterm_is_killed(tmp_path: Path) -> None:
    run = drive(tmp_path, "stubborn", Timeouts(exit_s=0.3, settle_s=0.1))
    assert run.outcome == "done"
    assert run.exit_status == -9
    assert "timeout 'exit' is 0.3 s" in run.message


@pytest.mark.parametrize("how", ["daemon", "daemon,dies", "daemon,stubborn"])
def test_what_the_program_left_running_in_a_session_of_its_own_is_killed(tmp_path: Path, how: str) -> None:
    drive(tmp_path, how, Timeouts(exit_s=0.3, settle_s=0.1))
    with contextlib.suppress(psutil.NoSuchProcess):
        # Dead already; whoever adopted it may not have collected its status yet.
        assert psutil.Process(int((tmp_path / "daemon").read_text())).status() == psutil.STATUS_ZOMBIE


def test_a_program_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TerminalStartError, match="cannot start /nowhere/opencode"):
        run_opencode_tui(
            [Start(["/nowhere/opencode"], ["x"])],
            env={},
            cwd=tmp_path,
            turn_ended=lambda turns: False,
            artefacts=tmp_path,
        )
