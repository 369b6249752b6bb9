from __future__ import annotations

from pathlib import Path

from opencode_harness.opencode_log import OpenCodeLog, PermissionAsked

# Lines as OpenCode 1.18.33 writes them, shortened.
LOOP = b"timestamp=2026-12-01T06:37:30.371Z level=INFO run=23d66789 message=loop session.id=ses_main step=0\n"
SUB_LOOP = LOOP.replace(b"ses_main", b"ses_sub")
EXIT = b'timestamp=2026-12-01T06:00:05 level=INFO message="exiting loop" session.id=ses_main\n'
SUB_EXIT = EXIT.replace(b"ses_main", b"ses_sub")
ASKING = (
    b"level=INFO message=asking id=per_1 permission=external_directory "
    b'patterns="[\\"/tmp/x/*\\"]" note="a permission=fake inside quotes"\n'
)


def test_a_missing_log_means_that_nothing_happened_yet(tmp_path: Path) -> None:
    log = OpenCodeLog(tmp_path / "opencode.log")
    log.refresh()
    assert (log.turns_ended, log.asked) == (0, [])


def test_the_end_of_the_main_sessions_loop_is_the_end_of_the_turn(tmp_path: Path) -> None:
    path = tmp_path / "opencode.log"
    path.write_bytes(LOOP + SUB_LOOP + SUB_EXIT)
    log = OpenCodeLog(path)
    log.refresh()
    assert log.turns_ended == 0
    with path.open("ab") as stream:
        stream.write(EXIT)
    log.refresh()
    log.refresh()
    assert log.turns_ended == 1


def test_a_line_that_is_being_written_is_read_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "opencode.log"
    log = OpenCodeLog(path)
    stream = LOOP + EXIT + ASKING
    for end in range(1, len(stream) + 1):
        with path.open("ab") as file:
            file.write(stream[end - 1 : end])
        log.refresh()
    assert log.turns_ended == 1
    assert log.asked == [PermissionAsked("external_directory", '["/tmp/x/*"]')]


def test_bytes_that_are_not_text_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "opencode.log"
    path.write_bytes(b"\0\xff\xfe message=\n" + LOOP + b"message=\xff\xff\n" + EXIT)
    log = OpenCodeLog(path)
    log.refresh()
    assert log.turns_ended == 1
