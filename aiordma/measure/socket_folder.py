"""A folder for Unix sockets of this user's processes."""

from __future__ import annotations

import os
import tempfile

#: Bytes of a path that a Unix socket can have (unix(7): `sun_path` has 108, with the one that ends it).
_LONGEST = 107
#: What a name of :mod:`tempfile` has behind its prefix.
_RANDOM = 8
#: Where the usual folder for temporary files is too deep for a socket. The folder inside has a random name,
#: and mode 0700.
_SHORT = "/tmp"


def socket_folder(prefix: str, longest_name: str) -> tempfile.TemporaryDirectory[str]:
    """A new folder with mode 0700, in which paths of sockets with such names are not too long.

    :param longest_name: of the sockets in it.
    :raises OSError: it cannot be made.
    """
    place = tempfile.gettempdir()
    deep = len(os.fsencode(os.path.join(place, prefix, longest_name))) + _RANDOM > _LONGEST
    return tempfile.TemporaryDirectory(prefix=prefix, dir=_SHORT if deep else place)
