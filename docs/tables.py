"""Generate the reference tables from the code: `python docs/tables.py` rewrites them.

`tests/project/test_docs.py` fails if one of them is out of date.
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
        "Every setting is an environment variable and a field of `aiordma.Config`. Functions read the",
        "variables when they create a connection, unless you pass `config=`. An invalid value raises a",
        "`ValueError` that names the variable, the value, and the valid values.",
        "",
        "You can change *online* settings while an engine runs. An engine reads the others when it starts,",
        "with the event loop's first RDMA connection.",
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
    return "\n".join(rows) + "\n"


def reasons_page() -> str:
    rows = [
        "# Reasons for TCP",
        "",
        "`stream.fallback_reason` and `NegotiationError.code` contain one of these codes (`aiordma.Code`).",
        "Codes up to `0x0999....` are those of Linux SMC and mean the same as in `smcss`; codes",
        "`0x0a1d....` are aiordma's own.",
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
