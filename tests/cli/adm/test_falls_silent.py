"""`aiordma adm` where a process answers one question, and not the next: what it said before is no answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from aiordma.admin import asking, page
from aiordma.admin.messages import Connections, Settings
from aiordma.admin.requests import Capture, Change, Drain, Show, ShowSettings
from aiordma.cli.adm import drain
from aiordma.cli.adm.target import Target
from tests.admin.looking import ask_one, loops_of, rows
from tests.processes import process
from tests.world import DEVICE

from .test_command import ROLE, log, run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.processes import Process

pytest.importorskip("aiordma._cq", reason="the compiled modules are not built")


def _sleep(other: Process) -> None:
    """Its loop stands still until it hears something."""
    other.say("sleep")
    assert other.hear() == "asleep"


def _wake(other: Process) -> None:
    other.say("wake up")
    assert other.hear() == "awake"


def _end(other: Process) -> None:
    other.hush()
    assert other.wait() == 0


def _after_the_first(monkeypatch: pytest.MonkeyPatch, do: Callable[[], None]) -> None:
    """Between the tool's first question and its second."""
    ask, asked = Target.ask, list[Any]()

    def one(self: Target, request: Any, *rest: Any) -> Any:
        found = ask(self, request, *rest)
        if not asked:
            asked.append(request)
            do()
            # Who is silent then is not waited for: no loop counts as one that comes by.
            monkeypatch.setattr(page, "BEAT_SECONDS", 0.0)
        return found

    monkeypatch.setattr(Target, "ask", one)


def test_an_old_answer_is_none_to_a_new_question(monkeypatch: pytest.MonkeyPatch) -> None:
    with process(ROLE, device=DEVICE) as other:
        other.hear()
        (loop,) = asking.ask(ShowSettings(), loops_of(other.pid), 20.0)
        assert (loop.state, bool(loop.parts)) == ("answered", True)
        _sleep(other)
        monkeypatch.setattr(page, "BEAT_SECONDS", 0.0)
        (loop,) = asking.ask(Change({"trace_sample": 1}), [loop])
        assert loop.state in ("no answer", "stuck")
        assert (loop.parts, bool(loop.text)) == ([], True)
        monkeypatch.undo()
        _wake(other)
        # And one that answers again has answered the last question only.
        (loop,) = asking.ask(Show(("connections",)), [loop], 20.0)
        assert (loop.state, len(rows(loop, Connections))) == ("answered", 4)
        assert rows(loop, Settings) == []


@pytest.mark.parametrize(
    "words",
    [
        ["set", "busy_poll_us=0"],
        ["close", "NUMBER"],
        ["switch", "tcp", "NUMBER"],
        ["capture", "--seconds", "0", "-o", "FILE"],
        ["drain", "--wait", "0"],
    ],
    ids=lambda words: words[0],
)
def test_it_is_told_that_the_second_question_got_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    path = tmp_path / "it.pcapng"
    with process(ROLE, device=DEVICE, streams=1) as other:
        other.hear()
        number = str(rows(ask_one(other.pid), Connections)[0].number)
        given = {"NUMBER": number, "FILE": str(path)}
        _after_the_first(monkeypatch, lambda: _sleep(other))
        done = run(other, *(given.get(word, word) for word in words))
        monkeypatch.undo()
        assert (done.exit_code, done.stdout, path.exists()) == (3, "", False)
        assert "NO ANSWER: " in done.stderr or "STUCK: " in done.stderr
        _wake(other)
        if words[0] in ("set", "close", "switch"):
            assert log(other) == []
        ask_one(other.pid, Capture("stop"))


@pytest.mark.parametrize(
    "words",
    [["set", "busy_poll_us=0"], ["close", "NUMBER"], ["capture", "--seconds", "0", "-o", "FILE"]],
    ids=lambda words: words[0],
)
def test_a_process_that_ends_between_two_questions_has_not_done_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    path = tmp_path / "it.pcapng"
    with process(ROLE, device=DEVICE, streams=1) as other:
        other.hear()
        number = str(rows(ask_one(other.pid), Connections)[0].number)
        given = {"NUMBER": number, "FILE": str(path)}
        _after_the_first(monkeypatch, lambda: _end(other))
        done = run(other, *(given.get(word, word) for word in words))
        assert (done.exit_code, done.stdout, path.exists()) == (1, "", False)
        assert "has ended" in done.stderr


def test_who_does_not_answer_may_have_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    with process(ROLE, device=DEVICE, streams=1) as other:
        other.hear()
        _sleep(other)
        monkeypatch.setattr(page, "BEAT_SECONDS", 0.0)
        done = run(other, "close", "4711")
        assert (done.exit_code, "no connection has" in done.stderr) == (3, False)
        _wake(other)


def test_silence_does_not_mean_that_no_links_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    with process(ROLE, device=DEVICE, streams=1) as other:
        other.hear()
        target = Target(other.pid, None, False, False)
        loops = target.ask(Drain(None, False, ""), loops_of(other.pid), 20.0)
        _sleep(other)
        monkeypatch.setattr(page, "BEAT_SECONDS", 0.0)
        assert drain._left(target, loops) == {loops[0]: None}
        monkeypatch.undo()
        _wake(other)
        _end(other)
        assert drain._left(target, loops) == {}
