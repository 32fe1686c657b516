"""The pinned suites: what a row of `suites.toml` says, and the files of each."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["PYTHON", "ROOT", "Suite", "load", "prepare"]

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build/programs"
#: What every suite's environment has: pytest, and what aiordma needs.
_COMMON = ["pytest", "pytest-timeout", "anyio>=4.4", "click>=8.1", "msgspec>=0.19"]
#: The interpreter that the system's pyverbs is built for.
PYTHON = "/usr/bin/python3"
#: What an interpreter says of itself: its version, and where its library is.
_ASK = "import sys, sysconfig; print('%d.%d' % sys.version_info[:2], sysconfig.get_path('stdlib'))"


@dataclass(frozen=True)
class Suite:
    """One row; see the comment in `suites.toml`."""

    name: str
    tests: list[str]
    needs: list[str]
    limit: float
    sdist: str | None = None
    deb: str | None = None
    source_of: str | None = None
    drop: list[str] = field(default_factory=list)
    args: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    conftest: str = ""
    server: str | None = None
    proxy: bool = False
    given: str | None = None
    interpreter: str = PYTHON

    @property
    def origin(self) -> str:
        """Where its tests come from, with the version where one is pinned."""
        package = self.deb and self.deb % self.version
        return self.given or self.sdist or self.source_of or package or ""

    @property
    def version(self) -> str:
        """The interpreter's, such as "3.14"."""
        return _ask(self.interpreter)[0]

    @property
    def library(self) -> Path:
        """Where the interpreter's own modules are."""
        return Path(_ask(self.interpreter)[1])

    @property
    def folder(self) -> Path:
        """Where all of it lies."""
        return BUILD / (self.name if self.interpreter == PYTHON else f"{self.name}-{self.version}")

    @property
    def source(self) -> Path:
        """The directory in which pytest runs."""
        return self.folder / "source"

    @property
    def python(self) -> Path:
        """The interpreter of its environment."""
        return self.folder / "venv/bin/python"

    @property
    def pin(self) -> str:
        """What distinguishes one set-up from another."""
        rows = [self.given, self.sdist, self.deb, self.source_of, self.drop, self.needs, _COMMON]
        rows.append(self.interpreter)
        if self.conftest:
            rows.append(self.conftest)
        return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


@functools.cache
def _ask(interpreter: str) -> list[str]:
    return _run(interpreter, "-c", _ASK).split()


def load() -> list[Suite]:
    """All suites, in the order of the file."""
    rows = tomllib.loads(Path(__file__).with_name("suites.toml").read_text(encoding="utf-8"))
    found = []
    for name, row in rows.items():
        like = row.pop("like", None)
        found.append(Suite(name, **{**(rows[like] if like else {}), **row}))
    return found


def prepare(suite: Suite) -> None:
    """Fetch and install what is not there yet.

    :raises RuntimeError: that failed; with the last lines of the tool's output.
    """
    stamp = suite.folder / "stamp"
    if suite.given is not None or not stamp.exists() or stamp.read_text() != suite.pin:
        print(f"== {suite.name}: fetching and installing", flush=True)
        shutil.rmtree(suite.folder, ignore_errors=True)
        suite.folder.mkdir(parents=True)
        if suite.given is not None:
            shutil.copytree(suite.given, suite.source, ignore=shutil.ignore_patterns(".git"))
        elif suite.sdist is not None:
            _unpack_sdist(suite, suite.sdist)
        elif suite.source_of is not None:
            _unpack_source(suite, suite.source_of)
        else:
            _unpack_tests(suite)
        for name in suite.drop:
            shutil.rmtree(suite.source / name)
        if suite.conftest:
            (suite.source / "conftest.py").write_text(suite.conftest)
        _run(suite.interpreter, "-m", "venv", "--system-site-packages", str(suite.folder / "venv"))
        _run(
            str(suite.python),
            "-m",
            "pip",
            "install",
            "-q",
            "--disable-pip-version-check",
            *_COMMON,
            *suite.needs,
        )
        stamp.write_text(suite.pin)
    # The one whose environment this runs in has aiordma already.
    if Path(suite.interpreter).resolve() == Path(sys.executable).resolve():
        _link_aiordma(suite)
    else:
        _build_aiordma(suite)


