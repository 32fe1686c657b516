"""Private interfaces of others that this package uses: the table, and the switch that does without them.

Most of them save time where a round trip takes microseconds; some are the only way to what asyncio does not
offer publicly. :mod:`.table` has a row for each: where it is used, the versions it was tried with, a check of
its shape, how to do without it, and what is lost then. ``aiordma doctor`` shows the table, and so does the
reference.

``AIORDMA_PRIVATE_APIS=off`` (process-wide, read when this module is imported) does without them.
"""

from __future__ import annotations

import os

__all__ = ["ENABLED", "VARIABLE"]

VARIABLE = "AIORDMA_PRIVATE_APIS"


def _switched_on() -> bool:
    value = os.environ.get(VARIABLE, "")
    if value not in ("", "auto", "off"):
        raise ValueError(f"{VARIABLE}={value!r} is not valid: it must be auto or off")
    return value != "off"


ENABLED = _switched_on()
