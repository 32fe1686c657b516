"""``aiordma serve-diagnostics``: the server of ``aiordma ping`` and ``aiordma perf``."""

from __future__ import annotations

import logging
import sys
from typing import Any

import click

from ..arguments import DIAGNOSTICS_PORT, parse_host
from ..ending import cleaned_up


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--host", default="127.0.0.1", show_default=True, callback=parse_host, help="Address to listen on."
)
@click.option(
    "--port",
    type=click.IntRange(0, 65530),
    default=DIAGNOSTICS_PORT,
    show_default=True,
    help="The first of six ports; 0: any.",
)
@click.option("--mesh", is_flag=True, help="Measure to other servers if a client asks (aiordma ping --mesh).")
@click.option("--uvloop", is_flag=True, help="Run on uvloop.")
@click.option("--no-against", is_flag=True, help="Without asyncio's own streams, which comparisons need.")
def serve_diagnostics(host: str, port: int, **given: Any) -> None:
    """Answer `aiordma ping` and `aiordma perf` until Ctrl-C, for every client that reaches the ports: 64 with
    streams, which may be silent for 60 s.

    Streams are served on the port; on those behind it calls, memory, datagrams, and asyncio's streams on
    asyncio and uvloop. With --mesh, clients can have it connect to others, to measure: keep that within your
    network. Settings come from the environment, as for every program on aiordma.

    \b
    Examples:
      aiordma serve-diagnostics                     for this host
      aiordma serve-diagnostics --host 0.0.0.0      for others
      aiordma serve-diagnostics --host 0.0.0.0 --mesh
      AIORDMA_DEVICE=mlx5_0 aiordma serve-diagnostics --port 7200
    """
    import anyio

    from ...config import Config
    from ...measure.server import serve_diagnostics as serve

    def ready(actual: int) -> None:
        click.echo(f"listening on {host}:{actual}")

    async def main() -> None:
        await serve(host, port, Config.from_env(), ready, mesh=given["mesh"], against=not given["no_against"])

    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        with cleaned_up():
            anyio.run(main, backend_options={"use_uvloop": given["uvloop"]})
    except KeyboardInterrupt:
        click.echo()
    except OSError as error:
        raise click.ClickException(str(error)) from error
    except ImportError:
        raise click.ClickException("uvloop is not installed: pip install aiordma[uvloop]") from None
