"""What the C library does with memory that is freed: it gives larger pieces back to the kernel each time, and
the program pays for every page of the next one. What is received is often as large.
"""

from __future__ import annotations

import functools

#: glibc takes blocks below this from its heap, and returns the heap's end when twice as much of it is free.
_KEPT_BYTES = 4 << 20


@functools.cache
def keep_freed_memory() -> None:
    """Keep up to 8 MiB that is freed, for the process.

    glibc raises its limits itself when a larger block than those before it is freed. So this is what it does
    in a program that once had 4 MiB; and nothing where the limits were set (``MALLOC_TRIM_THRESHOLD_``,
    ``mallopt()``). One page is touched.
    """
    bytes(_KEPT_BYTES)
