"""Runs distributed's own tests of comms with ``rdma://`` in the place of ``tcp://``.

    python suite/run.py DIRECTORY [--as-they-are] [PYTEST'S ARGUMENTS]

The tests are those that ``suite/fetch DIRECTORY`` has fetched. Their text is changed in the schemes and
in the module of the transport, and in nothing else. Tests in ``exceptions.toml`` are left out.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent

#: Files of tests, below distributed/.
FILES = ("comm/tests/test_comms.py",)

#: What becomes of the text, in this order.
REPLACED = (
    (r"\btcp://", "rdma://"),
    (r"\btls://", "rdmas://"),
    (r"import distributed\.comm\.tcp as tcp", "import names as tcp"),
    (r'(setitem\(backends, )"tcp"', r'\1"rdma"'),
    (r'(setitem\(backends, )"tls"', r'\1"rdmas"'),
    (r'(scheme == )"tls"', r'\1"rdmas"'),
)

#: Of distributed's own settings for pytest, what its tests need.
INI = """[pytest]
addopts = --strict-markers -p no:cacheprovider -p no:xdist -p no:asyncio -p no:anyio
timeout = 60
timeout_method = thread
pythonpath = {here}
markers =
    avoid_ci: see distributed
    slow: see distributed
    leaking: see distributed
    gpu: see distributed
    flaky: see distributed
    ipython: see distributed
    workerstate: see distributed
    extra_packages: see distributed
    normal_python_test: see distributed
"""

CONFTEST = '''"""What the tests need beside distributed as it is installed."""
import distributed.utils_test

distributed.utils_test.certs_dir = {certs!r}
pytest_plugins = ["distributed.pytest_resourceleaks"]
'''


def adapted(text: str) -> str:
    """The text of a test for ``rdma://``."""
    for pattern, replacement in REPLACED:
        text = re.sub(pattern, replacement, text)
    return text


def prepare(source: Path, target: Path, *, as_they_are: bool) -> list[Path]:
    """Write the tests to ``target``."""
    target.mkdir(parents=True, exist_ok=True)
    (target / "pytest.ini").write_text(INI.format(here=HERE))
    (target / "conftest.py").write_text(CONFTEST.format(certs=str(source / "distributed/tests")))
    written = []
    for name in FILES:
        text = (source / "distributed" / name).read_text()
        path = target / Path(name).name
        path.write_text(text if as_they_are else adapted(text))
        written.append(path)
    return written


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("directory", type=Path, help="where suite/fetch has put the tests")
    parser.add_argument(
        "--as-they-are", action="store_true", help="with tcp://, to see what fails without us"
    )
    options, rest = parser.parse_known_args()
    source = options.directory.resolve()
    target = source / ("tcp" if options.as_they_are else "rdma")
    files = prepare(source, target, as_they_are=options.as_they_are)
    reasons = tomllib.loads((HERE / "exceptions.toml").read_text())
    left_out = reasons["any"] | ({} if options.as_they_are else reasons["rdma"])
    for test, reason in left_out.items():
        print(f"left out: {test}: {reason}")
    leave_out = [f"--deselect={test}" for test in left_out]
    environment = dict(os.environ)
    if not options.as_they_are:
        environment["DASK_DISTRIBUTED__COMM__DEFAULT_SCHEME"] = "rdma"
    command = [sys.executable, "-m", "pytest", "-q", *leave_out, *(path.name for path in files), *rest]
    return subprocess.run(command, cwd=target, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
