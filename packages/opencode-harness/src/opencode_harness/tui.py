"""OpenCode's terminal driven from outside: start, prompts, dialogs, ends of turns, leave.

Every wait ends on something seen, and every timeout has a name of its own and reports the time that was measured:

    ready   the prompt box is on the screen
    input   the prompt was taken: the box's example is gone
    turn    the caller's signal says that the agent is done (OpenCode's log, and no open request), or the caller has
            given its last answer and the screen shows the turn as done; without either nothing but this timeout,
            OpenCode's end or a rejected permission ends the wait
    quiet   after the signal: the screen shows the turn as done and stays as it is, and the caller has heard of every
            permission that was asked for (OpenCode's log comes in batches, one a second, the last of them never)
    exit    OpenCode left after Ctrl-C; then SIGTERM, then SIGKILL

What happens is written into the artefacts folder as it happens, so that it can be read after a crash: stdout.raw and
stdout.txt (the terminal's bytes, with and without escapes), stderr.txt, screen-ready.txt, screen-done.txt,
screen-final.txt, and screen.cast (asciicast v2 with markers). Whatever ends a run, an exception or Ctrl-C included,
nothing that OpenCode started is left running. When this process itself is killed, its terminal closes, and OpenCode
ends by SIGHUP.
"""

from __future__ import annotations

import codecs
import contextlib
import json
import os
import re
import signal
import time
import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal

import pexpect
import psutil

from opencode_harness.dialogs import ENTER, Answer, Dialog, DialogAnswerer, find_dialog
from opencode_harness.errors import HarnessError
from opencode_harness.screen import PlainText, TerminalScreen
from opencode_harness.whole_file import write_whole

__all__ = [
    "READY_RE",
    "AnsweredDialog",
    "Start",
    "TerminalOutcome",
    "TerminalStartError",
    "Timeouts",
    "Timings",
    "TuiRun",
    "run_opencode_tui",
]

TerminalOutcome = Literal["done", "rejected", "turn-timeout", "ready-timeout", "input-timeout", "exited"]

# OpenCode 1.18.33: the empty prompt box, an agent at work, and a finished turn with its time.
READY_RE = re.compile(r"Ask anything")
_BUSY_RE = re.compile(r"esc (?:again to )?interrupt")
_TURN_RE = re.compile(r"▣ .*")
_FOOTER_RE = re.compile(r"ctrl\+p commands")
_DONE_RE = re.compile(r"▣ .* · (?:\d+h ?)?(?:\d+m ?)?\d+(?:\.\d+)?m?s\b")

_COLUMNS = 120
_ROWS = 36
_CTRL_C = b"\x03"
_END_OF_FRAME = b"\x1b[?2026l"
_PASTE_START = b"\x1b[200~"
_PASTE_END = b"\x1b[201~"
_NEEDS_PASTE = re.compile(r"\n|@|^\s*[/!]")
_LARGEST_READ = 65_536
# Dialogs that OpenCode's log tells of as permissions.
_PERMISSION_KINDS = frozenset({"permission", "doom-loop"})
# How long one look at the terminal waits for bytes; the caller's signal is asked once a look.
_LOOK_S = 0.05
# How long OpenCode may take to show a paste before Enter is pressed all the same.
_PASTE_S = 2.0
# How long to wait for the effect of a key before it is pressed again.
_PRESS_AGAIN_S = 2.0
# How long the processes get between SIGTERM and SIGKILL.
_TERMINATE_S = 1.0
# Every process of a run inherits this variable, and is found by it.
_RUN_ID = "OPENCODE_HARNESS_RUN_ID"


class TerminalStartError(HarnessError):
    """OpenCode could not be started in a terminal."""


@dataclass(frozen=True)
class Timeouts:
    """How long each wait may take, in seconds.

    Attributes:
        ready_s: From the start to the prompt box.
        input_s: From the first key to the prompt having been taken.
        turn_s: From the prompt having been taken to the end-of-turn signal.
        quiet_s: From that signal to a screen that shows the turn as done and stays as it is, and to the last
            permission having been heard of.
        exit_s: From Ctrl-C to OpenCode's end.
        settle_s: How long the screen must stay as it is to count as settled.
    """

    ready_s: float = 60.0
    input_s: float = 15.0
    turn_s: float = 300.0
    quiet_s: float = 10.0
    exit_s: float = 5.0
    settle_s: float = 0.4


