"""Where reports are written: to the user's own file, link, pipe or device, and to no other user's."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click
import pytest

from rocefabric.whole_file import write_whole

if TYPE_CHECKING:
    from pathlib import Path

NOBODY = 65534


def test_an_own_link_leads_to_the_file(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("target")
    for text in ("one", "two"):
        write_whole(link, text)
        assert link.is_symlink()
        assert (tmp_path / "target").read_text() == text


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files to somebody else")
@pytest.mark.parametrize("to", ["file", "nothing", "pipe"])
def test_another_users_link_is_refused(tmp_path: Path, to: str) -> None:
    """In a folder that all may write to, it leads to a file of whoever writes the report."""
    victim, link = tmp_path / "victim", tmp_path / "plot.svg"
    tmp_path.chmod(0o1777)
    if to == "file":
        victim.write_text("precious")
    elif to == "pipe":
        os.mkfifo(victim)
    link.symlink_to(victim)
    os.chown(link, NOBODY, NOBODY, follow_symlinks=False)
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(click.ClickException, match=r"cannot write .*plot\.svg: it is another user's link"):
        write_whole(link, "<svg/>")
    assert sorted(os.listdir(tmp_path)) == before
    assert to != "file" or victim.read_text() == "precious"
