"""The documentation says what the code says."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import aiordma
from aiordma import borrowed
from aiordma.config import settings
from aiordma.launch import settings as launch
from aiordma.verbs import bindings
from tests.roles import free_port

from .tree import ROOT

DOCS = ROOT / "docs"


def _tables() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_tables", DOCS / "tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "name", ["settings.md", "reasons.md", "module-map.md", "commands.md", "stat-json.md"]
)
def test_generated_pages_are_up_to_date(name: str) -> None:
    (page,) = (make for path, make in _tables().PAGES.items() if path.name == name)
    current = (DOCS / "reference" / name).read_text(encoding="utf-8")
    assert current == page(), "run: .venv/bin/python docs/tables.py"


SOURCES = {
    "__init__.py": '"""A package."""',
    "module.py": '"""One :class:`~a.Name` | two ``words``. And another sentence."""',
    "data.pyx": '# cython: language_level=3\n"""A Cython\nmodule: __main__."""\n',
    "data.pxd": "# Not this one, since there is a .pyx.\n",
    "types.pxd": "# From <header.h>,\n# in two lines. More.\ncdef int x\n",
    "inner/__init__.py": '"""Inside."""',
    "other/__init__.py": '"""Another package."""',
    "code/both.c": "/* The implementation. */\n",
    "code/part/part.h": "/* A part. */\n",
    "code/tests/test.c": "no comment, and no part of the map",
    "code/both.h": "/*\n * The interface (see 3.5).\n *\n * More.\n */\n",
}


TESTS = {
    "test_all.py": "import pack.module, pack.types\n",
    "inner/test_data.py": "from pack import data, module\n",
    "inner/test_more.py": 'RUN = "python -m pack.data"\n',
    "inner/test_other.py": "def test() -> None:\n    from pack.data import x\n",
    "inner/looking.py": "import pack.inner\n",
    "project/test_tree.py": "import pack.types\n",
    "code/nothing.py": "",
}


RULES = """
NEEDS: dict[str, str] = {"inner": "", "module": "inner", "other": "inner"}
BELONGS_TO = {"pack.data": "inner"}
EXCEPTIONS = {("pack.inner", "pack.module"): "a type"}
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "pack"
    folder.mkdir()
    for name, text in SOURCES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    for name, text in TESTS.items():
        (tmp_path / "tests" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tests" / name).write_text(text, encoding="utf-8")
    (tmp_path / "layers.py").write_text(RULES, encoding="utf-8")
    return folder


def _map(package: Path) -> str:
    """The map of the package above."""
    root = package.parent
    page: str = _tables().module_map_page(package, root / "layers.py", root / "tests")
    return page


def test_the_module_map_has_the_order_and_the_first_sentence_of_each_module(package: Path) -> None:
    lines = _map(package).splitlines()
    assert lines[lines.index("| package | what it is | imports |") :] == [
        "| package | what it is | imports |",
        "| --- | --- | --- |",
        "| `inner` | Inside. |  |",
        "| `module` | One `a.Name` \\| two `words`. | `inner` |",
        "| `other` | Another package. | `inner` |",
        "",
        "Exceptions:",
        "",
        "* `pack.inner` imports `pack.module`: a type",
        "",
        "## `pack`",
        "",
        "A package.",
        "",
        "| module | what it is | tested by |",
        "| --- | --- | --- |",
        "| `module` `.py` | One `a.Name` \\| two `words`. | `tests/inner/test_data`, `tests/test_all` |",
        "| `types` `.pxd` | From \\<header.h>, in two lines. | `tests/test_all` |",
        "",
        "## `pack/inner`",
        "",
        "Inside.",
        "",
        "| module | what it is | tested by |",
        "| --- | --- | --- |",
        "| `pack.data` `.pyx`, `.pxd` | A Cython module: \\_\\_main\\_\\_. "
        "| `tests/inner/test_data`, `tests/inner/test_more` |",
        "",
        "## `pack/other`",
        "",
        "Another package.",
        "",
        "## `pack/code`",
        "",
        "| module | what it is | tested by |",
        "| --- | --- | --- |",
        "| `both` `.h`, `.c` | The interface (see 3.5). | `tests/code/` |",
        "",
        "## `pack/code/part`",
        "",
        "A part.",
        "",
        "| module | what it is | tested by |",
        "| --- | --- | --- |",
        "| `part` `.h` | A part. | `tests/code/` |",
    ]


@pytest.mark.parametrize("name", sorted(SOURCES.keys() - {"data.pxd", "code/both.c", "code/tests/test.c"}))
def test_a_module_without_a_docstring_fails(package: Path, name: str) -> None:
    (package / name).write_text("\n", encoding="utf-8")
    with pytest.raises(ValueError, match=re.escape(name)):
        _map(package)


def test_only_settings_that_exist_are_named() -> None:
    known = {row.variable for row in settings()}
    known |= {borrowed.VARIABLE, bindings.VARIABLE, launch.OPTIONS, launch.RULES}
    # The software device has some of its own, for whatever program uses it: its header explains them.
    header = (ROOT / "softdev" / "include" / "softdev.h").read_text(encoding="utf-8")
    known |= set(re.findall(r"\bSOFTDEV_[A-Z_]+[A-Z]\b", header))
    for path in (*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "SECURITY.md"):
        named = set(re.findall(r"\b(?:AIORDMA|SOFTDEV)_[A-Z_]+\b", path.read_text(encoding="utf-8")))
        assert named <= known, path


#: Words of another century, for which plain ones exist. In what users read: pages, docstrings and messages.
_STILTED = re.compile(r"\b(whoever|nobody|(?:is|be) to be had)\b", re.IGNORECASE)


def test_plain_words() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "*.md", "aiordma/*.py", "aiordma/*.pyx", "aiordma/*.pyi", "examples/*.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert len(listed) > 100
    found = [
        f"{name}:{number}: {line.strip()}"
        for name in listed
        for number, line in enumerate((ROOT / name).read_text("utf-8").splitlines(), 1)
        if _STILTED.search(line)
    ]
    assert found == []


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
    done = subprocess.run(
        [sys.executable, "-c", program.replace("7000", str(free_port()))],
        env=os.environ | {"AIORDMA_MODE": mode},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"b'hello' by {mode}\n"


# Sources of others that the texts cite.
_FOREIGN = re.compile(r"^(net/smc/|af_smc\.c$|infiniband/)")


def test_only_source_files_that_exist_are_named() -> None:
    """In the documentation, and in docstrings and comments: by a path, or the end of one."""
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    ends = {"/".join(path.split("/")[at:]) for path in tracked for at in range(path.count("/") + 1)}
    wrong = {}
    for path in tracked:
        if not path.endswith((".md", ".py", ".pyx", ".pxd")) or path.startswith("tests/project/"):
            continue
        named = re.findall(r"`([\w./]+\.(?:py|pyx|pxd|c|h))`", (ROOT / path).read_text(encoding="utf-8"))
        if missing := {name for name in named if name not in ends and not _FOREIGN.match(name)}:
            wrong[path] = missing
    assert wrong == {}