@dataclass(frozen=True)
class Start:
    """OpenCode from its start to its end.

    Attributes:
        argv: The executable and its arguments.
        prompts: What is asked, one after the other; each may hold line feeds.
        resumes: Whether it shows an earlier conversation from the beginning, and so no empty prompt box's example.
    """

    argv: Sequence[str]
    prompts: Sequence[str]
    resumes: bool = False


@dataclass(frozen=True)
class AnsweredDialog:
    """A dialog that the harness answered.

    Attributes:
        kind: `permission`, `doom-loop`, `always-confirm` or `question`.
        text: What its panel said.
        answer: The option, or the key for a question.
        at_s: Seconds from the start.
    """

    kind: str
    text: str
    answer: str
    at_s: float


@dataclass(frozen=True)
class Timings:
    """Measured seconds, summed over all starts and prompts; None for what was not reached.

    Attributes:
        ready_s: From the start to the prompt box.
        turn_s: From the prompt having been taken to the end-of-turn signal.
        settle_s: From that signal to a settled screen.
        exit_s: From the first Ctrl-C to OpenCode's end.
    """

    ready_s: float | None
    turn_s: float | None
    settle_s: float | None
    exit_s: float | None


@dataclass(frozen=True)
class TuiRun:
    """What one run of OpenCode's terminal showed.

    Attributes:
        outcome: `done`; `rejected` (a permission was, which ends the turn); `ready-timeout`, `input-timeout`,
            `turn-timeout`; `exited` (OpenCode ended by itself).
        exit_status: OpenCode's exit status, the negative signal number when a signal ended it, None when unknown.
        message: What happened, for a person.
        stdout_text: The terminal's bytes without escapes; not safe against wrapping.
        stderr_text: What OpenCode wrote to stderr.
        ready_rows: The screen when the prompt box was there; empty when that was not reached.
        done_rows: The screen when the turn was done, or when the wait for it ended.
        final_rows: The screen when OpenCode had ended.
        screen_text: `done_rows`, joined whatever their wrapping.
        scrollback: Every paragraph that was ever on the screen, each once, in the order of appearance.
        open_dialog: What the dialog says that was open when a wait ended; empty when none was.
        dialogs: The dialogs answered, in order.
        timings: Measured times.
    """

    outcome: TerminalOutcome
    exit_status: int | None
    message: str
    stdout_text: str
    stderr_text: str
    ready_rows: tuple[str, ...]
    done_rows: tuple[str, ...]
    final_rows: tuple[str, ...]
    screen_text: str
    scrollback: str
    open_dialog: str
    dialogs: tuple[AnsweredDialog, ...]
    timings: Timings


class _Ended(Exception):
    """A wait ended otherwise than it should."""

    def __init__(self, outcome: TerminalOutcome, message: str) -> None:
        super().__init__(message)
        self.outcome = outcome


class _TimedOut(_Ended):
    """A wait took too long."""

    def __init__(self, outcome: TerminalOutcome, name: str, limit_s: float, measured_s: float, what: str) -> None:
        super().__init__(outcome, f"{what} after {measured_s:.1f} s (timeout {name!r} is {limit_s:g} s)")


def run_opencode_tui(
    starts: Sequence[Start],
    *,
    env: Mapping[str, str],
    cwd: Path,
    turn_ended: Callable[[int], bool],
    artefacts: Path,
    timeouts: Timeouts | None = None,
    answer: Answer | None = "always",
    heard_of: Callable[[int], bool] = lambda permissions: True,
    all_said: Callable[[], bool] = lambda: False,
) -> TuiRun:
    """Start OpenCode in a terminal of 120 x 36 cells, give it its prompts, and leave it when the last turn is done.

    Args:
        starts: OpenCode's starts, one after the other; at least one, each with at least one prompt.
        env: The whole environment of OpenCode.
        cwd: Where it starts.
        turn_ended: The end-of-turn signal: true once OpenCode has done as many turns as its argument says, counted
            over all starts without those that a rejection ended, and no request is open. Asked about 20 times a
            second.
        artefacts: Folder for what is recorded; must exist.
        timeouts: How long each wait may take.
        answer: How dialogs are answered; None leaves them open.
        heard_of: Whether at least so many permissions are known to have been asked for; waited for before OpenCode
            is left, because it may end without having told.
        all_said: Whether the model's last answer was given and is known to be the last. The screen then tells the end
            of the turn, up to a second before OpenCode's log does.

    Raises:
        TerminalStartError: OpenCode or its folder is not there or cannot be run.
    """
    with contextlib.closing(_Recording(artefacts)) as recording:
        conversation = _Conversation(recording, timeouts or Timeouts(), answer, turn_ended, heard_of, all_said)
        for number, start in enumerate(starts):
            if number:
                recording.started_again()
            with _Terminal(start.argv, env, cwd, recording) as terminal:
                conversation.run(terminal, start)
            if not conversation.goes_on:
                break
        return conversation.result()


