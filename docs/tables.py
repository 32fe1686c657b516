"""The tables of the documentation that say what the code says: `python docs/tables.py` rewrites them.

`tests/project/test_docs.py` fails when one of them is behind.
"""

from __future__ import annotations

from pathlib import Path

from aiordma.config import settings
from aiordma.errors import Code

REFERENCE = Path(__file__).parent / "reference"


def settings_page() -> str:
    rows = [
        "# Settings",
        "",
        "Every setting is an environment variable, read when a connection is made, and a field of",
        "`aiordma.Config`, which every function takes as `config=`. A value that is not allowed is a",
        "`ValueError` that names the variable, the value, and what is allowed.",
        "",
        "*Online* settings may be changed while an engine runs; the others are read when the event",
        "loop's first RDMA connection starts it.",
        "",
        "| variable | field | default | allowed | online | meaning |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in settings():
        default = "unset" if row.default is None else f"`{row.default}`"
        online = "yes" if row.online else ""
        rows.append(
            f"| `{row.variable}` | `{row.name}` | {default} | {row.allowed} | {online} | {row.help} |"
        )
    rows += [
        "",
        "One more variable is no field, since it holds for the whole process and is read when the first",
        "event loop uses aiordma: `AIORDMA_PRIVATE_APIS` (`auto` or `off`; default `auto`). `off` keeps",
        "aiordma from using private interfaces of asyncio, uvloop and anyio to save time, in case a new",
        "version of theirs misbehaves with it. Everything works without them, a little slower.",
    ]
    return "\n".join(rows) + "\n"


def reasons_page() -> str:
    rows = [
        "# Reasons for TCP",
        "",
        "`stream.fallback_reason` and `NegotiationError.code` carry one of these (`aiordma.Code`). Up to",
        "`0x0999....` they are the codes of Linux SMC, so that they mean the same to those who know",
        "`smcss`; `0x0a1d....` are aiordma's own.",
        "",
        "| code | name | meaning |",
        "| --- | --- | --- |",
    ]
    rows += [f"| `0x{int(code):08x}` | `{code.name}` | {code.text} |" for code in Code]
    return "\n".join(rows) + "\n"


PAGES = {REFERENCE / "settings.md": settings_page, REFERENCE / "reasons.md": reasons_page}

if __name__ == "__main__":
    for path, page in PAGES.items():
        path.write_text(page(), encoding="utf-8")
        print(f"wrote {path}")
