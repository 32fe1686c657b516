"""What a link does all the time is not worth a line in the log, not even at DEBUG."""

from __future__ import annotations

import logging

import pytest

from aiordma.config import Config
from aiordma.proto import llc
from tests.links.pairs import a_pair, member_of
from tests.world import DEVICE

pytestmark = pytest.mark.anyio


async def test_an_acknowledgement_is_not_called_ignored(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "aiordma")
    async with a_pair(Config(device=DEVICE)) as (one, other):
        queue_pair = member_of(one).group.link.queue_pair
        assert queue_pair.send_llc(llc.AnnounceAck().encode())
        await one.send(b"behind it")
        assert await other.receive() == b"behind it"
    assert not [record for record in caplog.records if "ignored" in record.getMessage()]
