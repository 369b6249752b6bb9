"""Markdown, CSV and HTML drawings of a report."""

from __future__ import annotations

import csv
import io
from html.parser import HTMLParser
from pathlib import Path

import pytest
from vram_report.cli import main

FOLDER = Path(__file__).parents[2] / "fixtures" / "logs"
T4 = str(FOLDER / "cuda-t4-gemma4-moe-iswa-2slots.log")
EVIL = "print_info: general.name     = a|b `c` <script>alert(1)</script> \x1b[31m\nmain: model loaded\n"


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 0
    return capsys.readouterr().out


@pytest.fixture
def evil(tmp_path: Path) -> str:
    path = tmp_path / "evil.log"
    path.write_text(EVIL)
    return str(path)


class Page(HTMLParser):
    """Collects what an HTML page shows and what it would load."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.links: list[str] = []
        self.tags: list[str] = []
        self.widths: list[list[float]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        values = dict(attrs)
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]
        if values.get("class") == "bar":
            self.widths.append([])
        style = values.get("style") or ""
        if tag == "span" and style.startswith("width:"):
            self.widths[-1].append(float(style[6:].split("%")[0]))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def read(page: str) -> Page:
    parser = Page()
    parser.feed(page)
    return parser


def test_html_is_one_page_that_loads_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    page = read(printed(capsys, "--format", "html", T4, T4))
    assert page.links == []
    assert page.tags.count("html") == 1
    assert not {"script", "link", "iframe", "img"} & set(page.tags)


def test_html_bar_of_a_device_is_as_wide_as_its_memory(capsys: pytest.CaptureFixture[str]) -> None:
    gpu, host = read(printed(capsys, "--format", "html", T4)).widths
    # 12782.11 weights, 1240.00 KV, 532.62 compute of 14912 MiB
    assert gpu[:3] == pytest.approx([85.717, 8.315, 3.572], abs=0.001)
    assert sum(gpu) == pytest.approx(100, abs=0.01)
    assert sum(host) == pytest.approx(100, abs=0.01)


def test_html_escapes_text_of_the_log(evil: str, capsys: pytest.CaptureFixture[str]) -> None:
    page = read(printed(capsys, "--format", "html", evil))
    assert "script" not in page.tags
    assert any("<script>alert(1)</script>" in text for text in page.texts)


def test_markdown_has_a_table_a_section_and_escapes_text(evil: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "--format", "markdown", evil)
    assert "## Capacity\n\n|  | value |\n| --- | --- |\n" in text
    assert r"| model | a\|b \`c\` \<script\>alert(1)\</script\>" in text
    assert "\x1b" not in text


def test_csv_has_plain_numbers_and_empty_unknowns(capsys: pytest.CaptureFixture[str]) -> None:
    rows = list(csv.DictReader(io.StringIO(printed(capsys, "--format", "csv", T4))))
    values = {(row["table"], row["row"], row["column"]): row["value"] for row in rows}
    assert values["VRAM breakdown", "weights", "CUDA0"] == "12782.11"
    assert values["VRAM breakdown", "free after load", "CPU"] == ""
    assert values["Context and slots", "context", "value"] == "32768"


@pytest.mark.parametrize("form", ["markdown", "csv", "html"])
def test_section_and_device_selections_hold_in_every_format(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "--format", form, "--section", "vram", "--device", "CUDA0", T4)
    assert "VRAM breakdown" in text
    assert "Capacity" not in text
    assert "12,782" in text or "12782" in text
    assert "748.00" not in text
