"""`aiordma ping --mesh`: all pairs of servers, each in a process of its own."""

from __future__ import annotations

import contextlib
import json
import re
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import jsonschema
import msgspec
import pytest
from click.testing import CliRunner, Result

from aiordma.cli.ping.command import ping
from aiordma.cli.ping.heat_map import heat_map
from aiordma.measure.mesh import SCHEMA, Mesh, Pair, hosts_of, rounds_of
from rocefabric.drawing import heat
from tests.world import DEVICE

from ..terminal import terminal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytest.importorskip("aiordma._cq", reason="the compiled modules are not built")


@pytest.fixture(scope="module")
def servers() -> Iterator[list[str]]:
    """The last one does not measure for others, and one is on TCP."""
    with contextlib.ExitStack() as stack:
        screens = [
            stack.enter_context(
                terminal("serve-diagnostics", "--port", "0", "--no-against", *more, AIORDMA_DEVICE=device)
            )
            for device, more in (
                (DEVICE, ["--mesh"]),
                (DEVICE, ["--mesh"]),
                ("none", ["--mesh"]),
                (DEVICE, []),
            )
        ]
        yield [screen.until(r"listening on (127.0.0.1:\d+)\n")[1] for screen in screens]


def run(hosts: Path, *arguments: str) -> Result:
    return CliRunner().invoke(
        ping,
        ["--mesh", str(hosts), "-n", "20", *arguments],
        env={"AIORDMA_DEVICE": DEVICE},
        catch_exceptions=False,
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "hosts"


def test_all_pairs(servers: list[str], file: Path) -> None:
    file.write_text("\n".join(["# a cluster", *servers[:3]]))
    done = run(file, "--json")
    assert (done.exit_code, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    jsonschema.validate(found, msgspec.json.schema(Mesh))
    assert (found["schema"], found["hosts"]) == (SCHEMA, servers[:3])
    plain = servers[2]
    expected = [
        (one, other, "tcp" if plain in (one, other) else "rdma")
        for one in servers[:3]
        for other in servers[:3]
        if one != other
    ]
    assert [(pair["source"], pair["target"], pair["path"]) for pair in found["pairs"]] == expected
    for pair in found["pairs"]:
        assert (pair["count"], pair["error"]) == (20, "")
        assert 0 < pair["min_us"] <= pair["median_us"] <= pair["p99_us"] <= pair["max_us"]


def test_a_matrix_on_a_terminal_and_a_heat_map(servers: list[str], file: Path, tmp_path: Path) -> None:
    file.write_text("\n".join(servers[1:3]))
    page = tmp_path / "mesh.html"
    with terminal(
        "ping", "--mesh", str(file), "-n", "20", "--html", str(page), AIORDMA_DEVICE=DEVICE
    ) as screen:
        assert screen.end() == 0
    assert "2 of 2 pairs" in screen.seen
    one, other = servers[1:3]
    assert re.search(rf"^{re.escape(one)} +[\d.]+\*$", screen.seen, re.MULTILINE)
    assert re.search(rf"^{re.escape(other)} +[\d.]+\*$", screen.seen, re.MULTILINE)
    assert "* by TCP" in screen.seen
    text = page.read_text()
    ElementTree.fromstring(text[text.index("<table>") : text.index("</table>") + 8])
    assert text.count('<td class="tcp" style="background: #') == 2


def test_who_does_not_measure_for_others_is_named(servers: list[str], file: Path) -> None:
    file.write_text("\n".join([servers[0], servers[3], "127.0.0.1:1"]))
    done = run(file)
    assert done.exit_code == 1
    assert f"{servers[3]} to {servers[0]}" in done.stderr
    assert "start it as aiordma serve-diagnostics --mesh" in done.stderr
    assert "Connection refused" in done.stderr
    # Those that can have measured: one to the other, in this direction.
    row = next(line.split() for line in done.stdout.splitlines() if line.startswith(servers[0]))
    assert (len(row), float(row[1]) > 0, row[2]) == (3, True, "-")


def test_no_file(tmp_path: Path) -> None:
    done = run(tmp_path / "nothing")
    assert (done.exit_code, "nothing': No such file" in done.stderr) == (1, True)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["-s", "65537"], "1 to 65536 bytes of a message, not 65537"),
        (["-n", "10001"], "1 to 10000 round trips, not 10001"),
        (["--timeout", "10.5"], "0.01 to 10 seconds for an answer, not 10.5"),
        (["--tcp"], "--tcp is not for --mesh"),
        (["--require-rdma"], "--require-rdma is not for --mesh"),
        (["--warm-up", "100"], "--warm-up is not for --mesh"),
    ],
    ids=lambda words: words[0],
)
def test_what_would_not_be_measured_is_refused(file: Path, words: list[str], why: str) -> None:
    """The report would say that it was."""
    file.write_text("127.0.0.1:1\n127.0.0.1:2\n")
    done = run(file, *words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert why in " ".join(done.stderr.split())


def test_a_server_refuses_it_too(servers: list[str], monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    """From a client that has other limits."""
    monkeypatch.setattr("aiordma.measure.ping.MOST_BYTES", 1 << 20)
    file.write_text("\n".join(servers[:2]))
    done = run(file, "-s", "65537")
    assert (done.exit_code, f"{servers[0]} to {servers[1]} and 1 more: " in done.stderr) == (1, True)
    assert "1 to 65536 bytes of a message, not 65537" in done.stderr


@pytest.mark.parametrize("count", [2, 3, 4, 7, 10])
def test_no_host_is_twice_in_a_round(count: int) -> None:
    rounds = rounds_of(count)
    pairs = [frozenset(pair) for each in rounds for pair in each]
    assert len(pairs) == len(set(pairs)) == count * (count - 1) // 2
    for each in rounds:
        hosts = [host for pair in each for host in pair]
        assert len(hosts) == len(set(hosts))


def test_files_of_hosts() -> None:
    found = hosts_of("one\n two:7000  # the second\n\n[::1]:7\n::2\n[::3]\n", 7118)
    assert found == [("one", 7118), ("two", 7000), ("::1", 7), ("::2", 7118), ("::3", 7118)]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "two hosts"),
        ("one\n", "two hosts"),
        ("one\none:7118\n", "line 2: 'one:7118' is there twice"),
        ("one\ntwo:x\n", "line 2: 'two:x' is not HOST or HOST:PORT"),
        ("one\ntwo:70000\n", "line 2"),
        ("one\ntwo three\n", "line 2"),
        ("one\na..b\n", "line 2: 'a..b' is no host's name"),
    ],
)
def test_files_that_are_none(file: Path, text: str, why: str) -> None:
    file.write_text(text)
    done = run(file)
    assert (done.exit_code, why in done.stderr) == (2, True)


def test_a_page_cannot_be_changed_by_a_host() -> None:
    bad = "<script>alert(1)</script>"
    pairs = [
        Pair(bad, "b", "rdma", "RDMA", "", 5, 1.0, 2.0, 3.0, 4.0),
        Pair("b", bad, "", "", f'"{bad}', 0, 0.0, 0.0, 0.0, 0.0),
    ]
    page = heat_map(Mesh(SCHEMA, 0.0, 64, [bad, "b"], pairs))
    assert "<script" not in page
    assert page.count("&lt;script&gt;") >= 4
    assert heat(1, 1, 1) in page  # one value only: it is the best one
