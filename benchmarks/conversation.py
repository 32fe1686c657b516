"""The protocol between client and server on every connection, over any transport.

The client opens a connection and sends one request of `REQUEST.size` bytes:

* `ECHO size`: the server echoes every `size` bytes, until the client closes;
* `SINK total`: the server reads `total` bytes, then sends a `REPLY`: (its CPU time for that in ns, 0);
* `MEMORY`: the server sends a `REPLY`: (anonymous, shared) resident bytes of its process; repeatable.
* `KEEP`: the server calls `keep_freed_memory()`, then sends a `REPLY`.
"""

from __future__ import annotations

import ctypes
import gc
import struct
from pathlib import Path

ECHO, SINK, MEMORY, KEEP = 1, 2, 3, 4
REQUEST = struct.Struct("<QQ")
REPLY = struct.Struct("<QQ")

# The read size of a bulk receiver; also the most that asyncio's own TCP transport reads.
BULK_BYTES = 256 * 1024


def keep_freed_memory() -> None:
    """Make glibc keep freed memory instead of returning it to the kernel.

    A receiver that allocates one `bytes` of some 100 KiB after another otherwise pays page faults for them,
    or not, depending on the layout of its heap: up to five times the whole cost of receiving.
    """
    mallopt = ctypes.CDLL(None).mallopt
    m_trim_threshold, m_top_pad, m_mmap_threshold = -1, -2, -3
    mallopt(m_mmap_threshold, 32 << 20)
    mallopt(m_trim_threshold, 512 << 20)
    mallopt(m_top_pad, 16 << 20)


def resident_bytes() -> tuple[int, int]:
    """Return (anonymous, shared) resident memory of this process, after garbage collection.

    Rings on the software device are shared memory; everything else in a stream is anonymous.
    """
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    fields = {}
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        key, _, value = line.partition(":")
        if key in {"RssAnon", "RssShmem"}:
            fields[key] = int(value.split()[0]) * 1024
    return fields["RssAnon"], fields["RssShmem"]