class _Scrollback:
    """What was ever on the screen, by paragraph."""

    def __init__(self) -> None:
        self._paragraphs: dict[str, None] = {}
        self._last: str | None = None

    def see(self, joined_text: str) -> None:
        """Take in a screen; a paragraph that has only grown replaces what it was."""
        if joined_text == self._last:
            return
        previous = (self._last or "").split("\n")
        self._last = joined_text
        known = self._paragraphs
        for paragraph in joined_text.split("\n"):
            if paragraph and paragraph not in known:
                for shorter in previous:
                    if shorter in known and paragraph.startswith(shorter):
                        del known[shorter]
                known[paragraph] = None

    def text(self) -> str:
        """All paragraphs, in the order in which each first was as it is."""
        return "\n".join(self._paragraphs)


class _Recording:
    """The artefacts of a run, written as it goes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stderr_path = folder / "stderr.txt"
        self.stderr_path.write_bytes(b"")
        self._started_s = time.monotonic()
        self._plain = PlainText()
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self.scrollback = _Scrollback()
        with contextlib.ExitStack() as files:
            self._raw = files.enter_context((folder / "stdout.raw").open("wb", buffering=0))
            self._text = files.enter_context((folder / "stdout.txt").open("w", encoding="utf-8", newline=""))
            self._cast = files.enter_context((folder / "screen.cast").open("wb", buffering=0))
            self._files = files.pop_all()
        header = {"version": 2, "width": _COLUMNS, "height": _ROWS, "timestamp": int(time.time())}
        self._cast_line({**header, "env": {"TERM": "xterm-256color"}})

    def now_s(self) -> float:
        return time.monotonic() - self._started_s

    def output(self, data: bytes) -> None:
        self._raw.write(data)
        self._text.write(self._plain.feed(data))
        self._text.flush()
        self._cast_line([round(self.now_s(), 6), "o", self._decode(data)])

    def marker(self, label: str) -> None:
        self._cast_line([round(self.now_s(), 6), "m", label])

    def started_again(self) -> None:
        """A program has ended and the next one gets a blank terminal."""
        self._cast_line([round(self.now_s(), 6), "o", "\x1bc"])
        self.marker("started again")

    def screen(self, moment: str, screen: TerminalScreen) -> tuple[str, ...]:
        write_whole(self.folder / f"screen-{moment}.txt", screen.text())
        return screen.rows()

    def stdout_text(self) -> str:
        return (self.folder / "stdout.txt").read_text(encoding="utf-8", errors="replace")

    def stderr_text(self) -> str:
        return self.stderr_path.read_text(encoding="utf-8", errors="replace")

    def close(self) -> None:
        self._files.close()

    def _cast_line(self, event: object) -> None:
        # One write, so that a line is whole or not there.
        self._cast.write((json.dumps(event, ensure_ascii=False) + "\n").encode("utf-8"))


class _Terminal:
    """A process in a pseudo-terminal, the screen that it draws, and the recording of both."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], cwd: Path, recording: _Recording) -> None:
        self.screen = TerminalScreen(_COLUMNS, _ROWS)
        self.recording = recording
        self.ended = False
        self.exit_status: int | None = None
        self.last_output_s = 0.0
        self._unseen = b""
        self._run_id = uuid.uuid4().hex
        try:
            self._child = _spawn(argv, {**env, _RUN_ID: self._run_id}, cwd, self.recording.stderr_path)
        except (pexpect.ExceptionPexpect, OSError, ValueError) as error:
            message = str(error).splitlines()[0]
            raise TerminalStartError(f"cannot start {argv[0]} in {cwd}: {message}") from error

    def __enter__(self) -> _Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def look(self) -> bool:
        """Take in what the process wrote, waiting a moment for it; false when it wrote nothing.

        At most one frame of a program that marks its frames is taken in, so that no screen goes unseen.
        """
        if not self._unseen and not self.ended:
            self._read()
        if not self._unseen:
            return False
        frame, mark, self._unseen = self._unseen.partition(_END_OF_FRAME)
        self._reply(self.screen.feed(frame + mark))
        self.recording.scrollback.see(self.screen.joined_text())
        return True

    def _read(self) -> None:
        try:
            self._unseen = self._child.read_nonblocking(_LARGEST_READ, timeout=_LOOK_S)
        except pexpect.TIMEOUT:
            return
        except pexpect.EOF:
            self._note_end()
            return
        self.last_output_s = self.recording.now_s()
        self.recording.output(self._unseen)

    def press(self, keys: bytes) -> None:
        """Write keys; a process that has just ended takes none."""
        self._reply(keys)

    def _reply(self, data: bytes) -> None:
        if data and not self.ended:
            with contextlib.suppress(OSError):
                self._child.send(data)

    def _note_end(self) -> None:
        """The terminal is closed: the process has ended, or is about to."""
        self.ended = True
        deadline_s = self.recording.now_s() + _TERMINATE_S
        while self._child.isalive() and self.recording.now_s() < deadline_s:
            time.sleep(0.01)  # there is no event to wait for: waitpid has no timeout
        if not self._child.isalive():
            signalled = self._child.signalstatus
            self.exit_status = -signalled if signalled is not None else self._child.exitstatus

    def terminate(self) -> None:
        """SIGTERM to the whole process group."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the process and everything that it started; harmless when nothing is left."""
        self._signal(signal.SIGKILL)
        # Those in sessions of their own, whose parent may be gone. One may start another while it is being killed.
        while left := [process for process in _processes_of(self._run_id) if process.pid != self._pid]:
            for process in left:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            psutil.wait_procs(left, timeout=_TERMINATE_S)
        if not self.ended:
            self._note_end()
        with contextlib.suppress(OSError, pexpect.ExceptionPexpect):
            self._child.close(force=True)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(OSError):
            os.killpg(self._pid, number)

    @property
    def _pid(self) -> int:
        """Process id of the program, which leads its process group: pexpect starts a session for it."""
        assert self._child.pid is not None  # it was spawned
        return self._child.pid