def _unpack_sdist(suite: Suite, requirement: str) -> None:
    name = requirement.partition("==")[0]
    # pip asks the source for its metadata, and so installs what builds it: from wheels, not from source, too.
    _run(
        sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps",
        "--no-binary", name, "-d", str(suite.folder), requirement,
    )  # fmt: skip
    (archive,) = suite.folder.glob("*.tar.gz")
    _run("tar", "-xzf", str(archive), "-C", str(suite.folder))
    (unpacked,) = (each for each in suite.folder.iterdir() if each.is_dir())
    unpacked.rename(suite.source)


def _unpack_source(suite: Suite, wanted: str) -> None:
    """What the authors published, out of a source package of Debian's release. Nothing of it is built."""
    release, _, package = wanted.partition("/")
    listed = _run(
        "apt-get",
        "indextargets",
        "--format",
        "$(SITE)",
        "Created-By: Packages",
        "Origin: Debian",
        "Label: Debian",
    )
    if not listed:
        raise RuntimeError(
            "apt knows no mirror of Debian here: is there an entry in /etc/apt/sources.list.d?"
        )
    (suite.folder / "lists/partial").mkdir(parents=True)
    entry = suite.folder / "sources.list"
    keys = "/usr/share/keyrings/debian-archive-keyring.gpg"
    entry.write_text(f"deb-src [signed-by={keys}] {listed.split()[0]} {release} main\n")
    # A mirror may be a snapshot that is older than its lists are valid. Signatures are checked.
    apt = [
        "apt-get", "-q", "-o", f"Dir::Etc::sourcelist={entry}", "-o", "Dir::Etc::sourceparts=/dev/null",
        "-o", f"Dir::State::lists={suite.folder / 'lists'}", "-o", "Acquire::Check-Valid-Until=false",
    ]  # fmt: skip
    _run(*apt, "update")
    _run(*apt, "source", "--download-only", "--tar-only", "--only-source", package, cwd=suite.folder)
    (archive,) = suite.folder.glob("*.orig.tar.*")
    suite.source.mkdir()
    _run("tar", "-xf", str(archive), "-C", str(suite.source), "--strip-components", "1")


def _unpack_tests(suite: Suite) -> None:
    """The interpreter's package `test`: as it lies there, and what the package of Debian's adds to it."""
    shutil.copytree(suite.library / "test", suite.source / "test")
    if not (suite.source / suite.tests[0]).exists():
        _run("apt-get", "-q", "download", suite.origin, cwd=suite.folder)
        (archive,) = suite.folder.glob("*.deb")
        _run("dpkg-deb", "-x", str(archive), str(suite.folder / "deb"))
        (tests,) = (suite.folder / "deb/usr/lib").glob("python3*/test")
        shutil.copytree(tests, suite.source / "test", dirs_exist_ok=True)
    (suite.source / "pytest.ini").write_text("[pytest]\n")


def _link_aiordma(suite: Suite) -> None:
    """This tree's aiordma, as it is built, in the suite's environment: without the rest of .venv."""
    import _editable_skbc_aiordma as finder

    assert finder.__file__ is not None
    (packages,) = (suite.folder / "venv/lib").glob("python3*/site-packages")
    shutil.copy(finder.__file__, packages)
    compiled = packages / "aiordma"
    if not compiled.exists():
        compiled.symlink_to(Path(finder.__file__).with_name("aiordma"))
    # Since Python 3.15 an environment says in another file what its start calls.
    start = Path(finder.__file__).with_suffix(".start")
    if start.exists():
        shutil.copy(start, packages)
    else:
        (packages / "aiordma.pth").write_text("import _editable_skbc_aiordma\n")


def _build_aiordma(suite: Suite) -> None:
    """This tree's aiordma, built for the interpreter, in the suite's environment: what has changed only."""
    print(f"== {suite.name}: aiordma for Python {suite.version}", flush=True)
    install = [str(suite.python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    _run(*install, "cmake", "ninja", "-r", str(ROOT / "requirements-build.txt"))
    kept = f"--config-settings=build-dir={suite.folder / 'build'}"
    tools = {**os.environ, "PATH": f"{suite.python.parent}:{os.environ['PATH']}"}
    _run(*install, "--no-build-isolation", "--no-deps", kept, str(ROOT), environ=tools)


def _run(*command: str, cwd: Path | None = None, environ: dict[str, str] | None = None) -> str:
    """Returns what it prints."""
    done = subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}:\n{done.stdout[-1000:]}{done.stderr[-2000:]}")
    return done.stdout
