"""``python -m aiordma``: the same as the command ``aiordma``."""

from .cli.main import main

main(prog_name="aiordma")
