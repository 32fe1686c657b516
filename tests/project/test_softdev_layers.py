"""The folders of the software device call one way: each includes and uses only those below it.

Read from the C sources, so that nothing needs to be built: `#include` lines, and every use of a function
or variable with external linkage. What a folder offers others is declared by the one header with
its name.
"""

from __future__ import annotations

import functools
import re
import shutil
from pathlib import Path

import pytest

from .tree import ROOT

SOFTDEV = ROOT / "softdev" / "src"

# Lowest first. Folders in one set do not know of each other.
LAYERS: list[set[str]] = [{"base"}, {"core"}, {"shm", "roce"}, {"verbs"}, {"cm"}, {"preload"}]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}

# Every folder may know the header for programs.
PUBLIC_HEADERS = {"softdev.h"}

# (file, name) -> reason. There should be none.
EXCEPTIONS: dict[tuple[str, str], str] = {}

COMMENT_OR_STRING = re.compile(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.DOTALL)
DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n\\]|\\\n|\\.)*", re.MULTILINE)
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)
# preload's macros that define a function of librdmacm: three levels of parentheses
ROUTED = re.compile(r"^CM_(?:ROUTED|REFUSED)\w*\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)", re.MULTILINE)
TYPE = re.compile(r"(struct|union|enum)\s+\w+$")
# The type of a function, or its name for the real library, is no use of the one that is defined here.
NOT_A_USE = re.compile(r"__typeof__\(&\w+\)|\bREAL\(\s*\w+|^[ \t]*#[ \t]*undef[^\n]*", re.MULTILINE)


def sources(root: Path) -> list[Path]:
    return sorted(path for folder in RANK for path in (root / folder).glob("*.[ch]"))


def may_use(folder: str, other: str) -> bool:
    return folder == other or RANK[other] < RANK[folder]


@functools.cache
def without_comments(source: str) -> str:
    return COMMENT_OR_STRING.sub(lambda found: " " * (found[0][0] == "/") or '""', source)


@functools.cache
def definitions(source: str) -> set[str]:
    """Names with external linkage that this file defines."""
    text = DIRECTIVE.sub("", without_comments(source))
    found = {
        name[1] for name in re.finditer(r"^CM_(?:ROUTED|REFUSED)\w*\([^;{]*?\b(rdma_\w+)", text, re.MULTILINE)
    }
    text = ROUTED.sub("", text)
    start = depth = 0
    body = -1
    for mark in re.finditer(r"[{};]", text):
        at, sign = mark.start(), mark[0]
        if sign == "{":
            if not depth:
                body = at
            depth += 1
        elif sign == "}":
            depth -= 1
        if depth or not (sign == ";" or (sign == "}" and text[start:body].rstrip().endswith(")"))):
            continue
        head = text[start : body if body > start else at].strip()
        has_body, start, body = body > start, at + 1, -1
        head = re.sub(r"__attribute__\(\((?:[^()]|\([^()]*\))*\)\)", "", head).strip()
        if re.match(r"(static|extern|typedef|_Static_assert)\b", head):
            continue
        called = re.match(r"[\w\s*]*?\b(\w+)\s*\(", head)
        if called and "=" not in head.split("(")[0]:
            if has_body:
                found.add(called[1])
            continue
        variable = re.match(r"(?:[\w*]+[\s*]+)+(\w+)\s*(?:\[[^=]*\])?\s*(=|$)", head)
        if (
            variable
            and (variable[2] == "=" or not has_body)
            and not re.match(r"(struct|union|enum)\s+\w+$", head)
        ):
            found.add(variable[1])
    return found


def wrong_includes(root: Path) -> list[str]:
    wrong = []
    for path in sources(root):
        folder = path.parent.name
        for header in INCLUDE.findall(path.read_text(encoding="utf-8")):
            other, _, name = header.rpartition("/")
            where = f'{folder}/{path.name} includes "{header}"'
            if header in PUBLIC_HEADERS or (f"{folder}/{path.name}", header) in EXCEPTIONS:
                continue
            if other not in RANK:
                wrong.append(f"{where}: not named with one of the folders")
            elif not may_use(folder, other):
                wrong.append(f"{where}: {other} is not below {folder}")
            elif other != folder and name != f"{other}.h":
                wrong.append(f"{where}: a private header of {other}")
            elif other == folder and path.name == f"{folder}.h" and name == "internal.h":
                wrong.append(f"{where}: the contract would make it everybody's")
    return wrong


def wrong_uses(root: Path) -> list[str]:
    texts = {path: path.read_text(encoding="utf-8") for path in sources(root)}
    owner = {name: path.parent.name for path, text in texts.items() for name in definitions(text)}
    wrong = []
    for path, text in texts.items():
        folder = path.parent.name
        used = set(re.findall(r"\w+", NOT_A_USE.sub("", without_comments(text))))
        for name in sorted(used & owner.keys()):
            where = f"{folder}/{path.name}"
            if not may_use(folder, owner[name]) and (where, name) not in EXCEPTIONS:
                wrong.append(f"{where} uses {name}: {owner[name]} is not below {folder}")
    return wrong


