"""``aiordma doctor``: does RDMA work here, and if not, what is to be done."""

from __future__ import annotations

import json
import logging
import sys
from typing import TYPE_CHECKING

import click

from ..arguments import parse_peer

if TYPE_CHECKING:
    from .findings import Finding

_MARKS = {
    "ok": ("ok", "green"),
    "note": ("note", "yellow"),
    "failed": ("FAILED", "red"),
    "skipped": ("-", None),
}


@click.command()
@click.argument("peer", required=False, metavar="[HOST:PORT]", callback=parse_peer)
@click.option("--json", "as_json", is_flag=True, help="One JSON object (schema aiordma-doctor/1).")
@click.option("--schema", "show_schema", is_flag=True, help="Print the JSON schema of --json.")
def doctor(peer: tuple[str, int] | None, as_json: bool, show_schema: bool) -> None:
    """Show, step by step, whether RDMA works here, and to the aiordma server at HOST:PORT, if given.

    The last line says what to do. Exit status: 0 if RDMA works, else 1.

    \b
    Examples:
      aiordma doctor                                this machine
      aiordma doctor server7:7000                   ... and the way to a server
      aiordma doctor --json | jq .verdict           for scripts
      AIORDMA_DEVICE=mlx5_0 aiordma doctor          one device
    """
    # What the steps find is reported by them, not by the library's log as well.
    logging.getLogger("aiordma").addHandler(logging.NullHandler())
    from .checks import examine, verdict  # not for the other commands
    from .findings import SCHEMA, schema

    if show_schema:
        click.echo(json.dumps(schema(), indent=2))
        return

    findings: list[Finding] = []
    for finding in examine(peer):
        findings.append(finding)
        if not as_json:
            _show(finding)
    fine = all(finding.state in ("ok", "note") for finding in findings)
    if as_json:
        steps = [finding._asdict() for finding in findings]
        report = {"schema": SCHEMA, "ok": fine, "verdict": verdict(findings), "steps": steps}
        click.echo(json.dumps(report, indent=2))
    else:
        click.echo(f"\n{verdict(findings)}")
    sys.exit(0 if fine else 1)


def _show(finding: Finding) -> None:
    mark, colour = _MARKS[finding.state]
    click.echo(f"{click.style(f'{mark:<7}', fg=colour)}{finding.step:<17} {finding.text}")
