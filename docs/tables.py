"""Generate the reference pages that repeat the sources: `python docs/tables.py` rewrites them.

`python docs/tables.py --check` only compares, and names each page that is out of date;
`tests/project/test_docs.py` does the same.
"""

from __future__ import annotations

import ast
import contextlib
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from aiordma.borrowed.table import TABLE, TRIED
from aiordma.config import settings
from aiordma.errors import Code

if TYPE_CHECKING:
    from collections.abc import Iterable

Needs: TypeAlias = "dict[str, str]"

REFERENCE = Path(__file__).parent / "reference"
ROOT = REFERENCE.parents[1]

# A module may consist of several files of one name. Its sentence comes from the first of them in this order:
# the implementation of a Python or Cython module, but the header of a C file.
SUFFIXES = (".py", ".pyx", ".h", ".c", ".pxd")


def settings_page() -> str:
    rows = [
        "# Settings",
        "",
        "Every setting is an environment variable and a field of `aiordma.Config`. Functions read the",
        "variables when they create a connection, unless you pass `config=`. An invalid value raises a",
        "`ValueError` that names the variable, the value, and the valid values.",
        "",
        "You can change *online* settings while an engine runs (`aiordma.change_settings()`). An engine",
        "reads the others when it starts,",
        "with the event loop's first RDMA connection.",
        "",
        "| variable | field | default | allowed | online | meaning |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in settings():
        default = "unset" if row.default is None else f"`{row.default}`"
        online = "yes" if row.online else ""
        rows.append(
            f"| `{row.variable}` | `{row.name}` | {default} | {row.allowed} | {online} | {row.help} |"
        )
    rows += [
        "",
        "One more variable is no field, since it holds for the whole process and is read when the first",
        "event loop uses aiordma: `AIORDMA_PRIVATE_APIS` (`auto` or `off`; default `auto`). `off` keeps",
        "aiordma from using private interfaces of Python and of libraries, in case a new version of theirs",
        "misbehaves with it. Nearly everything works without them, a little slower: [](private.md) has",
        "what is lost.",
        "",
        "Another one for the whole process is `AIORDMA_VERBS` (`auto`, `pyverbs` or `own`; default `auto`):",
        "the verbs binding, see [](../howto/install.md). `auto` is pyverbs where it can be used, else",
        "aiordma's own.",
    ]
    return "\n".join(rows) + "\n"


def commands_page() -> str:
    """What `--help` says."""
    import click

    from aiordma.cli.main import main

    group = click.Context(main, info_name="aiordma", **main.context_settings)
    rows = [
        "# Commands",
        "",
        "`aiordma` has these subcommands. Each is described in the words of its `--help`.",
        "[](stat-json.md) has their JSON. [](../howto/slow.md) shows them at work.",
        "",
        'For completion in bash: `eval "$(_AIORDMA_COMPLETE=bash_source aiordma)"` (also `zsh_source` and',
        "`fish_source`).",
    ]
    for name in main.list_commands(group):
        command = main.get_command(group, name)
        assert command is not None
        context = click.Context(
            command, parent=group, info_name=name, max_content_width=100, terminal_width=100
        )
        rows += ["", f"## aiordma {name}", "", "```text", command.get_help(context), "```"]
    return "\n".join(rows) + "\n"


def _fields(source: str, name: str) -> tuple[str, list[tuple[str, str, str]]]:
    """The docstring of a class, and its fields: name, type, and the ``#:`` comment before them."""
    found = next(
        node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == name
    )
    lines, fields = source.splitlines(), []
    for node in found.body:
        if isinstance(node, ast.AnnAssign):
            at, comment = node.lineno - 2, list[str]()
            while lines[at].strip().startswith("#:"):
                comment.insert(0, lines[at].strip()[2:].strip())
                at -= 1
            fields.append((ast.unparse(node.target), ast.unparse(node.annotation), " ".join(comment)))
    return " ".join((ast.get_docstring(found) or "").split()), fields


#: Of the sources of the report and of its rows.
JSON_CLASSES = {
    "admin/report": ("Report", "Process"),
    "admin/messages": (
        "Connection",
        "Listener",
        "Link",
        "Device",
        "Memory",
        "Holder",
        "Method",
        "Fallback",
        "Event",
        "VerbsProgram",
        "Totals",
        "Engine",
    ),
    "measure/ping": ("Ping", "Run", "Stages"),
    "measure/mesh": ("Mesh", "Pair"),
    "measure/perf": ("Perf", "Point"),
    "measure/diagnostics": ("Services",),
    "cli/top/rates": (
        "Top",
        "BusyProcess",
        "BusyConnection",
        "BusyLink",
        "CalledMethod",
        "NewFallback",
    ),
    "cli/top/history": ("Page", "PagePoint", "PageEvent"),
    "cli/top/verdict": ("Sentence",),
}


def stat_json_page() -> str:
    rows = [
        "# The JSON of the commands",
        "",
        "`aiordma stat --json` prints one object, a `Report`, on one line; `aiordma stat --schema` its JSON",
        "schema. The field `schema` has the name and the version, `aiordma-stat/1`: fields may be added",
        "within a version. A view that was not asked for is null. A meaning holds for the fields below it,",
        "too, until the next one. `aiordma ping --json` prints a `Ping`, with `--mesh` a `Mesh`, and",
        "`aiordma perf --json` a `Perf`, `aiordma top --json` a `Top` on each line; `--schema` prints their",
        "schemas, too. `aiordma top --serve` has a `Page` at `/top.json`.",
    ]
    for module, names in JSON_CLASSES.items():
        source = (ROOT / "aiordma" / f"{module}.py").read_text(encoding="utf-8")
        for name in names:
            text, fields = _fields(source, name)
            rows += [
                "",
                f"## {name}",
                "",
                text.replace("``", "`"),
                "",
                "| field | type | meaning |",
                "| --- | --- | --- |",
            ]
            for field, kind, meaning in fields:
                kind, meaning = kind.replace("|", "\\|"), meaning.replace("``", "`").replace("|", "\\|")
                rows.append(f"| `{field}` | `{kind}` | {meaning} |")
    return "\n".join(rows) + "\n"


def reasons_page() -> str:
    rows = [
        "# Reasons for TCP",
        "",
        "`stream.fallback_reason` and `NegotiationError.code` contain one of these codes (`aiordma.Code`).",
        "Codes up to `0x0999....` are those of Linux SMC and mean the same as in `smcss`; codes",
        "`0x0a1d....` are aiordma's own.",
        "",
        "| code | name | meaning |",
        "| --- | --- | --- |",
    ]
    rows += [f"| `0x{int(code):08x}` | `{code.name}` | {code.text} |" for code in Code]
    return "\n".join(rows) + "\n"


def private_page() -> str:
    rows = [
        "# Private interfaces",
        "",
        "aiordma uses some interfaces of Python and of libraries that these do not offer publicly: most of",
        "them for time, where a round trip takes microseconds. `AIORDMA_PRIVATE_APIS=off` does without them.",
        "`aiordma doctor` looks whether each has the shape that it had when it was tried, and names a",
        "version that was not tried. `docs/tables.py` makes this page from `aiordma/borrowed/table.py`.",
        "",
        "| of | tried with |",
        "| --- | --- |",
    ]
    rows += [f"| {owner} | {', '.join(versions)} |" for owner, versions in TRIED.items()]
    rows += [
        "",
        "| of | names | used by | for | without it: how | what is lost then |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in TABLE:
        names = ", ".join(name if " " in name else f"`{name}`" for name in row.names)
        cells = [row.owner, names, _code(row.where), row.use, row.off, row.lost]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


# ---- the module map, read from the sources: nothing is imported, so nothing needs to be built


def header_comment(path: Path) -> str:
    """What a source file says about itself: its docstring, or the comment that it begins with; or ""."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return ast.get_docstring(ast.parse(text)) or ""
    if path.suffix in (".c", ".h"):
        comment = re.match(r"/\*(.*?)\*/", text, re.DOTALL)
        return re.sub(r"\n[ \t]*\* ?", "\n", comment[1]).strip() if comment else ""
    text = re.sub(r"\A(?:# cython:.*\n)+", "", text)
    docstring = re.match(r'"""(.*?)"""', text, re.DOTALL)
    if docstring:
        return docstring[1].strip()
    comment = re.match(r"(?:#.*\n)+", text)
    return re.sub(r"^# ?", "", comment[0], flags=re.MULTILINE).strip() if comment else ""


def first_sentence(text: str) -> str:
    """The first sentence of the first paragraph, as the cell of a Markdown table."""
    paragraph = " ".join(re.split(r"\n\s*\n", text, maxsplit=1)[0].split())
    sentence = re.split(r"(?<=[.!?])\s", paragraph, maxsplit=1)[0]
    sentence = re.sub(r"(?::\w+)?:\w+:`~?([^`]*)`", r"`\1`", sentence).replace("``", "`")
    outside = re.split(r"(`[^`]*`)", sentence)
    outside[::2] = [piece.replace("<", "\\<").replace("__", "\\_\\_") for piece in outside[::2]]
    return "".join(outside).replace("|", "\\|")


def _modules(folder: Path) -> dict[str, list[Path]]:
    """The source files of a folder by module, the one that describes the module first."""
    modules: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir(), key=lambda path: (path.stem, path.suffix)):
        if path.suffix in SUFFIXES:
            modules.setdefault(path.stem, []).append(path)
    for files in modules.values():
        files.sort(key=lambda path: SUFFIXES.index(path.suffix))
    return modules


def _folders(package: Path) -> list[Path]:
    """The folders of sources in a package, with their own; tests and what builds leave behind are none."""
    found = []
    for folder in sorted(package.iterdir()):
        if folder.is_dir() and folder.name not in ("tests", "__pycache__") and _modules(folder):
            found += [folder, *_folders(folder)]
    return found


def _described(path: Path) -> str:
    sentence = first_sentence(header_comment(path))
    if not sentence:
        raise ValueError(f"{path} has no docstring, or no comment at its beginning: the module map needs one")
    return sentence


def _constants(path: Path) -> dict[str, Any]:
    """The constants of a Python file that are written out."""
    found: dict[str, Any] = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            with contextlib.suppress(ValueError):
                found[node.target.id] = ast.literal_eval(node.value)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            with contextlib.suppress(ValueError):
                found[node.targets[0].id] = ast.literal_eval(node.value)
    return found


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _table_of_packages(package: Path, needs: Needs) -> list[str]:
    rows = ["| package | what it is | imports |", "| --- | --- | --- |"]
    for name, others in needs.items():
        folder = package / name
        source = folder / "__init__.py" if folder.is_dir() else package / f"{name}.py"
        rows.append(f"| `{name}` | {_described(source)} | {_code(others.split())} |")
    return rows


def _table_of_modules(modules: dict[str, list[Path]], tests: Tests | None) -> list[str]:
    if not modules:
        return []
    if tests is None:
        rows = ["| module | what it is |", "| --- | --- |"]
    else:
        rows = ["| module | what it is | tested by |", "| --- | --- | --- |"]
    for name, files in modules.items():
        cells = [f"`{name}` {_code(path.suffix for path in files)}", _described(files[0])]
        if tests is not None:
            cells.append(_code(tests.of(files)))
        rows.append(f"| {' | '.join(cells)} |")
    return ["", *rows]


class Tests:
    """Which tests use a module, as their own imports say: coverage would differ from run to run.

    :param folder: has the tests, in folders of the same names as those of the sources.
    :param sources: the folder of the sources.
    :param top: names are read from here on, in imports and in ``#include``.
    :param root: of the repository.
    """

    #: Of a module: the column says where to begin.
    MOST = 2

    def __init__(self, folder: Path, sources: Path, top: Path, root: Path) -> None:
        self._folder, self._sources, self._top, self._root = folder, sources, top, root
        self._users: dict[str, list[Path]] = {}
        for path in sorted(folder.rglob("*")):
            if "project" in path.parts[len(folder.parts) :]:
                continue  # these look at the whole tree
            if path.suffix in (".py", ".c") and path.stem.startswith(("test_", "unit_", "fuzz_")):
                for name in _used(path) | {str(self._namesake(path))}:
                    self._users.setdefault(name, []).append(path)

    def _namesake(self, path: Path) -> Path:
        return path.parent.relative_to(self._folder) / path.stem.partition("_")[2]

    def of(self, files: list[Path]) -> list[str]:
        """Names of the tests that use this module, the nearest first; if none does, the folder whose tests
        come to it through others."""
        module = files[0].relative_to(self._top).with_suffix("")
        dotted = ".".join(module.parts).removesuffix(".__init__")
        found = {*self._users.get(dotted, ()), *self._users.get(str(module), ())}
        namesake = files[0].parent.relative_to(self._sources) / module.name.strip("_")
        found |= set(self._users.get(str(namesake), ()))
        mirrored = self._folder
        for part in namesake.parent.parts:
            mirrored = mirrored / part if (mirrored / part).is_dir() else mirrored

        def distance(test: Path) -> tuple[bool, bool, str]:
            return self._namesake(test) != namesake, mirrored not in test.parents, str(test)

        if not found:
            return [f"{mirrored.relative_to(self._root)}/"]
        nearest = sorted(found, key=distance)[: self.MOST]
        return [str(test.relative_to(self._root).with_suffix("")) for test in nearest]


def _used(path: Path) -> set[str]:
    """What a test names: what it imports, wherever the statement stands; modules by their full names, in
    strings; or what it includes, without the suffix."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".c":
        return {name.rpartition(".")[0] for name in re.findall(r'^#include "([^"]+)"', text, re.MULTILINE)}
    names: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "." in node.value:
            names |= set(re.findall(r"\b(?:[a-z_]\w*\.)+[a-z_]\w*", node.value))
    return names


def module_map_page(
    package: Path = ROOT / "aiordma",
    layers: Path = ROOT / "tests" / "project" / "layers.py",
    tests: Path = ROOT / "tests",
) -> str:
    """:raises ValueError: naming a module that does not describe itself."""
    rules = _constants(layers)
    needs: Needs = rules["NEEDS"]
    rows = [
        "# Module map",
        "",
        "Every module of the source tree with the first sentence of its docstring. A module of several files",
        "(`.pyx` and `.pxd`, `.h` and `.c`) is one row. `docs/tables.py` makes this page from the sources.",
        "",
        "*Tested by* names the nearest tests that import the module, at most two; where none does, the",
        "folder whose tests come to it through other modules.",
        "",
        "## Packages",
        "",
        "A package imports its own modules and those of the packages that its row names. These stand above",
        "it. `tests/project/test_layers.py` checks this, also for imports inside functions, for types, and",
        "for modules that a string names.",
        "",
        *_table_of_packages(package, needs),
    ]
    if rules["EXCEPTIONS"]:
        rows += ["", "Exceptions:", ""]
        rows += [f"* `{one}` imports `{other}`: {why}" for (one, other), why in rules["EXCEPTIONS"].items()]
    root = _modules(package)
    moved: dict[str, dict[str, list[Path]]] = {}
    for name, owner in rules["BELONGS_TO"].items():
        stem = name.rpartition(".")[2]
        moved.setdefault(owner, {})[name] = root.pop(stem)
    for name in rules.get("BESIDE", ()):
        folder = package.parent / name
        beside, its = _modules(folder), Tests(tests / name, folder, package.parent, tests.parent)
        rows += ["", f"## `{name}`", "", _described(beside.pop("__init__")[0])]
        rows += ["", f"Imports nothing of `{package.name}`.", *_table_of_modules(beside, its)]
        for inner in _folders(folder):
            rows += ["", f"## `{inner.relative_to(package.parent)}`", "", _described(inner / "__init__.py")]
            parts = _modules(inner)
            del parts["__init__"]
            rows += _table_of_modules(parts, its)
    users = Tests(tests, package, package.parent, tests.parent)
    rows += ["", f"## `{package.name}`", "", _described(root.pop("__init__")[0])]
    rows += _table_of_modules(root, users)
    folders = _folders(package)
    ranks = {name: rank for rank, name in enumerate(needs)}
    folders.sort(key=lambda folder: ranks.get(folder.relative_to(package).parts[0], len(ranks)))
    for folder in folders:
        inside = folder.relative_to(package)
        modules = moved.pop(str(inside), {}) | _modules(folder)
        rows += ["", f"## `{folder.relative_to(package.parent)}`"]
        # A folder of C files is described by the header that bears its name.
        if about := modules.pop("__init__", None) or modules.get(folder.name):
            rows += ["", _described(about[0])]
        rows += _table_of_modules(modules, users)
    return "\n".join(rows) + "\n"


def device_map(project: Path = ROOT / "softdev") -> str:
    """The same of the software device, a project of its own."""
    rows = []
    src, trace = project / "src", project / "trace"
    device = Tests(project / "tests", src, src, project.parent)
    recorder = Tests(project / "tests", project, trace, project.parent)
    for folder in (project / "include", *_folders(src), *_folders(trace)):
        modules = _modules(folder)
        rows += ["", f"## `{folder.relative_to(project.parent)}`"]
        # A folder of C files is described by the header that bears its name.
        if about := modules.get(folder.name):
            rows += ["", _described(about[0])]
        users = recorder if trace in (folder, *folder.parents) else device
        rows += _table_of_modules(modules, None if folder.name == "include" else users)
    return "\n".join(rows) + "\n"


PAGES = {
    REFERENCE / "settings.md": settings_page,
    REFERENCE / "reasons.md": reasons_page,
    REFERENCE / "module-map.md": lambda: module_map_page() + device_map(),
    REFERENCE / "commands.md": commands_page,
    REFERENCE / "stat-json.md": stat_json_page,
    REFERENCE / "private.md": private_page,
}


def outdated() -> list[Path]:
    """The pages that differ from what the sources say now."""
    return [
        path
        for path, page in PAGES.items()
        if not path.exists() or path.read_text(encoding="utf-8") != page()
    ]


def main(arguments: list[str]) -> int:
    behind = outdated()
    for path in behind:
        if "--check" in arguments:
            print(f"{path.relative_to(ROOT)} is out of date: run .venv/bin/python docs/tables.py")
        else:
            path.write_text(PAGES[path](), encoding="utf-8")
            print(f"wrote {path.relative_to(ROOT)}")
    return 1 if behind and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
