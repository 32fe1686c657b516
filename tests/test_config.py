"""Settings: defaults, the environment, and clear refusals."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import aiordma
from aiordma import config as config_module
from aiordma.config import OTHER_VARIABLES, Config, settings, unknown_variables
from aiordma.proto.objects import LARGEST_LIMIT
from tests import patient
from tests.tuned import CONSTANTS, tuned


def test_defaults_are_valid_and_documented(monkeypatch: pytest.MonkeyPatch) -> None:
    patient.as_for_users(monkeypatch)
    config = Config(memory_limit_bytes=2 << 30)  # the default is less in a small cgroup, see test_cgroup
    rows = settings()
    assert {row.name: row.default for row in rows} == {row.name: getattr(config, row.name) for row in rows}
    assert all(row.help and row.allowed for row in rows)
    assert len({row.variable for row in rows}) == len(rows)


def test_environment() -> None:
    config = Config.from_env(
        {"AIORDMA_MODE": "tcp", "AIORDMA_DEVICE": "soft", "AIORDMA_BUSY_POLL_US": "0", "AIORDMA_WINDOW": ""}
    )
    assert (config.mode, config.device, config.busy_poll_us, config.window) == ("tcp", "soft", 0, 64)


def test_overrides_win_over_a_bad_variable() -> None:
    assert Config.from_env({"AIORDMA_MODE": "nonsense"}, mode="rdma").mode == "rdma"


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("AIORDMA_MODE", "fast"),
        ("AIORDMA_BUSY_POLL_US", "-1"),
        ("AIORDMA_BUSY_POLL_US", "ten"),
        ("AIORDMA_RING_BYTES", "100000"),
        ("AIORDMA_RING_BYTES", "8192"),
        ("AIORDMA_WINDOW", "48"),
        ("AIORDMA_DEVICE", "x" * 64),
    ],
)
def test_bad_variable_is_named(variable: str, value: str) -> None:
    with pytest.raises(ValueError, match=variable) as caught:
        Config.from_env({variable: value})
    assert value in str(caught.value)
    assert "must be" in str(caught.value)


@pytest.mark.parametrize(
    "bad",
    [
        {"ring_bytes": 12345},
        {"window": 0},
        {"window": True},
        {"keepalive_ms": 1.5},
        {"device": ""},
        {"mode": "udp"},
        {"memory_limit_bytes": 1 << 20, "ring_bytes": 2 << 20},
        {"max_ring_bytes": 3 << 20},
        {"ring_bytes": 1 << 20, "max_ring_bytes": 1 << 19},
    ],
)
def test_bad_field_is_named(bad: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        Config(**bad)  # type: ignore[arg-type]


def test_online_settings_change_offline_ones_do_not() -> None:
    config = Config()
    assert config.changed(keepalive_ms=5).keepalive_ms == 5
    assert config.keepalive_ms != 5
    with pytest.raises(ValueError, match="read when the engine starts"):
        config.changed(ring_bytes=16384)
    with pytest.raises(ValueError, match="unknown setting 'colour'"):
        config.changed(colour=1)
    with pytest.raises(ValueError, match="keepalive_ms"):
        config.changed(keepalive_ms=-1)


# ---- variables that nothing reads


def warned(**environment: str) -> str:
    """What a program prints that reads the settings twice."""
    code = (
        "from aiordma.config import Config\nfor _ in range(2): Config.from_env(); Config.from_env(window=8)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, **environment},
    )
    return done.stderr


def test_an_unknown_variable_is_named_once_with_the_nearest_one() -> None:
    assert warned(AIORDMA_RING_BYTE="65536") == (
        "the environment variable AIORDMA_RING_BYTE is unknown and has no effect: did you mean "
        "AIORDMA_RING_BYTES?\n"
    )
    assert "SOFTDEV_WIER is unknown and has no effect: did you mean SOFTDEV_WIRE?" in warned(
        SOFTDEV_WIER="auto"
    )
    assert warned(AIORDMA_XYZ="1").count("AIORDMA_XYZ is unknown") == 1


def test_what_others_read_is_not_unknown() -> None:
    names = {"SOFTDEV_DSCP", "SOFTDEV_FAULTS", "AIORDMA_TEST_DEVICE", "AIORDMA_VM", "AIORDMA_MODE"}
    # Its name before the device was a project of its own.
    assert unknown_variables({"AIORDMA_SOFT_CAPTURE"}) == {"AIORDMA_SOFT_CAPTURE": "SOFTDEV_CAPTURE"}
    assert unknown_variables({*names, "PATH", "AIORDMA_VM_KERNEL"}) == {}


def test_the_list_of_variables_is_that_of_the_sources() -> None:
    root = Path(aiordma.__file__).parent
    read = {row.variable for row in settings()}
    found = set()
    for path in (*root.rglob("*.py"), *(root.parent / "softdev" / "src").rglob("*.[ch]")):
        text = path.read_text(encoding="utf-8")
        names = r'(?:getenv\(|\.get\(|VARIABLE = |read_one\()"((?:AIORDMA|SOFTDEV)_\w+)'
        found |= set(re.findall(names, text))
    assert found - read == set(OTHER_VARIABLES)


@pytest.mark.parametrize(
    ("values", "largest"),
    [
        ({}, 8 << 20),
        ({"ring_bytes": 1 << 14}, 1 << 14),
        ({"ring_bytes": 1 << 24}, 1 << 24),
        ({"ring_bytes": 1 << 14, "max_ring_bytes": 1 << 20}, 1 << 20),
        ({"max_ring_bytes": 1 << 19}, 1 << 19),
    ],
)
def test_rings_that_are_asked_for_do_not_grow_unless_that_is_asked_for_too(
    values: dict[str, int], largest: int
) -> None:
    assert Config(**values).largest_ring_bytes == largest  # type: ignore[arg-type]


def test_the_binding_is_checked_with_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIORDMA_VERBS", "mine")
    with pytest.raises(ValueError, match=r"AIORDMA_VERBS='mine'.*auto, pyverbs, own"):
        Config.from_env()
    for allowed in ("", "auto", "own", "pyverbs"):
        monkeypatch.setenv("AIORDMA_VERBS", allowed)
        Config.from_env()


class _Counting(dict[bytes, bytes]):
    """An environment that counts how often one of its variables is looked up."""

    lookups = 0

    def __getitem__(self, name: bytes) -> bytes:
        self.lookups += 1
        return super().__getitem__(name)

    def get(self, name: bytes, default: object = None) -> object:  # type: ignore[override]
        self.lookups += 1
        return super().get(name, default)


def test_variables_that_are_not_set_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each connection without settings reads the environment."""
    environ = _Counting({b"PATH": b"/", b"AIORDMA_KEEPALIVE_MS": b"60000", b"AIORDMA_VERBS": b"own"})
    monkeypatch.setattr(config_module, "_raw_environ", environ)
    first = Config.from_env()
    assert first.keepalive_ms == 60_000
    assert environ.lookups <= 2
    assert Config.from_env() is first
    environ[b"AIORDMA_KEEPALIVE_MS"] = b" "
    assert Config.from_env() == Config()
    del environ[b"AIORDMA_KEEPALIVE_MS"], environ[b"AIORDMA_VERBS"]
    assert Config.from_env() == Config()
    assert Config.from_env() is Config.from_env()


def test_constants_are_no_settings_and_tests_may_have_others() -> None:
    assert not CONSTANTS & {row.name for row in settings()}
    with pytest.raises(TypeError, match="ack_delay_ms"):
        Config(ack_delay_ms=5)  # type: ignore[call-arg]
    other = tuned(ack_delay_ms=5, window=4)
    assert (other.ack_delay_ms, other.window, Config().ack_delay_ms) == (5, 4, 1000)
    again = tuned(other.changed(keepalive_ms=7), qp_cache=1)
    assert (again.ack_delay_ms, again.window, again.keepalive_ms, again.qp_cache) == (5, 4, 7, 1)


def test_limits_follow_from_settings() -> None:
    config = Config(negotiate_timeout_ms=70, max_message_objects=64_000, keepalive_ms=0)
    assert config.link_timeout_ms == 70
    assert (config.max_message_keys, config.max_connection_objects) == (2_000, 256_000)
    assert Config(max_message_objects=1024).max_message_keys == 1024
    assert (config.keepalive_timeout_ms, Config(keepalive_ms=60_000).keepalive_timeout_ms) == (5_000, 30_000)
    most = Config(max_message_objects=LARGEST_LIMIT)
    assert most.max_connection_objects == LARGEST_LIMIT
