"""What `aiordma doctor` says of streams with programs on the kernel's own SMC-R; without it they use TCP."""

from __future__ import annotations

import ipaddress
import os
import socket
from typing import TYPE_CHECKING

from ...config import Config
from ...errors import NegotiationError
from ...negotiation import smc_option
from ..smcr import setup
from .findings import note, ok

if TYPE_CHECKING:
    from ...negotiation.sockops import SynOptions
    from .findings import Finding

_MAPPED = bytes(10) + b"\xff\xff"


def kernel_smc() -> Finding:
    """The set-up of the host, whether it works for this process, the enterprise ids, and the device."""
    try:
        config = Config.from_env()
    except ValueError as error:
        return note("not looked at", str(error))
    if config.smcr == "off":
        return ok("AIORDMA_SMCR=off")
    if config.smcr == "auto" and not os.path.lexists(setup.MAP):
        if config.smcr_strict:
            return note("AIORDMA_SMCR_STRICT=1, but not set up: no effect", "; ".join(_to_set_up()))
        return ok("; ".join(["not set up: programs on AF_SMC sockets are reached by TCP", *_to_set_up()]))
    options = smc_option.of_config(config)
    if options is None:
        return note(f"AIORDMA_SMCR={config.smcr}: its map cannot be used", setup.problem())
    return _no_option(options) or _no_ids(config) or _on_device(config)


def _to_set_up() -> list[str]:
    """What it takes."""
    return setup.obstacles() or ["aiordma smcr enable, as root, sets it up"]


def _no_option(options: SynOptions) -> Finding | None:
    """A connection of this process to itself shows whether the option is sent."""
    try:
        sent = _is_sent(options)
    except OSError as error:
        return note(f"set up, but not to be tried: {error}")
    if sent:
        return None
    remedy = "this process is outside of the cgroup of aiordma smcr enable --cgroup, or it was taken back: "
    return note("set up, but the option is not sent", f"{remedy}aiordma smcr disable, then enable")


def _is_sent(options: SynOptions) -> bool:
    with socket.socket() as listener, socket.socket() as client:
        listener.setsockopt(socket.IPPROTO_TCP, smc_option.TCP_SAVE_SYN, 1)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        entry = options.want(client)
        try:
            client.connect(listener.getsockname())
        finally:
            options.forget(entry)
        with listener.accept()[0] as accepted:
            return smc_option.in_syn_of(accepted) is not None


def _no_ids(config: Config) -> Finding | None:
    from ...links.smcr.peers import enterprise_ids  # with the compiled modules

    try:
        enterprise_ids(config.smcr_eids)
    except ValueError as error:
        return note(f"set up, but AIORDMA_SMCR_EIDS is wrong: {error}")
    return None


def _on_device(config: Config) -> Finding:
    from ...links.smcr.peers import why_no_kernels
    from ...verbs.backend import open_backend

    ids = f"enterprise ids {config.smcr_eids} (at the peer: smcr ueid add)"
    try:
        backend = open_backend(config.device)
    except NegotiationError:  # which the device's own step explains
        return ok(f"set up; {ids}")
    try:
        if reason := why_no_kernels(backend, config):
            return note("set up", f"{reason}: {_remedy(backend.is_soft)}")
        gid = backend.gid.raw
        address = ipaddress.IPv4Address(gid[12:]) if gid[:12] == _MAPPED else gid.hex(":", 2)
        where = f"{backend.name} with GID {address} and MTU {backend.mtu.size}"
        return ok(f"set up; {ids}; from {where}, to peers that reach this address; {_of_plain_peers(config)}")
    finally:
        backend.close()


def _of_plain_peers(config: Config) -> str:
    if config.smcr_strict:
        return "a peer that does not send the option is plain TCP (AIORDMA_SMCR_STRICT=1)"
    return "where all hosts are set up, AIORDMA_SMCR_STRICT=1 spares plain servers a second connection"


def _remedy(is_soft: bool) -> str:
    if is_soft:
        return "set SOFTDEV_WIRE=auto"
    return "give the port's interface an IPv4 address, or choose another device (AIORDMA_DEVICE)"
