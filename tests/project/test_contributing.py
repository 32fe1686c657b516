"""What the pages for contributors name exists: files, make targets, markers, modules, variables, headings."""

from __future__ import annotations

import importlib
import re
import tomllib

import pytest

from .tree import ROOT, text_files

PAGES = [
    "CONTRIBUTING.md",
    "SECURITY.md",
    ".github/pull_request_template.md",
    ".github/ISSUE_TEMPLATE/bug_report.yml",
    ".github/ISSUE_TEMPLATE/feature_request.yml",
    ".github/workflows/ci.yml",
    ".github/workflows/release.yml",
    ".pre-commit-config.yaml",
]
PATH = re.compile(
    r"(?:(?<![\w/-])|(?<=\s\.\.\./))((?:aiordma|softdev|tests|docs|benchmarks|examples|\.ci|\.github)/[\w./-]*\w|[A-Z]+\.md|[\w.-]+\.toml)"
)
MAKE = re.compile(r"\bmake ((?:-\S+ )*)([a-z][a-z-]*)")
#: What the build and the documentation make; a clone does not have it.
MADE = ("docs/_build",)


def _read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def _code(name: str) -> str:
    """What is written as code: spans and blocks of Markdown, commands of YAML."""
    text = _read(name)
    if name.endswith(".md"):
        blocks = re.findall(r"^ *```.*?\n(.*?)```", text, re.DOTALL | re.MULTILINE)
        return "\n".join([*blocks, *re.findall(r"`([^`\n]+)`", text)])
    commands = re.findall(r"\b(?:entry|run): (.*)", text)
    return "\n".join([*commands, *(f"make {target}" for target in re.findall(r"- target: (.*)", text))])


def missing_paths(text: str) -> set[str]:
    named = {match[1] for match in PATH.finditer(text)}
    return {name for name in named if not (ROOT / name).exists() and not name.startswith(MADE)}


def targets() -> set[str]:
    return set(re.findall(r"^([a-z][a-z-]*):", _read("Makefile"), re.MULTILINE))


def missing_targets(code: str) -> set[str]:
    return {match[2] for match in MAKE.finditer(code)} - targets()


def markers() -> set[str]:
    options = tomllib.loads(_read("pyproject.toml"))["tool"]["pytest"]["ini_options"]
    return {marker.partition(":")[0] for marker in options["markers"]}


def headings(name: str) -> set[str]:
    """The anchors of a page's headings."""
    texts = re.findall(r"^#+ (.*)", _read(name), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-") for text in texts}


def test_what_is_missing_is_found() -> None:
    text = "see `tests/nowhere/test_x.py`, [this](docs/nothing.md#there), `aiordma/_cq.pyx:12` and ABSENT.md"
    assert missing_paths(text) == {"tests/nowhere/test_x.py", "docs/nothing.md", "ABSENT.md"}
    stack = "  .../aiordma/gone.py:12 Gone.run\n  .../anyio/_asyncio.py:1 run\n  .../aiordma/__init__.py:1 x"
    assert missing_paths(stack) == {"aiordma/gone.py"}
    assert missing_targets("$ make lint\nmake -s nonsense X=1") == {"nonsense"}
    assert "slow" in markers()
    assert "out-of-memory-is-an-error" not in headings("CONTRIBUTING.md")


@pytest.mark.parametrize("name", PAGES)
def test_paths_exist(name: str) -> None:
    # Without the backslashes of regular expressions.
    assert missing_paths(_read(name).replace("\\", "")) == set()


@pytest.mark.parametrize("name", PAGES)
def test_make_targets_exist(name: str) -> None:
    assert missing_targets(_code(name)) == set()


def test_the_parts_of_the_whole_check_are_named() -> None:
    (parts,) = re.findall(r"^parts=\((.*)\)", _read(".ci/run"), re.MULTILINE)
    *most, last = [f"`{part}`" for part in parts.split()]
    assert f"`.ci/run` runs {', '.join(most)} and {last}." in _read("CONTRIBUTING.md").replace("\n", " ")


@pytest.mark.parametrize("name", PAGES)
def test_markers_exist(name: str) -> None:
    named = set(re.findall(r"\bmarker `(\w+)`", _read(name)))
    named |= set(re.findall(r"-m pytest\b.* -m (\w+)", _code(name)))
    assert named <= markers()


@pytest.mark.parametrize("name", PAGES)
def test_modules_and_names_exist(name: str) -> None:
    for dotted in set(re.findall(r"(?<![\w./-])(?:aiordma|tests|benchmarks)(?:\.\w+)+", _code(name))):
        parts = dotted.split(".")
        if (ROOT.joinpath(*parts).with_suffix(".py")).is_file():
            continue
        assert hasattr(importlib.import_module(".".join(parts[:-1])), parts[-1]), dotted


@pytest.mark.parametrize("name", PAGES)
def test_tests_that_are_chosen_exist(name: str) -> None:
    chosen = set(re.findall(r"-k (test_\w+)", _code(name)))
    sources = "".join(text for path, text in text_files() if path.parts[0] == "tests")
    assert {test for test in chosen if f"def {test}(" not in sources} == set()


@pytest.mark.parametrize("name", PAGES)
def test_variables_exist(name: str) -> None:
    from aiordma.config import settings

    sources = [text for path, text in text_files() if path.parts[0] in ("aiordma", "tests")]
    known = {row.variable for row in settings()}
    known |= set(re.findall(r"\bAIORDMA_[A-Z_]*[A-Z]\b", "".join(sources)))
    named = set(re.findall(r"\bAIORDMA_[A-Z_]*[A-Z]\b(?!_)", _read(name)))
    assert named <= known


@pytest.mark.parametrize("name", [name for name in PAGES if name.endswith(".md")])
def test_anchors_exist(name: str) -> None:
    for page, anchor in re.findall(r"\]\(([\w./-]*)#([\w-]+)\)", _read(name)):
        assert anchor in headings(page or name), f"{page}#{anchor}"