def _spawn(argv: Sequence[str], env: Mapping[str, str], cwd: Path, stderr_path: Path) -> pexpect.spawn[bytes]:
    """Start a program whose terminal is stdin and stdout, and whose stderr is a file."""
    if not cwd.is_dir():
        raise OSError("there is no such folder")

    def redirect_stderr() -> None:
        # Opened in the child: pexpect has closed every other descriptor by now.
        os.dup2(os.open(stderr_path, os.O_WRONLY | os.O_APPEND), 2)

    with warnings.catch_warnings():
        # Python 3.12 warns of any fork beside threads; between fork and exec this child runs no code that takes locks.
        warnings.filterwarnings("ignore", category=DeprecationWarning, message=".*fork.*")
        return pexpect.spawn(
            argv[0],
            list(argv[1:]),
            env=dict(env),
            cwd=str(cwd),
            dimensions=(_ROWS, _COLUMNS),
            timeout=None,
            preexec_fn=redirect_stderr,
        )


def _processes_of(run_id: str) -> list[psutil.Process]:
    """The running processes of a run, wherever they stand in the tree of processes."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(_RUN_ID) == run_id and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


class _Conversation:
    """All prompts, from the first start of OpenCode to its last end."""

    _terminal: _Terminal
    _is_ready: Callable[[], bool]

    def __init__(
        self,
        recording: _Recording,
        timeouts: Timeouts,
        answer: Answer | None,
        turn_ended: Callable[[int], bool],
        heard_of: Callable[[int], bool],
        all_said: Callable[[], bool],
    ) -> None:
        self._recording = recording
        self._timeouts = timeouts
        self._answer: Answer | None = answer
        self._answerer = DialogAnswerer(answer) if answer is not None else None
        self._signal = turn_ended
        self._heard_of = heard_of
        self._all_said = all_said
        self._dialogs: list[AnsweredDialog] = []
        self._prompts = 0
        self._rejections = 0
        # False from each prompt or answer until OpenCode has drawn something of its own after it.
        self._saw_post_submit_output = False
        # Whether the turn that is under way was ended by a rejection.
        self._rejected = False
        self._outcome: TerminalOutcome = "done"
        self._message = ""
        self._open_dialog = ""
        self._screen_at_end = ""
        self._ready_rows: tuple[str, ...] = ()
        self._done_rows: tuple[str, ...] = ()
        self._final_rows: tuple[str, ...] = ()
        self._exit_status: int | None = None
        self._times: dict[str, float] = {}

    @property
    def goes_on(self) -> bool:
        """Whether OpenCode may be started again: nothing went wrong."""
        return self._outcome in ("done", "rejected")

    def run(self, terminal: _Terminal, start: Start) -> None:
        """One start of OpenCode."""
        self._terminal = terminal
        self._is_ready = self._shows_conversation if start.resumes else self._shows_example
        self._outcome, self._message = self._converse(start.prompts)
        self._done_rows = self._recording.screen("done", terminal.screen)
        self._screen_at_end = terminal.screen.joined_text()
        self._recording.marker(self._outcome)
        self._message += self._leave()
        self._exit_status = terminal.exit_status
        self._final_rows = self._recording.screen("final", terminal.screen)

    def result(self) -> TuiRun:
        """What all starts together showed."""
        return TuiRun(
            outcome=self._outcome,
            exit_status=self._exit_status,
            message=self._message,
            stdout_text=self._recording.stdout_text(),
            stderr_text=self._recording.stderr_text(),
            ready_rows=self._ready_rows,
            done_rows=self._done_rows,
            final_rows=self._final_rows,
            screen_text=self._screen_at_end,
            scrollback=self._recording.scrollback.text(),
            open_dialog=self._open_dialog,
            dialogs=tuple(self._dialogs),
            timings=Timings(**{f"{name}_s": self._times.get(name) for name in ("ready", "turn", "settle", "exit")}),
        )

    def _converse(self, prompts: Sequence[str]) -> tuple[TerminalOutcome, str]:
        try:
            self._wait_until_ready()
            for prompt in prompts:
                self._submit(prompt)
                self._wait_for_turn_end()
                settled = self._settle()
        except _Ended as end:
            return end.outcome, f"{end}{self._what_is_open()}"
        if self._rejected:
            return "rejected", "a permission was rejected, which ended the turn"
        return "done", "the turn is done" if settled else "the turn is done, but the screen did not settle"

    def _turn_ended(self) -> bool:
        return self._signal(self._prompts - self._rejections)

    def _took(self, name: str, seconds: float) -> None:
        self._times[name] = self._times.get(name, 0.0) + seconds

    def _what_is_open(self) -> str:
        dialog = self._dialog()
        self._open_dialog = " ".join(dialog.text.split()) if dialog else ""
        return f"; a dialog is open: {self._open_dialog}" if dialog else ""

    def _dialog(self) -> Dialog | None:
        screen = self._terminal.screen
        return find_dialog(screen.rows(), lambda row, column: screen.cell(row, column).background)

    def _screen_text(self) -> str:
        return self._terminal.screen.text()

    def _now_s(self) -> float:
        return self._recording.now_s()

    def _look(self) -> bool:
        """Take in output, answer what asks, and stop when OpenCode has ended."""
        seen = self._terminal.look()
        if self._terminal.ended and not seen:
            raise _Ended("exited", f"OpenCode ended by itself, {_status_in_words(self._terminal.exit_status)}")
        if seen:
            self._saw_post_submit_output = True
        return seen

    def _wait_until(
        self, seen: Callable[[], bool], outcome: TerminalOutcome, name: str, limit_s: float, what: str
    ) -> float:
        """Look until `seen`; returns how long it took."""
        started_s = self._now_s()
        while not seen():
            self._look()
            waited_s = self._now_s() - started_s
            if waited_s > limit_s:
                raise _TimedOut(outcome, name, limit_s, waited_s, what)
        return self._now_s() - started_s

    def _wait_until_ready(self) -> None:
        waited_s = self._wait_until(
            self._is_ready, "ready-timeout", "ready", self._timeouts.ready_s, "OpenCode showed no prompt box"
        )
        self._took("ready", waited_s)
        self._ready_rows = self._recording.screen("ready", self._terminal.screen)
        self._recording.marker("ready")

    def _shows_example(self) -> bool:
        return READY_RE.search(self._screen_text()) is not None

    def _shows_conversation(self) -> bool:
        text = self._screen_text()
        return _TURN_RE.search(text) is not None and _FOOTER_RE.search(text) is not None

    def _submit(self, prompt: str) -> None:
        """Give the prompt and press Enter.

        It is pasted where typing would do something else: a line end would submit, and a first `/`, `@` or `!` opens
        a menu.
        """
        self._prompts += 1
        self._rejected = False
        was_done = self._is_done()
        self._saw_post_submit_output = False
        keys = prompt.encode("utf-8")
        self._terminal.press(_PASTE_START + keys + _PASTE_END if _NEEDS_PASTE.search(prompt) else keys)
        self._wait_for_the_prompt_to_show()
        self._recording.marker("prompt sent")
        self._saw_post_submit_output = False
        pressed_s = self._now_s()
        self._terminal.press(ENTER)

        def taken() -> bool:
            nonlocal pressed_s
            at_work = _BUSY_RE.search(self._screen_text()) or (not was_done and self._is_done())
            if self._turn_ended() or (at_work and not self._shows_example()):
                return True
            if self._now_s() - pressed_s > _PRESS_AGAIN_S:
                pressed_s = self._now_s()
                self._terminal.press(ENTER)
            return self._dialog() is not None

        self._wait_until(taken, "input-timeout", "input", self._timeouts.input_s, "OpenCode did not take the prompt")

    def _wait_for_the_prompt_to_show(self) -> None:
        """Until the box has changed; Enter is pressed all the same after a moment, for a box that stays as it is."""
        started_s = self._now_s()
        while not self._shows_input() and self._now_s() - started_s < _PASTE_S:
            self._look()

    def _shows_input(self) -> bool:
        return self._saw_post_submit_output and not self._shows_example()

    def _wait_for_turn_end(self) -> None:
        waited_s = self._wait_until(
            self._turn_is_over, "turn-timeout", "turn", self._timeouts.turn_s, "the agent was not done"
        )
        self._took("turn", waited_s)
        self._rejections += self._rejected

    def _turn_is_over(self) -> bool:
        self._answer_dialog()
        if self._rejected and self._dialog() is None and self._saw_post_submit_output:
            return not _BUSY_RE.search(self._screen_text())
        return self._turn_ended() or (self._all_said() and self._saw_post_submit_output and self._is_done())

    def _answer_dialog(self) -> None:
        """Press the key that brings an open dialog nearer to its answer.

        What was drawn before an answer must not count as output after it: the screen is redrawn with old text on it.
        """
        if self._answerer is None or self._answer is None:
            return
        dialog = self._dialog()
        keys = self._answerer.step(dialog, self._now_s())
        if not keys or dialog is None:
            return
        self._terminal.press(keys)
        if dialog.options and keys != ENTER:
            return
        wanted = dialog.wanted(self._answer)
        self._dialogs.append(AnsweredDialog(dialog.kind, dialog.text, wanted, self._now_s()))
        self._recording.marker(f"dialog answered: {dialog.kind}: {wanted}")
        self._saw_post_submit_output = False
        self._rejected = self._answer == "reject"

    def _is_done(self) -> bool:
        """Whether the last turn on the screen carries its time, and nothing is at work."""
        text = self._screen_text()
        turns = _TURN_RE.findall(text)
        return bool(turns) and _DONE_RE.match(turns[-1]) is not None and not _BUSY_RE.search(text)

    def _settle(self) -> bool:
        """After the end-of-turn signal: whether the screen came to rest within `quiet`."""
        started_s = self._now_s()
        settled = False
        while not settled and self._now_s() - started_s < self._timeouts.quiet_s:
            self._look()
            still_s = self._now_s() - max(self._terminal.last_output_s, started_s)
            settled = still_s >= self._timeouts.settle_s and (self._is_done() or self._rejected) and self._all_heard()
        self._took("settle", self._now_s() - started_s)
        return settled

    def _all_heard(self) -> bool:
        return self._heard_of(sum(dialog.kind in _PERMISSION_KINDS for dialog in self._dialogs))

    def _leave(self) -> str:
        """Ctrl-C until OpenCode ends, then SIGTERM, then SIGKILL; returns what to add to the message."""
        if self._terminal.ended:
            return ""
        started_s = self._now_s()
        pressed_s = started_s - _PRESS_AGAIN_S
        while not self._terminal.ended and self._now_s() - started_s < self._timeouts.exit_s:
            if self._now_s() - pressed_s >= _PRESS_AGAIN_S:
                pressed_s = self._now_s()
                self._terminal.press(_CTRL_C)
            self._terminal.look()
        waited_s = self._now_s() - started_s
        self._took("exit", waited_s)
        if self._terminal.ended:
            return ""
        limit = f"timeout 'exit' is {self._timeouts.exit_s:g} s"
        note = f"; OpenCode did not leave after {waited_s:.1f} s ({limit})"
        self._terminal.terminate()
        terminated_s = self._now_s()
        while not self._terminal.ended and self._now_s() - terminated_s < _TERMINATE_S:
            self._terminal.look()
        self._terminal.kill()
        return note


def _status_in_words(status: int | None) -> str:
    if status is None:
        return "with an unknown status"
    return f"killed by signal {-status}" if status < 0 else f"with status {status}"
