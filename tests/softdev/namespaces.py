"""Two hosts for tests, or no tests."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

import pytest

from tests import cable
from tests.cable import Host

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Host", "cabled_hosts"]


@contextlib.contextmanager
def cabled_hosts() -> Iterator[tuple[Host, Host]]:
    """Both with IPv4 and IPv6; the cable takes frames of 4500 bytes."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces are for root to make")
    with contextlib.ExitStack() as stack:
        try:
            hosts = stack.enter_context(cable.cabled_hosts())
        except cable.NoNamespacesError as error:
            pytest.skip(str(error))
        yield hosts
