"""Why two software devices cannot share memory: another host, namespace or user."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import pytest

from aiordma.errors import Code, NegotiationError
from aiordma.links import host

if TYPE_CHECKING:
    from pathlib import Path


FIRST = 0x53524C33
#: Where memory is shared if it can be.
WIRE: tuple[Literal["off", "auto"], ...] = ("off", "auto")


def at(
    monkeypatch: pytest.MonkeyPatch, boot: Path, net: Path, user: int, *, layout: int | None = FIRST
) -> bytes:
    monkeypatch.setattr(host, "_BOOT_ID", str(boot))
    monkeypatch.setattr(host, "_NET", str(net))
    monkeypatch.setattr("os.getuid", lambda: user)
    return host.host_id(layout, host.whereabouts())


def test_the_reason_names_what_differs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    one, two, net, other_net = (tmp_path / name for name in ("one", "two", "net", "other"))
    for path in (one, two, net, other_net):
        path.write_text(path.name)
    here = at(monkeypatch, one, net, 1000)
    assert len(here) == 16
    assert here == at(monkeypatch, one, net, 1000)
    for there, code in (
        (at(monkeypatch, one, net, 1001), Code.OTHER_USER),
        (at(monkeypatch, one, other_net, 1000), Code.OTHER_NAMESPACE),
        (at(monkeypatch, one, other_net, 1001), Code.OTHER_NAMESPACE),
        (at(monkeypatch, two, net, 1000), Code.PEER_UNREACHABLE),
    ):
        for own, peer in ((here, there), (there, here)):
            host.check_reachable(own, peer, wire="auto")
            with pytest.raises(NegotiationError) as caught:
                host.check_reachable(own, peer, wire="off")
            assert caught.value.code == code
    host.check_reachable(here, here, wire="off")


def test_other_kinds_of_devices(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    boot = tmp_path / "boot"
    boot.write_text("one")
    soft, card = (at(monkeypatch, boot, boot, 1, layout=layout) for layout in (FIRST, None))
    host.check_reachable(card, card, wire="off")
    for own, peer, text in ((soft, card, "another kind"), (card, soft, "this end has not")):
        with pytest.raises(NegotiationError, match=text) as caught:
            host.check_reachable(own, peer, wire="auto")
        assert caught.value.code == Code.PEER_UNREACHABLE


def test_devices_that_share_no_memory_say_so_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Two versions of the software device on one host: each connect waited for seconds before."""
    net, other_net = (tmp_path / name for name in ("net", "other"))
    for path in (net, other_net):
        path.write_text(path.name)
    own, next_one = (at(monkeypatch, net, net, 1, layout=layout) for layout in (FIRST, FIRST + 1))
    assert own[1:] == next_one[1:]
    for one, two in ((own, next_one), (next_one, own)):
        for wire in WIRE:
            with pytest.raises(NegotiationError, match="cannot share memory") as caught:
                host.check_reachable(one, two, wire=wire)
            assert caught.value.code == Code.VERSION_MISMATCH
    away = at(monkeypatch, net, other_net, 1, layout=FIRST + 1)
    host.check_reachable(own, away, wire="auto")  # by packets, whose format is RoCEv2's
    host.check_reachable(own, next_one, wire="only")
    other_user = at(monkeypatch, net, net, 2, layout=FIRST + 1)
    host.check_reachable(own, other_user, wire="auto")
    with pytest.raises(NegotiationError) as caught:
        host.check_reachable(own, other_user, wire="off")
    assert caught.value.code == Code.OTHER_USER


def test_without_proc_it_says_what_to_mount(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(NegotiationError, match=r"boot cannot be read .*mount /proc") as caught:
        at(monkeypatch, tmp_path / "boot", tmp_path / "net", 1)
    assert caught.value.code == Code.CONFIGURATION
