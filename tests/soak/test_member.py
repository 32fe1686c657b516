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


def test_warnings_of_devices_that_fail_are_expected_where_devices_fail() -> None:
    said = (
        "soft1: PORT_ERR on port 0x1\n"
        "RDMA device soft1 is not used for new connections: PORT_ERR on port 0x1\n"
        "<DatagramEndpoint rdma 127.0.0.1:7>: its queue pair on soft1 failed, "
        "it has another one on soft0: why\n"
        "no path to 127.0.0.1:7: no RDMA route to the peer's address: [Errno 22] ibv_create_ah: "
        "Invalid argument (to ::ffff:192.0.2.2) (0x030e0000)"
    )
    assert unexpected(said, [], moving=True) == ""
    assert unexpected(said, []) == said
    going_on = "<DatagramEndpoint rdma 127.0.0.1:7>: its queue pair on soft1 failed, going on by UDP: why"
    assert unexpected(going_on, [], moving=True) == going_on
