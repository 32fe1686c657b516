"""What an end knows of its devices: which may be used for which host, and since when not. No I/O.

Two things can be wrong. A *device* is down: it reported that, or could not be opened; then it is used for no
host. Or the *path* over a device to one host is: a link failed there, and it is unknown at which end, or what
is in between. That device is the last choice for that host and as good as before for all others. Both are
tried again after a while, and after twice as long each time that they fail again.

Times are seconds of any clock.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

#: Ways remembered at most; the one that failed first is forgotten first.
_MOST_PATHS = 4096
#: A device or path that has failed so often is not tried less often any more.
_DOUBLINGS = 5
#: Attempts of a stream to find another link that follow one another at once.
EAGER = 3


class _Trouble(NamedTuple):
    why: str
    until: float
    times: int

    def again(self, why: str, now: float, retry: float) -> _Trouble:
        return _Trouble(why, now + retry * (1 << min(self.times, _DOUBLINGS)), self.times + 1)


_NONE = _Trouble("", 0.0, 0)


class Health:
    """Of ``count`` devices, which have the numbers from 0 on in the order in which they are preferred."""

    def __init__(self, count: int) -> None:
        self._down: list[_Trouble] = [_NONE] * count
        self._paths: OrderedDict[tuple[int, str], _Trouble] = OrderedDict()

    # ---- what happens

    def failed(self, device: int, why: str, now: float, retry: float) -> None:
        """The device cannot be used."""
        self._down[device] = self._down[device].again(why, now, retry)

    def recovered(self, device: int) -> None:
        """The device works: by its own word. What was wrong on paths over it may have been that."""
        self._down[device] = _NONE
        for path in [path for path in self._paths if path[0] == device]:
            del self._paths[path]

    def way_failed(self, device: int, host: str, why: str, now: float, retry: float) -> None:
        """A link over this device to this host has failed.

        Links that fail together, as many may lie on one path, count once.
        """
        known = self._paths.get((device, host), _NONE)
        if now < known.until:
            return
        self._paths[device, host] = known.again(why, now, retry)
        self._paths.move_to_end((device, host))
        if len(self._paths) > _MOST_PATHS:
            self._paths.popitem(last=False)

    def works(self, device: int, host: str) -> None:
        """A link to this host has come up."""
        self._paths.pop((device, host), None)
        self._down[device] = _NONE

    # ---- what follows

    def why_down(self, device: int) -> str:
        """Why the device cannot be used, as far as is known; empty when it can.

        It stays so until the device has been seen to work, also when it is time to try again.
        """
        return self._down[device].why

    def tried_again_at(self, device: int) -> float:
        """When it is used again if it is down."""
        return self._down[device].until

    def order(self, host: str, now: float) -> list[list[int]]:
        """All devices, best first, for a connection with ``host``: groups of equally good ones."""
        good: list[int] = []
        bad: list[tuple[float, int]] = []
        down: list[tuple[float, int]] = []
        for device, trouble in enumerate(self._down):
            path = self._paths.get((device, host), _NONE)
            if now < trouble.until:
                down.append((trouble.until, device))
            elif now < path.until:
                bad.append((path.until, device))
            else:
                good.append(device)
        # Where nothing is good, what has been wrong for longest.
        return [*([good] if good else []), *([device] for _, device in (*sorted(bad), *sorted(down)))]


def wait_before(attempt: int, retry: float) -> float:
    """Seconds that a stream on TCP waits before it asks for a link for the ``attempt``-th time, from 0."""
    return 0.0 if attempt < EAGER else retry * (1 << min(attempt - EAGER, _DOUBLINGS))
