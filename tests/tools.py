"""Runs the server and the client of a program: pingpongs, perftest, rping ..."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def listening(pid: int, port: int) -> bool:
    """Whether a TCP socket listens there, as that process sees the network.

    To find out by connecting would use up the one connection that many tools accept.
    """
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(FileNotFoundError):
            for line in Path(f"/proc/{pid}/net/{table}").read_text(encoding="ascii").splitlines()[1:]:
                _, local, _, state = line.split()[:4]
                if local.endswith(f":{port:04X}") and state == "0A":
                    return True
    return False


def run_pair(
    server: Sequence[str],
    client: Sequence[str],
    *,
    ready: Callable[[int], bool],
    limit: float,
    environ: dict[str, str] | None = None,
    checked: bool = True,
) -> tuple[str, str]:
    """Both must end well. Returns what they printed, the server first.

    :param ready: whether the server, whose process that is, takes clients.
    :param limit: in seconds, of each step.
    :param checked: False for programs whose exit status means nothing.
    """
    # To a file: a server that fills a pipe, which nobody reads before the client has ended, waits for ever.
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as kept,
        subprocess.Popen(server, env=environ, stdout=kept, stderr=subprocess.STDOUT) as serving,
    ):

        def printed() -> str:
            kept.seek(0)
            return kept.read()

        try:
            deadline = time.monotonic() + limit
            while not ready(serving.pid):
                assert serving.poll() is None, printed()
                assert time.monotonic() < deadline, f"{' '.join(server)} does not listen"
                time.sleep(0.02)
            done = subprocess.run(
                client,
                env=environ,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=limit,
                check=False,
            )
            if checked and done.returncode:
                serving.kill()  # it may wait for the next client
            serving.wait(timeout=limit)
            from_server = printed()
        finally:
            serving.kill()
    said = f"{' '.join(client)}:\n{done.stdout}\nserver:\n{from_server}"
    assert not checked or done.returncode == 0, said
    assert not checked or serving.returncode == 0, said
    return from_server, done.stdout


def perftest(run: Callable[[], tuple[str, str]]) -> tuple[str, str]:
    """What both ends of a pair of perftest's programs print.

    Before they measure, they compare the CPU's counter with the clock; where other work has taken the CPU
    meanwhile, that fails, and all their times are infinite: they run again.
    """
    for _ in range(20):
        said = run()
        if "Correlation coefficient" not in "".join(said):
            break
    return said