# ---- the tree as it is ----------------------------------------------------------------------------------


def test_every_folder_has_a_layer_and_a_contract() -> None:
    assert {path.name for path in SOFTDEV.iterdir()} == RANK.keys()
    assert {path.name for path in (SOFTDEV.parent / "include").iterdir()} == PUBLIC_HEADERS
    for folder in RANK:
        contract = (SOFTDEV / folder / f"{folder}.h").read_text(encoding="utf-8")
        essay = contract.split("*/")[0]
        assert essay.startswith("/*\n"), folder
        assert re.search(r"^ \* (What it promises|Guarantees|Threads):", essay, re.MULTILINE), folder
        assert re.search(r"^ \* (Threads|Locks)\b", essay, re.MULTILINE), folder


def test_folders_include_only_contracts_of_those_below() -> None:
    assert wrong_includes(SOFTDEV) == []


def test_folders_use_only_those_below() -> None:
    assert wrong_uses(SOFTDEV) == []


def test_definitions_are_found() -> None:
    # Should the sources come to be written in another way than `definitions` reads, nothing would be judged.
    found = {name for path in sources(SOFTDEV) for name in definitions(path.read_text(encoding="utf-8"))}
    functions = {"soft_now_ns", "soft_rx_atomic", "ibv_create_qp", "soft_rdma_connect"}
    functions |= {"rdma_connect", "rdma_destroy_id", "rdma_join_multicast"}
    assert functions | {"soft_proc", "soft_devices", "soft_shm_path", "soft_pollers"} <= found
    assert not found & {"struct", "run", "soft_qp", "soft_lock", "if", "cached_"}


# ---- what must be found ---------------------------------------------------------------------------------


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for folder in RANK:
        shutil.copytree(SOFTDEV / folder, tmp_path / folder)
    return tmp_path


def plant(root: Path, file: str, text: str) -> None:
    path = root / file
    path.write_text(path.read_text(encoding="utf-8") + text, encoding="utf-8")


@pytest.mark.parametrize(
    ("file", "header", "why"),
    [
        ("core/progress.c", "shm/shm.h", "shm is not below core"),
        ("shm/attach.c", "roce/roce.h", "roce is not below shm"),
        ("base/base.h", "core/core.h", "core is not below base"),
        ("verbs/qp.c", "shm/lane.h", "a private header of shm"),
        ("roce/qp.c", "core/internal.h", "a private header of core"),
        ("core/core.h", "core/internal.h", "the contract would make it everybody's"),
        ("cm/bus.c", "core.h", "not named with one of the folders"),
        ("cm/bus.c", "../roce/packet.h", "not named with one of the folders"),
    ],
)
def test_planted_include_is_found(copy: Path, file: str, header: str, why: str) -> None:
    plant(copy, file, f'#include "{header}"\n')
    assert wrong_includes(copy) == [f'{file} includes "{header}": {why}']


@pytest.mark.parametrize(
    ("file", "text", "name", "owner"),
    [
        (
            "core/requester.c",
            "bool planted(void)\n{\n\treturn soft_slab_find(0, 1);\n}\n",
            "soft_slab_find",
            "shm",
        ),
        ("core/core.h", "int soft_rdma_listen(void *id, int backlog);\n", "soft_rdma_listen", "cm"),
        (
            "shm/lane.h",
            "static inline int planted(void)\n{\n\treturn soft_roce_mode();\n}\n",
            "soft_roce_mode",
            "roce",
        ),
        ("roce/rx.c", "void planted(void)\n{\n\tibv_dealloc_pd(0);\n}\n", "ibv_dealloc_pd", "verbs"),
        ("base/lock.c", "static void *p = &soft_proc;\n", "soft_proc", "core"),
        ("verbs/cq.c", "static void *p = ibv_open_device;\n", "ibv_open_device", "preload"),
    ],
)
def test_planted_use_is_found(copy: Path, file: str, text: str, name: str, owner: str) -> None:
    plant(copy, file, text)
    folder = file.partition("/")[0]
    assert wrong_uses(copy) == [f"{file} uses {name}: {owner} is not below {folder}"]


def test_names_in_comments_and_of_real_functions_are_no_uses(copy: Path) -> None:
    plant(copy, "base/lock.c", '/* soft_proc */ // soft_proc\nstatic const char *s = "soft_proc";\n')
    plant(copy, "verbs/cq.c", '__typeof__(&ibv_open_device) f = REAL(ibv_open_device, "IBVERBS_1.1");\n')
    assert wrong_uses(copy) == []
