"""`python -m tests.system.upgrade.older FOLDER ...`: `tests.program` with the aiordma of a folder.

An editable install is found before any folder of the path, so it is taken out.
"""

from __future__ import annotations

import sys


def main(folder: str, *arguments: str) -> None:
    sys.meta_path[:] = [
        it for it in sys.meta_path if not type(it).__module__.startswith("_editable_skbc_aiordma")
    ]
    sys.path.insert(0, folder)
    for name in [name for name in sys.modules if name.partition(".")[0] == "aiordma"]:
        raise SystemExit(f"{name} was imported before the other version could be found")
    from tests import program  # it imports aiordma: that of the folder

    program.main(*arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
