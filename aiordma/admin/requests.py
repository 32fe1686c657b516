"""What tools ask of a process: one request on a connection (:mod:`.messages` has how it lies there)."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

View = Literal[
    "connections",
    "listeners",
    "links",
    "devices",
    "memory",
    "rpc",
    "fallbacks",
    "events",
    "leaks",
    "totals",
]
#: Those that processes with an older build refuse.
NEW_VIEWS: tuple[View, ...] = ("listeners", "events")


class Request(Struct, forbid_unknown_fields=True):
    """What tools ask for."""


class Show(Request, tag="show"):
    """Rows of these views."""

    views: tuple[View, ...]


class ShowSettings(Request, tag="settings"):
    """The settings in force."""


class Change(Request, tag="set"):
    """Change online settings."""

    changes: dict[str, int | str | None]


class Undo(Request, tag="undo"):
    """Give the settings of the last :class:`Change` the values that they had before it."""


class Switch(Request, tag="switch"):
    """Move connections to the other path; None: all of the loop (to TCP), or all that left RDMA (to RDMA)."""

    path: Literal["tcp", "rdma"]
    connections: tuple[int, ...] | None = None
    reason: str = ""


class Close(Request, tag="close"):
    """Abort connections: both ends get an error."""

    connections: tuple[int, ...]


class Trim(Request, tag="trim"):
    """Give unused memory back to the system."""


class Inspect(Request, tag="inspect"):
    """What helps to find out why it hangs or is slow: settings, tasks with their stacks, traced calls, past
    warnings, and the packets of a capture."""


class Drain(Request, tag="drain"):
    """Let devices become idle (None: all), or use them again."""

    devices: tuple[str, ...] | None = None
    revoke: bool = False
    reason: str = ""


class Capture(Request, tag="capture"):
    """Begin or end to keep the last messages of all links and negotiations of the process, or take those that
    are kept."""

    action: Literal["start", "stop", "take"]
    #: of messages that are kept at most; older ones go
    kept_bytes: int = 1 << 20
    #: with what users sent; otherwise headers and control messages only
    payload: bool = False


class Faults(Request, tag="faults"):
    """Add and remove fault rules of the process; the answer has those that hold then."""

    add: tuple[str, ...] = ()
    #: by number; None: all
    remove: tuple[int, ...] | None = ()


FromTool = Show | ShowSettings | Inspect | Change | Undo | Switch | Close | Trim | Drain | Capture | Faults
