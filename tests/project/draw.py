"""Lines of the tree at random: `python -m tests.project.draw SEED`, and `SEED --where` for where they are.

For whoever says of each, from the README alone, in which room it is: the draw of `docs/explanation/code.md`.
"""

from __future__ import annotations

import random
import sys

from .tree import ROOT, tracked_files

#: The products, without their tests.
PRODUCTS = ("aiordma", "softdev", "rocefabric", "pytest_softdev", "distributed-aiordma")
SUFFIXES = (".py", ".pyx", ".pxd", ".c", ".h")
MOST = 12
#: Shorter lines say nothing.
LEAST_CHARACTERS = 20


def lines() -> list[tuple[str, int]]:
    """Each line that can be drawn: its file, and its number from 0 on."""
    found = []
    for path in tracked_files():
        name = str(path.relative_to(ROOT))
        if name.endswith(SUFFIXES) and name.split("/")[0] in PRODUCTS and "/tests/" not in name:
            text = path.read_text(encoding="utf-8").split("\n")
            found += [(name, at) for at, line in enumerate(text) if len(line.strip()) > LEAST_CHARACTERS]
    return found


def main(seed: str, *where: str) -> None:
    for name, at in random.Random(int(seed)).sample(lines(), MOST):
        if where:
            print(f"{name}:{at + 1}")
        else:
            text = (ROOT / name).read_text(encoding="utf-8").split("\n")
            print("\n".join(["", *text[max(0, at - 2) : at + 3]]))


if __name__ == "__main__":
    main(*sys.argv[1:])
