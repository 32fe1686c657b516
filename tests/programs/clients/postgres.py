"""PostgreSQL's server, in a directory of its own."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from .running import LOCAL, Running, free_port, server

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["binaries", "postgresql"]


def binaries() -> str:
    """Where Debian has the programs of PostgreSQL's server."""
    return ":".join(str(path) for path in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True))


@contextlib.contextmanager
def postgresql(initdb: str, postgres: str, address: str | None = None) -> Iterator[tuple[int, Running]]:
    """A new database on a free port, for the user "postgres", without a password.

    :param initdb: path of this program. :param postgres: the same.
    :param address: one more address to listen on, for its neighbours (/24).
    """
    # pytest's directories are for their user only, and as root PostgreSQL does not run.
    with tempfile.TemporaryDirectory(prefix="aiordma-postgres-") as folder:
        options: dict[str, object] = {}
        if os.geteuid() == 0:
            owner = pwd.getpwnam("postgres")
            options = {"user": owner.pw_uid, "group": owner.pw_gid}
            shutil.chown(folder, "postgres")
        subprocess.run(
            [initdb, "-D", f"{folder}/data", "-U", "postgres", "-A", "trust", "--no-sync"],
            check=True, capture_output=True, cwd=folder, **options,  # type: ignore[call-overload]
        )  # fmt: skip
        if address is not None:
            with open(f"{folder}/data/pg_hba.conf", "a", encoding="ascii") as file:
                file.write(f"host all all {address}/24 trust\n")
        port, addresses = free_port(), ",".join(filter(None, (LOCAL, address)))
        command = [postgres, "-D", f"{folder}/data", "-h", addresses, "-p", str(port), "-k", "", "-F"]
        with server(command, port, Path(folder), "postgres", **options) as running:
            yield port, running
