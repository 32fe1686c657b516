"""The Redis proxy's command line, and the values it refuses before it starts."""

from __future__ import annotations

import pytest
from redis_proxy import parser

FRONT = ("front", "--listen", "127.0.0.1:0", "--to", "127.0.0.1:1")


@pytest.mark.parametrize(("said", "seconds"), [("0.001", 0.001), ("5", 5.0)])
def test_patience(said: str, seconds: float) -> None:
    assert parser().parse_args([*FRONT, "--patience", said]).patience == seconds


@pytest.mark.parametrize("said", ["0", "-1", "-0.0", "nan", "inf", "soon", ""])
def test_a_patience_with_which_nothing_opens_is_refused(
    said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args([*FRONT, f"--patience={said}"])
    assert f"argument --patience: {said!r} is not a number of seconds above 0" in capsys.readouterr().err
