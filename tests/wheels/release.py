"""`python -m tests.wheels.release TAG`: what must agree before a tag's files are published.

The version stands in several places, the changelog has a heading with a date, and the tag is signed. That
the signature is a maintainer's is checked by `git verify-tag`, which needs the key.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tomllib
from typing import TYPE_CHECKING

from tests.wheels.build import DIST, ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_SIGNATURE = re.compile(r"^-----BEGIN (?:PGP|SSH) SIGNATURE-----$", re.MULTILINE)


def versions(root: Path) -> dict[str, str]:
    """The version, by the file that names it."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = {"pyproject.toml": str(project["version"])}
    text = (root / "aiordma" / "__init__.py").read_text(encoding="utf-8")
    inside = re.search(r'^__version__ = "(.*)"', text, re.MULTILINE)
    found["aiordma/__init__.py"] = inside[1] if inside else "none"
    heading = re.search(r"^## (\S+)", (root / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    found["CHANGELOG.md"] = heading[1] if heading else "none"
    return found


def complaints(tag: str, root: Path, files: Iterable[str]) -> list[str]:
    """Why ``tag`` is no release; empty: it is one, but for its signature."""
    version = tag.removeprefix("v")
    wrong = [
        f"{name} has version {its}, the tag is {tag}"
        for name, its in versions(root).items()
        if its != version
    ]
    if not re.search(rf"^## {re.escape(version)} \(\d{{4}}-\d\d-\d\d\)$", _changelog(root), re.MULTILINE):
        wrong.append(f"CHANGELOG.md has no heading `## {version} (YYYY-MM-DD)`")
    names = list(files)
    if f"aiordma-{version}.tar.gz" not in names:
        wrong.append(f"there is no aiordma-{version}.tar.gz")
    wrong += [f"{name} is of another version" for name in names if not name.startswith(f"aiordma-{version}")]
    return wrong


def signed(tag_object: str) -> bool:
    """Whether the text of a tag (`git cat-file tag`) ends with a signature."""
    return bool(_SIGNATURE.search(tag_object))


def _changelog(root: Path) -> str:
    return (root / "CHANGELOG.md").read_text(encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.wheels.release", description="Is a tag with the files of dist/ a release?"
    )
    parser.add_argument("tag", help="v and the version")
    parser.add_argument("--unsigned", action="store_true", help="a rehearsal: there is no tag yet")
    given = parser.parse_args()
    wrong = complaints(given.tag, ROOT, sorted(file.name for file in DIST.glob("aiordma-*")))
    if not given.unsigned:
        command = ["git", "cat-file", "tag", given.tag]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if not signed(done.stdout):
            wrong.append(f"{given.tag} is no signed tag: {done.stderr.strip() or 'it has no signature'}")
    if wrong:
        raise SystemExit("\n".join(wrong))
    print(f"{given.tag}: version, changelog and files agree")


if __name__ == "__main__":
    main()
