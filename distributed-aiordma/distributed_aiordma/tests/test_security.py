"""``rdmas://``, and what Dask's security settings ask for."""

from __future__ import annotations

import ssl

import dask
import numpy as np
import pytest
import trustme
from distributed.comm import connect, listen
from distributed.comm.core import FatalCommClosedError
from distributed.protocol import to_serialize

from distributed_aiordma.settings import PREFIX

from .pairs import comm_pair


def contexts(authority: trustme.CA, trusted: trustme.CA) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """(server's, client's): each shows a certificate of ``authority`` and trusts ``trusted``."""
    made = []
    for purpose in (ssl.Purpose.CLIENT_AUTH, ssl.Purpose.SERVER_AUTH):
        context = ssl.create_default_context(purpose)
        authority.issue_cert("127.0.0.1", "localhost").configure_cert(context)
        trusted.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED
        made.append(context)
    return made[0], made[1]


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.mark.asyncio
@pytest.mark.parametrize("outside", [False, True])
async def test_the_payload_and_what_is_known_of_the_peer(authority: trustme.CA, outside: bool) -> None:
    server, client = contexts(authority, authority)
    data = np.arange(1 << 18)
    with dask.config.set({f"{PREFIX}.rdma-outside-tls": outside}):
        async with comm_pair(
            "rdmas://127.0.0.1", listen_args={"ssl_context": server}, connect_args={"ssl_context": client}
        ) as (a, b):
            assert a.path == b.path == ("rdma" if outside else "tcp")
            for comm in (a, b):
                assert comm.extra_info["peercert"]["subjectAltName"]
                assert "TLS" in comm.extra_info["cipher"][1]
            await a.write({"data": to_serialize(data)})
            np.testing.assert_array_equal((await b.read())["data"], data)
            assert a.peer_address.startswith("rdmas://")


@pytest.mark.asyncio
async def test_a_wrong_certificate_is_not_tried_again(authority: trustme.CA) -> None:
    server, _ = contexts(trustme.CA(), authority)
    _, client = contexts(authority, authority)

    async def handle(comm: object) -> None: ...

    async with listen("rdmas://127.0.0.1", handle, ssl_context=server) as listener:
        with pytest.raises(FatalCommClosedError, match="certificate"):
            await connect(listener.contact_address, timeout=30, ssl_context=client)


@pytest.mark.asyncio
async def test_required_encryption(authority: trustme.CA) -> None:
    server, client = contexts(authority, authority)

    async def handle(comm: object) -> None: ...

    with pytest.raises(RuntimeError, match="use rdmas://"):
        listen("rdma://127.0.0.1", handle, require_encryption=True)
    with pytest.raises(RuntimeError, match="use rdmas://"):
        await connect("rdma://127.0.0.1:1", require_encryption=True)
    with (
        dask.config.set({f"{PREFIX}.rdma-outside-tls": True}),
        pytest.raises(RuntimeError, match="unencrypted"),
    ):
        listen("rdmas://127.0.0.1", handle, ssl_context=server, require_encryption=True)
    async with comm_pair(
        "rdmas://127.0.0.1",
        listen_args={"ssl_context": server, "require_encryption": True},
        connect_args={"ssl_context": client, "require_encryption": True},
    ) as (a, _):
        assert a.extra_info["cipher"]


@pytest.mark.asyncio
async def test_no_context_is_an_error_that_says_so() -> None:
    async def handle(comm: object) -> None: ...

    with pytest.raises(TypeError, match="ssl_context"):
        listen("rdmas://127.0.0.1", handle)
    with pytest.raises(TypeError, match="ssl_context"):
        await connect("rdmas://127.0.0.1:1")
