"""``aiordma fabric discover``: a network's description from its devices' neighbours."""

from __future__ import annotations

from pathlib import Path

import click

from .shared import FILE, Number, show

__all__ = ["discover"]

_GBPS = Number(0.001, 1600)
_METERS = Number(0, 100_000)


@click.command()
@click.argument(
    "files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option("--rate", type=_GBPS, default=100, show_default=True, help="Gb/s of cables to hosts.")
@click.option("--length", type=_METERS, default=3, show_default=True, help="Their meters.")
@click.option("--fabric-rate", type=_GBPS, default=100, show_default=True, help="Gb/s between switches.")
@click.option("--fabric-length", type=_METERS, default=30, show_default=True, help="Meters between switches.")
@click.option(
    "--switch",
    "switches",
    multiple=True,
    metavar="PATTERN",
    help="Names of switches, such as 'leaf*'. By default: who says that it is a bridge or a router.",
)
@click.option("-o", "--output", type=FILE, help="Write the description there.")
def discover(
    files: tuple[Path, ...],
    rate: float,
    length: float,
    fabric_rate: float,
    fabric_length: float,
    switches: tuple[str, ...],
    output: Path | None,
) -> None:
    """Describe a network from FILES, the neighbours of its devices by LLDP, for `plan` and `simulate`.

    A file has the name of its device. Both ends of a cable may tell of it, or one. LLDP tells neither
    rates nor lengths: give them, and correct the description where they differ.

    \b
    Example:
      for device in leaf1 leaf2 spine1; do
        ssh $device lldpcli -f json show neighbors > $device.json
      done
      aiordma fabric discover leaf1.json leaf2.json spine1.json --fabric-rate 400 -o network.toml
      aiordma fabric plan network.toml --settings settings/
    """
    from .. import lldp
    from ..errors import NetworkError
    from ..reading import read_text

    try:
        texts = {path.stem: (read_text(path), str(path)) for path in files}
        if len(texts) < len(files):
            raise click.UsageError("two files have the name of one device")
        found = lldp.read(texts, switches)
        text = lldp.to_toml(found, lldp.Cables(rate, length, fabric_rate, fabric_length))
    except NetworkError as error:
        raise click.ClickException(str(error)) from None
    for odd in found.odd:
        click.echo(f"left out: {odd}", err=True)
    show(text, output)
