"""What a process may print on standard error: that links to those who were killed are lost."""

from __future__ import annotations

from .member import unexpected

KILLED = "link to 127.0.0.1:5001 lost: SEND on QP 7 failed: RETRY_EXC_ERR"
HALF_OPEN = "a connection was closed before it could be used: the peer closed the connection"


def test_links_to_the_dead_are_no_news() -> None:
    assert unexpected("", [4001]) == ""
    assert unexpected(f"{KILLED}\n{HALF_OPEN}\n", [4001]) == ""


def test_everything_else_is() -> None:
    own = KILLED.replace("5001", "4001")
    other = "Task exception was never retrieved"
    assert unexpected(f"{other}\n{KILLED}\n{own}\n", [4001]) == f"{other}\n{own}"
