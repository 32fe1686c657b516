"""``aiordma adm faults``: fault rules of a running process, one by one."""

from __future__ import annotations

import json
import sys

import click

from .target import SILENT, Target, clean, name_of


@click.command()
@click.argument("action", type=click.Choice(["list", "add", "remove"]))
@click.argument("rules", nargs=-1)
@click.pass_obj
def faults(target: Target, action: str, rules: tuple[str, ...]) -> None:
    """Add fault RULES, remove them (by their numbers, or all), or list them with how often each has acted.

    They spoil messages of all links of the process, on purpose: see the documentation of fault injection.

    \b
    Examples:
      aiordma adm --pid 4711 faults add 'delay op=cdc p=0.1 ms=5' 'drop op=write nth=1000'
      aiordma adm --pid 4711 faults list
      aiordma adm --pid 4711 faults remove 1        rule 1
      aiordma adm --pid 4711 faults remove          all
    """
    from ...admin.messages import FaultRules
    from ...admin.requests import Faults

    if action == "add":
        if not rules:
            raise click.UsageError("which rules? For example: 'delay op=cdc ms=5'")
        request = Faults(add=rules)
    elif action == "remove":
        if not all(rule.isdecimal() for rule in rules):
            raise click.UsageError("rules are removed by number; `aiordma adm faults list` shows them")
        request = Faults(remove=tuple(map(int, rules)) or None)
    else:
        request = Faults()
    loops = target.loops(changes=action != "list")
    # All loops of a process share the rules.
    answered = target.ask(request, list({loop.page.process: loop for loop in loops}.values()))
    found = {
        loop: [row for part in loop.parts if isinstance(part, FaultRules) for row in part.rows]
        for loop in answered
        if loop.state == "answered"
    }
    if len(found) < len(answered):
        target.end(answered, "{} rules changed")
    if target.as_json:
        names = ("number", "rule", "matched", "fired")
        processes = [
            {
                "pid": loop.page.pid,
                "program": loop.page.program,
                "rules": [{name: getattr(row, name) for name in names} for row in rows],
            }
            for loop, rows in found.items()
        ]
        click.echo(json.dumps({"schema": "aiordma-adm/1", "processes": processes}))
    else:
        for loop, rows in found.items():
            for row in rows:
                click.echo(
                    f"{name_of(loop)}: {row.number}: {clean(row.rule)}  "
                    f"(matched {row.matched}, fired {row.fired})"
                )
            if not rows:
                click.echo(f"{name_of(loop)}: no fault rules")
    sys.exit(0 if found else SILENT)
