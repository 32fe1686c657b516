"""Draw docs/screens/*.svg, what commands show on a terminal (`make screens`; half a minute, a quiet machine).

Two small programs run meanwhile, a server and a client with streams and calls; one connection is on TCP. Each
command runs on a pseudo-terminal of so many columns, and what it has written is drawn as it is.
"""

from __future__ import annotations

import contextlib
import fcntl
import html
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rich.ansi import AnsiDecoder
from rich.console import Console
from rich.style import Style
from rich.terminal_theme import SVG_EXPORT_THEME

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.segment import Segment

FOLDER = Path(__file__).with_name("screens")
START = "import sys; from aiordma.cli.main import main; main(prog_name='aiordma')"

SERVER = """
import asyncio, aiordma
from aiordma import rpc

shop = rpc.Service("shop")

@shop.method
async def price(item: str) -> float:
    return 0.1 * len(item)

@shop.method
async def report(days: int) -> int:
    await asyncio.sleep(0.02)
    return days

async def echo(stream):
    async for data in stream:
        await stream.send(data)

async def main():
    async with aiordma.listen("127.0.0.1", 7000) as listener, rpc.serve(shop, "127.0.0.1", 7001):
        print("ready", flush=True)
        await listener.serve(echo)

asyncio.run(main())
"""
CLIENT = """
import asyncio, aiordma
from aiordma import rpc

async def talk(size, **how):
    async with aiordma.connect("127.0.0.1", 7000, **how) as stream:
        while True:
            await stream.send(bytes(size))
            got = 0
            while got < size:
                got += len(await stream.receive())
            await asyncio.sleep(0.002)

async def call(client, method, argument, pause):
    while True:
        await client.call(method, argument)
        await asyncio.sleep(pause)

async def main():
    async with rpc.connect("127.0.0.1", 7001) as client:
        await asyncio.gather(
            talk(1 << 16), talk(1 << 10), talk(200, mode="tcp"),
            call(client, "shop.price", "a thing", 0.003), call(client, "shop.report", 7, 0.01),
        )

asyncio.run(main())
"""


def shown(words: Sequence[str], columns: int, lines: int = 60) -> str:
    """What `aiordma` has written to a terminal of that size, after the last screen of its own."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(columns)}
    command = [sys.executable, "-c", START, *words]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment):
        os.close(theirs)
        seen = b""
        with contextlib.suppress(OSError):  # the other side of the terminal is closed
            while data := os.read(ours, 65536):
                seen += data
    os.close(ours)
    text = seen.decode().replace("\r\n", "\n").rpartition("\x1b[?1049l")[2]
    return re.sub(r"\x1b\[\?[0-9]+[hl]|\x1b\[[0-9]*[JKA-H]", "", text)


# ---- as a picture ---------------------------------------------------------------------------------------

SIZE, LINE, LETTER, PAD = 14, 19, 8.43, 14
GROUND, INK, BAR = "#12161c", "#d7dde5", "#4aa3e0"
#: Parts of a full block, in eighths.
BLOCKS = {"█": 8, "▉": 7, "▊": 6, "▋": 5, "▌": 4, "▍": 3, "▎": 2, "▏": 1}
#: What has one place: a word, or words with one space between them; or a bar.
PLACED = re.compile(r"[█▉▊▋▌▍▎▏]+|[^\s█▉▊▋▌▍▎▏]+(?: [^\s█▉▊▋▌▍▎▏]+)*")


class Run(NamedTuple):
    """Letters of one style, and where they begin."""

    column: int
    text: str
    colour: str
    bold: bool
    dim: bool


def runs(line: Sequence[Segment]) -> list[Run]:
    found, column = [], 0
    for text, style, _ in line:
        kind = style or Style()
        colour = kind.color.get_truecolor(SVG_EXPORT_THEME).hex if kind.color else INK
        found += [
            Run(column + each.start(), each[0], colour, bool(kind.bold), bool(kind.dim))
            for each in PLACED.finditer(text)
        ]
        column += len(text)
    return found


def picture(prompt: str, text: str, columns: int) -> str:
    """The command and what it wrote, as SVG of a terminal: behind its last column the next line begins."""
    console = Console(width=columns, force_terminal=True, color_system="truecolor", legacy_windows=False)
    lines = [
        [segment for segment in part.render(console) if segment.text != "\n"]
        for line in AnsiDecoder().decode(text.rstrip("\n"))
        for part in line.divide(range(columns, len(line), columns))
    ]
    height, width = PAD * 2 + LINE * (len(lines) + 1), PAD * 2 + LETTER * columns
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" '
        f'viewBox="0 0 {width:.0f} {height}" role="img" aria-label="{html.escape(prompt)}" '
        f'font-size="{SIZE}" font-family="DejaVu Sans Mono, ui-monospace, Menlo, Consolas, monospace">',
        f'<rect width="{width:.0f}" height="{height}" rx="6" fill="{GROUND}"/>',
        _text(Run(0, "$ " + prompt, "#7fd08f", True, False), 0),
    ]
    parts += [_text(run, number) for number, line in enumerate(lines, 1) for run in runs(line)]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _text(run: Run, number: int) -> str:
    """`textLength` keeps columns where they are, in any font. A bar is a rectangle: letters leave gaps."""
    x, y = PAD + LETTER * run.column, PAD + LINE * (number + 0.75)
    if run.text[0] in BLOCKS:
        long = sum(BLOCKS[each] for each in run.text) / 8 * LETTER
        return f'<rect x="{x:.1f}" y="{y - 12:.1f}" width="{long:.1f}" height="14" fill="{BAR}"/>'
    how = ' font-weight="700"' * run.bold + ' opacity="0.65"' * run.dim
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{run.colour}" textLength="{LETTER * len(run.text):.1f}" '
        f'lengthAdjust="spacingAndGlyphs" xml:space="preserve"{how}>{html.escape(run.text)}</text>'
    )


# ---- the screens ----------------------------------------------------------------------------------------

SCREENS = {"stat": (["stat"], 124), "top": (["top", "-n", "3"], 132), "demo": (["demo"], 124)}


def with_programs(directory: Path) -> dict[str, str]:
    """What the commands show that look at others."""
    programs: list[subprocess.Popen[bytes]] = []
    try:
        for name, text in (("shop.py", SERVER), ("client.py", CLIENT)):
            (directory / name).write_text(text, encoding="utf-8")
            environment = {**os.environ, "AIORDMA_TRACE_SAMPLE": "1"}
            command = [sys.executable, str(directory / name)]
            programs.append(subprocess.Popen(command, stdout=subprocess.PIPE, env=environment))
            if name == "shop.py":
                assert programs[0].stdout is not None
                programs[0].stdout.readline()
        time.sleep(2)
        return {name: shown(*SCREENS[name]) for name in ("stat", "top")}
    finally:
        for program in reversed(programs):
            program.kill()
            program.wait()


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    wanted = sys.argv[1:] or list(SCREENS)
    texts: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="aiordma-screens-") as directory:
        # Nothing that other programs of this user do, or have left behind, is shown.
        os.environ["XDG_RUNTIME_DIR"] = directory
        if {"stat", "top"} & set(wanted):
            texts = with_programs(Path(directory))
        if "demo" in wanted:
            texts["demo"] = shown(*SCREENS["demo"])
    for name in wanted:
        words, columns = SCREENS[name]
        drawn = picture(f"aiordma {words[0]}", texts[name], columns)
        (FOLDER / f"{name}.svg").write_text(drawn, encoding="utf-8")
        print(f"docs/screens/{name}.svg")


if __name__ == "__main__":
    main()
