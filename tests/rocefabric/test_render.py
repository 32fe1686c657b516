"""The plan as Markdown, HTML, JSON and on a terminal says the same."""

from __future__ import annotations

import html.parser
import io
import json

import pytest
from rich.console import Console

from rocefabric import model, planner, render
from rocefabric.report import Report

from .networks import EXAMPLE


@pytest.fixture(scope="module")
def report() -> Report:
    return planner.plan(model.load(EXAMPLE))


def test_every_number_is_in_every_form(report: Report) -> None:
    stream = io.StringIO()
    render.to_terminal(report, Console(file=stream, width=500))
    forms = [stream.getvalue(), render.to_markdown(report)]
    forms.append(html.unescape(render.to_html(report)))
    for section in report.sections:
        names = [number.name for number in section.numbers] + [check.name for check in section.checks]
        for name in names:
            assert all(name in form for form in forms), name
        for number in section.numbers:
            assert all(number.formula in form for form in forms), number


def test_json_has_everything(report: Report) -> None:
    found = json.loads(render.to_json(report))
    assert found["verdict"] == "warning"
    assert found["sections"][2]["numbers"][0]["value"] == 103
    assert "sonic-tor1.json" in found["sections"][5]["files"]


class _Tags(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.pictures = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in {"meta", "html", "line", "circle", "path", "polyline", "rect", "br"}:
            self.open.append(tag)
        self.pictures += tag == "svg"

    def handle_endtag(self, tag: str) -> None:
        if tag != "html" and tag not in {"line", "circle", "path", "polyline", "rect"}:
            assert self.open.pop() == tag


def test_html_is_well_formed_and_draws_the_loop(report: Report) -> None:
    tags = _Tags()
    tags.feed(render.to_html(report))
    assert tags.open == []
    assert tags.pictures == 1


def test_markdown_tables_keep_their_columns() -> None:
    from rocefabric.report import Section, Table

    section = Section("s", tables=[Table("t", ("a", "b"), (("x|y", "z"),))])
    assert "| x\\|y | z |" in render.to_markdown(Report("r", [section]))
