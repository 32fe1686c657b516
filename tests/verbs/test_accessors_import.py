"""What can be asked of _accessors without a device.

In a process of its own: importing it imports pyverbs, which would bind this one to the libibverbs found
there.
"""

from __future__ import annotations

import subprocess
import sys

from tests.world import needs_pyverbs

PROGRAM = """
import pyverbs.base
from aiordma.verbs import _accessors

for function in (
    _accessors.context_pointer, _accessors.pd_pointer, _accessors.comp_channel_pointer, _accessors.cq_pointer,
    _accessors.qp_pointer, _accessors.mr_pointer, _accessors.comp_channel_fd,
    _accessors.async_fd, _accessors.is_iwarp, _accessors.cq_depth, _accessors.async_event_source,
):
    for wrong in (None, 1, object(), pyverbs.base.PyverbsCM()):
        try:
            function(wrong)
        except TypeError:
            continue
        raise SystemExit(f"{function.__name__} took {wrong!r}")
"""


@needs_pyverbs
def test_import_is_free_of_warnings_and_only_pyverbs_objects_are_taken() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
