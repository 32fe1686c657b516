"""Python imports this when it starts, if this directory is in `PYTHONPATH`: `aiordma run` put it there.

It takes the place of a `sitecustomize` that the distribution or the site has, so it then runs that one. In a
Python without aiordma it does nothing else.
"""

from __future__ import annotations

import importlib
import os
import sys


def _run_the_other() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    ours = sys.modules.pop("sitecustomize")
    try:
        importlib.import_module("sitecustomize")  # the next one in the path
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = ours


def _begin() -> None:
    words = os.environ.get("AIORDMA_RUN", "").split()
    if "on" not in words:
        return
    try:
        from aiordma.launch import hooks, settings
    except ImportError as error:
        if "report" in words and sys.stderr is not None:
            what = f"the Python of process {os.getpid()}, {sys.executable}, has no aiordma ({error})"
            sys.stderr.write(f"aiordma run: {what}: its connections stay on TCP\n")
        return
    hooks.install(report="report" in words, outside_tls="outside-tls" in words)
    if "no-children" in words:
        settings.leave_environment()


_begin()
_run_the_other()
