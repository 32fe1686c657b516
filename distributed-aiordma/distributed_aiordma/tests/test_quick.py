"""Messages that are not taken to a thread, and those that are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import dask
import numpy as np
import pytest
from distributed.protocol import to_serialize
from distributed.protocol.numpy import serialize_numpy_ndarray

from distributed_aiordma import comm as comms
from distributed_aiordma.frames import HEAD_BYTES, begin, count_of
from distributed_aiordma.quick import is_quick

from .pairs import comm_pair

if TYPE_CHECKING:
    from collections.abc import Callable

MIB = 1 << 20
#: More than distributed serialises in the event loop.
LARGE = np.zeros((6, 2 * MIB), np.uint8)


def message(data: object) -> dict[str, object]:
    return {"status": "OK", "data": {"key": to_serialize(data)}, "count": [1, 2.5, None, True, b"x"]}


@pytest.mark.parametrize(
    "array", [LARGE, LARGE.T, LARGE.view("M8[s]"), LARGE[2:4], np.array(5), np.zeros(0)], ids=repr
)
def test_what_is_sent_as_it_lies_in_memory(array: np.ndarray) -> None:
    assert is_quick(message(array))
    _, (frame,) = serialize_numpy_ndarray(array)
    assert np.shares_memory(np.frombuffer(frame, np.uint8), array) or not array.nbytes


@pytest.mark.parametrize(
    "data",
    [
        LARGE[:, ::2],
        np.array([{}, {}], object),
        np.ma.masked_array(LARGE),
        [LARGE],
        b"x" * MIB,
        "text",
    ],
    ids=lambda data: type(data).__name__,
)
def test_what_is_copied_or_may_be_anything(data: object) -> None:
    assert not is_quick(message(data))


def test_other_messages() -> None:
    assert not is_quick([message(LARGE)])
    assert not is_quick({"op": "something else", "array": to_serialize(LARGE)})
    assert not is_quick({"data": {}, "text": "x" * MIB})
    assert not is_quick({"data": {}, "other": object()})
    assert is_quick({"data": {n: to_serialize(LARGE) for n in range(60)}})
    assert not is_quick({"data": {n: to_serialize(LARGE) for n in range(64)}}), "each takes a while"


def test_what_is_compressed_takes_time() -> None:
    with dask.config.set({"distributed.comm.compression": "zlib"}):
        assert not is_quick(message(LARGE))


@pytest.mark.parametrize("quick", [False, True])
def test_the_receiver_is_told(quick: bool) -> None:
    head = begin([b"a", b"b"], [1, 1], quick=quick)
    assert count_of(head[:HEAD_BYTES]) == (2, quick)


@pytest.mark.asyncio
@pytest.mark.parametrize(("make", "in_threads"), [(lambda: LARGE, False), (lambda: [LARGE.tobytes()], True)])
async def test_where_both_ends_do_it(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[], object], in_threads: bool
) -> None:
    threads: list[bool] = []

    def observe(name: str) -> None:
        real = getattr(comms, name)

        async def observed(*args: object, allow_offload: bool, **keywords: object) -> object:
            threads.append(allow_offload)
            return await real(*args, allow_offload=allow_offload, **keywords)

        monkeypatch.setattr(comms, name, observed)

    observe("to_frames")
    observe("from_frames")
    sent = make()
    async with comm_pair() as (a, b):
        threads.clear()  # of the handshake
        await a.write(message(sent))
        received = (await b.read())["data"]["key"]
    assert threads == [in_threads, in_threads]
    np.testing.assert_array_equal(received, sent)
