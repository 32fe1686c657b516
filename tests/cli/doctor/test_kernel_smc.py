"""What the doctor says of SMC-R with kernels, for hosts that it is not run on."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

import pytest

from aiordma.cli.doctor.kernel_smc import kernel_smc
from aiordma.cli.smcr import setup
from aiordma.links.smcr import peers
from aiordma.negotiation import smc_option
from aiordma.proto.syn_option import SynOption
from tests.kernel_option import Options
from tests.world import DEVICE

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def options(monkeypatch: pytest.MonkeyPatch) -> Options:
    """The host is set up, and SYNs have the option."""
    made = Options()
    monkeypatch.setenv("AIORDMA_SMCR", "fd:99")
    monkeypatch.setenv("AIORDMA_DEVICE", DEVICE)
    monkeypatch.setattr(smc_option, "of_config", lambda _: made)
    monkeypatch.setattr(smc_option, "in_syn_of", lambda _: made.said)
    monkeypatch.setattr(peers, "why_no_kernels", lambda *_: "")
    return made


def test_all_is_well(options: Options) -> None:
    found = kernel_smc()
    assert found.state == "ok"
    assert "enterprise ids AIORDMA" in found.text
    assert "MTU" in found.text
    assert "AIORDMA_SMCR_STRICT=1 spares" in found.text
    assert options.wanted == set()


@pytest.mark.usefixtures("options")
def test_plain_peers_where_the_option_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIORDMA_SMCR_STRICT", "1")
    found = kernel_smc()
    assert found.state == "ok"
    assert "a peer that does not send the option is plain TCP" in found.text


def test_the_option_decides_nothing_where_it_is_not_set_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AIORDMA_SMCR", "auto")
    monkeypatch.setenv("AIORDMA_SMCR_STRICT", "1")
    monkeypatch.setattr(setup, "MAP", tmp_path / "map")
    monkeypatch.setattr(setup, "obstacles", list)
    found = kernel_smc()
    assert found.state == "note"
    assert "AIORDMA_SMCR_STRICT=1, but not set up" in found.text
    assert "aiordma smcr enable" in found.remedy


def test_the_option_is_tried(options: Options) -> None:
    options.said = None
    found = kernel_smc()
    assert found.state == "note"
    assert "the option is not sent" in found.text
    assert "cgroup" in found.remedy


def test_the_option_is_seen_in_a_packet(options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel keeps the SYN, where the host is not set up, too: it has no option then."""
    monkeypatch.undo()
    monkeypatch.setenv("AIORDMA_SMCR", "fd:99")
    monkeypatch.setattr(smc_option, "of_config", lambda _: options)
    packets: list[bytes] = []

    def find(packet: bytes) -> SynOption | None:
        packets.append(packet)
        return None

    monkeypatch.setattr(smc_option, "find_in_packet", find)
    assert "the option is not sent" in kernel_smc().text
    assert len(packets) == 1
    assert packets[0][0] >> 4 == 4  # IP's version


@pytest.mark.usefixtures("options")
def test_enterprise_ids_that_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIORDMA_SMCR_EIDS", "A" * 33)
    found = kernel_smc()
    assert found.state == "note"
    assert "AIORDMA_SMCR_EIDS" in found.text


@pytest.mark.usefixtures("options")
def test_a_device_that_reaches_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "why_no_kernels", lambda *_: "it is iWARP")
    found = kernel_smc()
    assert found.state == "note"
    assert "it is iWARP" in found.remedy


class _Uname(NamedTuple):
    release: str


def test_what_setting_it_up_takes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AIORDMA_SMCR", "auto")
    monkeypatch.setattr(setup, "MAP", tmp_path / "map")
    monkeypatch.setattr(setup, "_has_cgroups", lambda: True)
    monkeypatch.setattr(setup, "_missing_capabilities", list)
    assert setup.obstacles() == []
    assert "aiordma smcr enable" in kernel_smc().text
    monkeypatch.setattr(os, "uname", lambda: _Uname("5.4.0-generic"))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(setup, "_missing_capabilities", lambda: ["CAP_BPF"])
    monkeypatch.setattr(setup, "_has_cgroups", lambda: False)
    found = kernel_smc()
    assert found.state == "ok"  # nobody has to have it
    for text in "5.4.0-generic is too old", "no cgroup", "no CAP_BPF", "containers":
        assert text in found.text
