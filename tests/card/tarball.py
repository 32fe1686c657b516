"""The file that is sent: all outputs, a summary first, without the machine's name."""

from __future__ import annotations

import os
import socket
import tarfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.card.steps import Step


def pack(folder: Path, done: Sequence[tuple[Step, str]]) -> Path:
    """Return the file, readable by its user only."""
    lines = [f"{step.name}: {ended} ({' '.join(map(str, step.command))})" for step, ended in done]
    (folder / "summary.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for file in folder.iterdir():
        _leave_out(socket.gethostname(), file)
    made = folder.with_suffix(".tgz")
    with os.fdopen(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as raw:
        with tarfile.open(fileobj=raw, mode="w:gz") as archive:
            archive.add(folder, folder.name)
    return made


def _leave_out(name: str, file: Path) -> None:
    text = file.read_text(encoding="utf-8", errors="replace")
    # "localhost" and the like say nothing, and stand in addresses.
    if name and name != "localhost":
        file.write_text(text.replace(name, "HOST"), encoding="utf-8")
