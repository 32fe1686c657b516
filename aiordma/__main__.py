"""``python -m aiordma``: the same as the command ``aiordma``."""

from .cli.entry import main

main(prog_name="aiordma")
