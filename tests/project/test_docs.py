"""The documentation says what the code says."""

from __future__ import annotations

import importlib.util
import os
import re
import socket
import subprocess
import sys
from types import ModuleType

import pytest

import aiordma
from aiordma.config import settings

from .tree import ROOT

DOCS = ROOT / "docs"


def _tables() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_tables", DOCS / "tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["settings.md", "reasons.md"])
def test_generated_pages_are_up_to_date(name: str) -> None:
    (page,) = (make for path, make in _tables().PAGES.items() if path.name == name)
    current = (DOCS / "reference" / name).read_text(encoding="utf-8")
    assert current == page(), "run: .venv/bin/python docs/tables.py"


def test_only_settings_that_exist_are_named() -> None:
    known = {row.variable for row in settings()}
    # The software device has some of its own, for whatever program uses it: its header explains them.
    header = (ROOT / "aiordma" / "_softdev" / "aiordma_soft.h").read_text(encoding="utf-8")
    known |= set(re.findall(r"\bAIORDMA_SOFT_[A-Z_]+[A-Z]\b", header))
    for path in (*DOCS.rglob("*.md"), ROOT / "README.md"):
        named = set(re.findall(r"\bAIORDMA_[A-Z_]+\b", path.read_text(encoding="utf-8")))
        assert named <= known, path


def test_every_public_name_is_in_the_reference() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in (DOCS / "reference").glob("*.md"))
    missing = {name for name in aiordma.__all__ if not re.search(rf"\b{name}\b", text)}
    assert missing == set()


def _python_blocks(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


@pytest.mark.parametrize("name", ["README.md", "docs/tutorial.md"])
def test_the_first_programs_are_whole_programs(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    blocks = [block for block in _python_blocks(text) if ".run(" in block]
    assert blocks
    for block in blocks:
        compile(block, name, "exec")


@pytest.mark.parametrize("mode", ["rdma", "tcp"])
def test_the_readmes_program_runs(mode: str) -> None:
    (program,) = (block for block in _python_blocks((ROOT / "README.md").read_text(encoding="utf-8")))
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    done = subprocess.run(
        [sys.executable, "-c", program.replace("7000", str(port))],
        env=os.environ | {"AIORDMA_MODE": mode},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"b'hello' by {mode}\n"
