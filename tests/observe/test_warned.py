"""Past warnings: kept beside the program's logging, which stays as it was."""

from __future__ import annotations

import logging
import subprocess
import sys

from aiordma.observe import warned


def test_the_last_ones_are_kept_without_the_text_of_exceptions() -> None:
    warned.begin()
    warned.begin()
    log = logging.getLogger("aiordma.link")
    for number in range(300):
        log.warning("number %d", number)
    log.info("this is no warning")
    try:
        raise ValueError("hunter2")
    except ValueError:
        log.exception("it failed")
    wrong = logging.LogRecord("aiordma.link", logging.WARNING, "", 1, "wrong %d", ("arguments",), None)
    warned._keeper.emit(wrong)
    kept = warned.recent()
    assert len(kept) == 256
    assert kept[-2][1:] == ("ERROR", "aiordma.link", "it failed (ValueError)")
    assert [row.text for row in kept[-4:-2]] == ["number 298", "number 299"]
    assert kept[-1].text == "wrong %d"
    log.warning("x" * 5000)
    assert len(warned.recent()[-1].text) == 500


def test_what_an_exception_says_is_left_out_of_the_text_too() -> None:
    warned.begin()
    log = logging.getLogger("aiordma.listen")
    error = ValueError("password is hunter2")
    log.error("the handler of %r has failed: %s", "it", error, exc_info=error)
    assert warned.recent()[-1].text == "the handler of 'it' has failed: ... (ValueError)"
    group = ExceptionGroup("several", [error, KeyError("hunter3"), ValueError()])
    log.error("failed: %s, %s", error, group.exceptions[1], exc_info=group)
    assert warned.recent()[-1].text == "failed: ..., ... (ExceptionGroup)"


PROGRAM = """
import logging
from aiordma.observe import warned
{setup}
warned.begin()
logging.getLogger("aiordma.x").warning("look at this")
"""


def test_programs_see_warnings_as_before() -> None:
    def stderr(setup: str) -> str:
        command = [sys.executable, "-c", PROGRAM.format(setup=setup)]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stderr

    # Without any handler, Python prints warnings; with one, that does; once in each case.
    assert stderr("") == "look at this\n"
    assert stderr("logging.basicConfig()") == "WARNING:aiordma.x:look at this\n"
    assert stderr("logging.getLogger('aiordma').addHandler(logging.NullHandler())") == ""
