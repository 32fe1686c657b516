"""Proofs in CLC messages: that an answer is no echo, and that a message about a link comes from its other
end."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .clc import Accept, Confirm


def accept_proof(nonce: bytes, server_engine_id: bytes, secret: bytes = b"") -> bytes:
    """What an Accept must carry: only a reader of the Proposal can compute it, and no echo contains it.

    :param secret: of the link that the connection joins (:func:`link_secret`), none on first contact. Engine
        ids are no secret: without it, a third process could put connections on the link of two others.
    """
    return hashlib.sha256(b"aiordma accept" + nonce + server_engine_id + secret).digest()[:16]


def confirm_proof(nonce: bytes, client_engine_id: bytes, secret: bytes) -> bytes:
    """What a Confirm must carry that joins a link: the client is the one that made it."""
    return hashlib.sha256(b"aiordma confirm" + nonce + client_engine_id + secret).digest()[:16]


def claim_proof(fields: tuple[int, int, int, int, int, int], client_engine_id: bytes, secret: bytes) -> bytes:
    """What a Claim must carry: the holder of the ticket is the other end of the link. A ticket is good once,
    so a copy of the message opens nothing.

    :param fields: ``Claim.fields``.
    """
    return hashlib.sha256(
        b"aiordma claim" + client_engine_id + b"%d %d %d %d %d %d" % fields + secret
    ).digest()[:16]


def link_secret(accept: Accept, confirm: Confirm) -> bytes:
    """What only the two ends of a link's first contact know: their random numbers and keys."""
    digest = hashlib.sha256(b"aiordma link")
    for answer in (accept, confirm):
        digest.update(
            b"%d %d %d %d %d " % (answer.qpn, answer.psn, answer.rkey, answer.rmb_addr, answer.token)
        )
    return digest.digest()
