"""report.html in a real Chromium: what a person sees and clicks, and that what trials hold does nothing there."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from opencode_harness.html_report import render_html
from opencode_harness.outcomes import Outcome
from opencode_harness.run_document import TrialRecord

pytestmark = pytest.mark.browser

sync_api = pytest.importorskip("playwright.sync_api", reason="nox -s browser installs it")

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
CAST = [
    {"version": 2, "width": 24, "height": 3},
    [0.0, "o", "\x1b[2J\x1b[Hasking"],
    [1.0, "m", "prompt sent"],
    [1.5, "o", "\x1b[2;1H<b>reading</b>"],
    [2.0, "o", "\x1b[3;1Hkiwi"],
    [2.5, "m", "done"],
    [3.0, "o", "\x1b[2J\x1b[Hbye"],
]
FIRST, DONE, LAST = "asking", "asking\n<b>reading</b>\nkiwi", "bye"
REQUEST = {
    "number": 1,
    "lane": "main",
    "source": "server",
    "started_s": 1.1,
    "ended_s": 1.5,
    "finish_reason": "stop",
    "timings": {"cache_n": 0, "prompt_n": 2206},
}


@dataclass
class OpenPage:
    """The page as it stands, and what the browser told or asked for meanwhile."""

    page: Any
    errors: list[str] = field(default_factory=list)
    asked_for: list[str] = field(default_factory=list)

    def text(self, selector: str) -> str:
        return str(self.page.inner_text(selector))

    @property
    def screen(self) -> str:
        return str(self.page.text_content("pre.screen")).rstrip()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip("there is no Chromium on PATH")
    # As root, as in most containers, Chromium has no sandbox of its own.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=found, args=arguments)
        yield started
        started.close()


def record(folder: Path, name: str, outcome: Outcome, *, has_recording: bool = True) -> TrialRecord:
    artefacts = folder / "trials" / f"{len(list(folder.glob('trials/*')))}" / "artefacts"
    artefacts.mkdir(parents=True)
    if has_recording:
        (artefacts / "screen.cast").write_text("".join(json.dumps(line) + "\n" for line in CAST))
    return TrialRecord(
        scenario=f"scenarios/{name}.yaml",
        name=name,
        profile=None,
        repeat=1,
        attempt=1,
        is_last=True,
        outcome=outcome,
        messages=() if outcome is Outcome.PASS else (f"scenarios/{name}.yaml:7: {HOSTILE}",),
        artefacts=artefacts.relative_to(folder),
        result={
            "source": "server",
            "duration_s": 8.25,
            "requests": [REQUEST],
            "clock": {"terminal_started_s": 0.1},
            "diagnosis": None,
        },
    )


@pytest.fixture
def report(tmp_path: Path, browser: Any) -> Iterator[OpenPage]:
    trials = [
        record(tmp_path, "quiet", Outcome.PASS),
        record(tmp_path, HOSTILE, Outcome.FAIL),
        record(tmp_path, "unseen", Outcome.INFRA, has_recording=False),
    ]
    about = {"started": "2026-12-07T10:00:00+00:00", "opencode": "1.18.33", "duration_s": 9.0, "kv_mode": "cold"}
    path = tmp_path / "report.html"
    path.write_text(render_html(trials, about, tmp_path), encoding="utf-8")
    page = browser.new_page()
    opened = OpenPage(page)
    page.on("pageerror", lambda error: opened.errors.append(str(error)))
    page.on("console", lambda message: opened.errors.append(message.text))
    page.on("request", lambda request: opened.asked_for.append(request.url))
    page.goto(path.as_uri())
    yield opened
    assert opened.errors == []
    assert opened.asked_for == [path.as_uri()]
    assert page.title() == "opencode-harness: a run"
    page.close()


def test_every_trial_has_a_row_and_the_first_that_is_not_right_is_open(report: OpenPage) -> None:
    rows = report.page.locator("#trials tr")
    assert rows.count() == 3
    assert rows.nth(0).inner_text().split("\t") == ["PASS", "quiet", "", "server", "8.3 s", "1"]
    assert report.text("#trial h2") == HOSTILE
    assert HOSTILE in report.text("#trial pre.told")
    assert "1.18.33" in report.text("#about")


def test_the_recording_stands_where_the_last_thing_happened_and_text_is_no_markup(report: OpenPage) -> None:
    assert report.screen == DONE
    assert report.page.locator("pre.screen b").count() == 0
    assert report.page.locator("img").count() == 0


def test_an_event_seeks_the_recording(report: OpenPage) -> None:
    events = report.page.locator(".events button")
    assert events.all_inner_texts() == [
        "1.0 s prompt sent",
        "1.0 s request 1 main (server) begins",
        "1.4 s request 1 main (server): stop, 0 cache_n, 2206 prompt_n",
        "2.5 s done",
    ]
    events.nth(0).click()
    assert report.screen == FIRST


def test_the_slider_moves_the_screen_and_marks_what_happened_last(report: OpenPage) -> None:
    slider = report.page.get_by_label("Place in the recording")
    slider.focus()
    report.page.keyboard.press("Home")
    assert report.screen == FIRST
    assert report.page.locator(".events [aria-current=true]").count() == 0
    report.page.keyboard.press("End")
    assert report.screen == LAST
    assert report.text(".events [aria-current=true]") == "2.5 s done"


def test_play_begins_anew_at_the_end_and_runs_to_the_end(report: OpenPage) -> None:
    button = report.page.locator(".controls button")
    report.page.get_by_label("Place in the recording").focus()
    report.page.keyboard.press("End")
    button.click()
    assert report.screen == FIRST
    assert button.inner_text() == "Pause"
    sync_api.expect(button).to_have_text("Play")
    assert report.screen == LAST


def test_pause_stays_where_it_is(report: OpenPage) -> None:
    button = report.page.locator(".controls button")
    button.click()
    assert button.inner_text() == "Pause"
    button.click()
    assert button.inner_text() == "Play"
    assert report.screen == DONE


@pytest.mark.parametrize("by", ["mouse", "keyboard"])
def test_a_row_opens_its_trial(report: OpenPage, by: str) -> None:
    row = report.page.locator("#trials tr").nth(2)
    if by == "mouse":
        row.click()
    else:
        row.focus()
        report.page.keyboard.press("Enter")
    assert report.text("#trial h2") == "unseen"
    assert "no recording" in report.text("#trial")


def test_another_trial_stops_the_one_that_plays(report: OpenPage) -> None:
    report.page.locator(".controls button").click()
    report.page.locator("#trials tr").nth(0).click()
    assert report.text("#trial h2") == "quiet"
    assert report.text(".controls button") == "Play"
    assert report.screen == DONE


@pytest.mark.parametrize("width", [480, 1280])
def test_the_page_fits_its_window(report: OpenPage, width: int) -> None:
    report.page.set_viewport_size({"width": width, "height": 900})
    assert report.page.evaluate("document.documentElement.scrollWidth") <= width
