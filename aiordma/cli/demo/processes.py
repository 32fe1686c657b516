"""The demo's programs as processes of their own; none outlives the demo, however that ends."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: A folder "aiordma" where the user is, such as in a clone, is not the one that is installed.
_PYTHON = (sys.executable, "-P")
#: One program of the demo takes a few seconds; on a machine that is very busy, some more.
_LIMIT_S = 120.0
_END_S = 5.0


def _failed(arguments: Sequence[str], how: str) -> click.ClickException:
    return click.ClickException(
        f"a program of the demo {how}: {' '.join(arguments)}. `aiordma doctor` says whether RDMA works here."
    )


@contextmanager
def start(arguments: Sequence[str]) -> Iterator[IO[str]]:
    """Python with these arguments, until the block ends: its standard output.

    It ends when its standard input does, so also when the demo is killed.

    :raises click.ClickException: it failed.
    """
    with subprocess.Popen(
        [*_PYTHON, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.stdout
        except BaseException:
            process.kill()
            raise
        process.stdin.close()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
    if process.returncode:
        raise _failed(arguments, f"ended with {process.returncode}")


def output_of(arguments: Sequence[str]) -> tuple[str, str]:
    """Python with these arguments, to its end: what it wrote to standard output, and to standard error.

    :raises click.ClickException: it failed, or took too long.
    """
    try:
        done = subprocess.run(
            [*_PYTHON, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise _failed(arguments, f"did not end in {_LIMIT_S:.0f} s") from None
    if done.returncode:
        click.echo(done.stderr, err=True)
        raise _failed(arguments, f"ended with {done.returncode}")
    return done.stdout, done.stderr
