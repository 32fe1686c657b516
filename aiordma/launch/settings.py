"""What `aiordma run` tells the program that it starts, and that program its children: two variables.

``AIORDMA_RUN`` holds words; ``AIORDMA_RUN_RULES`` the rules. With the variable `PYTHONPATH`, which begins
with the directory of our start-up module, they are all there is: so children inherit it, however they are
started.
"""

from __future__ import annotations

import os

OPTIONS = "AIORDMA_RUN"
RULES = "AIORDMA_RUN_RULES"
#: The directory whose `sitecustomize` Python imports when it starts.
STARTUP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "startup")


def environment(rules: str, words: list[str]) -> dict[str, str]:
    """The variables for a program to start."""
    others = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part != STARTUP]
    return {
        OPTIONS: " ".join(["on", *words]),
        RULES: rules,
        "PYTHONPATH": os.pathsep.join([STARTUP, *filter(None, others)]),
    }


def leave_environment() -> None:
    """Programs that this process starts shall inherit nothing of it."""
    others = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part != STARTUP]
    for name in (OPTIONS, RULES):
        os.environ.pop(name, None)
    if others:
        os.environ["PYTHONPATH"] = os.pathsep.join(others)
    else:
        os.environ.pop("PYTHONPATH", None)
