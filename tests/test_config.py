"""Settings: defaults, the environment, and clear refusals."""

import pytest

from aiordma.config import Config, settings


def test_defaults_are_valid_and_documented() -> None:
    config = Config()
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
