"""The recipes of docs/howto/testing.md for other test runners, as far as they can run on this machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.processes import PATIENCE
from tests.project.tree import ROOT

pytestmark = pytest.mark.timeout(180)

#: Succeeds where there is a software device, and where it can be opened.
PROGRAM = """
#include <infiniband/verbs.h>
#include <string.h>

int main(void)
{
	int n = 0, found = 0;
	struct ibv_device **list = ibv_get_device_list(&n);

	for (int i = 0; i < n; i++) {
		struct ibv_context *context;

		if (strcmp(ibv_get_device_name(list[i]), "soft0"))
			continue;
		context = ibv_open_device(list[i]);
		found = context != NULL && ibv_close_device(context) == 0;
	}
	ibv_free_device_list(list);
	return found ? 0 : 1;
}
"""

CMAKE = """
cmake_minimum_required(VERSION 3.20)
project(theirs C)
enable_testing()
add_executable(theirs theirs.c)
target_link_libraries(theirs ibverbs)
add_test(NAME theirs COMMAND theirs)
"""

RUST = """
#[link(name = "ibverbs")]
extern "C" {
    fn ibv_get_device_list(n: *mut i32) -> *mut *mut u8;
    fn ibv_get_device_name(device: *mut u8) -> *const std::ffi::c_char;
}

#[test]
fn the_device_is_there() {
    let mut n = 0;
    let names: Vec<String> = unsafe {
        let list = ibv_get_device_list(&mut n);
        (0..n as usize)
            .map(|i| std::ffi::CStr::from_ptr(ibv_get_device_name(*list.add(i))).to_string_lossy().into())
            .collect()
    };
    assert!(names.contains(&"soft0".to_string()), "{names:?}");
}
"""


def works(program: str) -> bool:
    """Whether it is installed. rustup's cargo is there without a toolchain, too."""
    return (
        shutil.which(program) is not None
        and not subprocess.run([program, "--version"], capture_output=True, check=False).returncode
    )


def page() -> str:
    """The how-to."""
    return (ROOT / "docs/howto/testing.md").read_text("utf-8")


def run(command: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run as a shell does that has aiordma on its path; the output is in the result."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=2 * PATIENCE,
        check=False,
    )


def recipe(start: str) -> list[str]:
    """The page's command line that starts so."""
    found = re.search(rf"^\$ ({re.escape(start)}.*)$", page(), re.M)
    assert found is not None, start
    return found[1].split()


def test_ctest(tmp_path: Path) -> None:
    (tmp_path / "theirs.c").write_text(PROGRAM)
    (tmp_path / "CMakeLists.txt").write_text(CMAKE)
    for command in (["cmake", "-B", "build"], ["cmake", "--build", "build"]):
        done = run(command, tmp_path)
        assert done.returncode == 0, done.stdout
    command = recipe("aiordma preload ctest")
    done = run(command, tmp_path)
    assert done.returncode == 0, done.stdout
    assert "100% tests passed, 0 tests failed out of 1" in done.stdout
    alone = run(command[2:], tmp_path)
    assert alone.returncode != 0, "the test passes without the device, so it shows nothing"


@pytest.mark.skipif(not works("cargo"), reason="cargo is not installed")
def test_cargo(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src/lib.rs").write_text(RUST)
    (tmp_path / "Cargo.toml").write_text('[package]\nname = "theirs"\nversion = "0.1.0"\nedition = "2021"\n')
    command = recipe("aiordma preload cargo")
    done = run(command, tmp_path)
    assert done.returncode == 0, done.stdout
    alone = run(command[2:], tmp_path)
    assert alone.returncode != 0, "the test passes without the device, so it shows nothing"


def test_the_manifests_run_the_same_command() -> None:
    """Neither GitHub nor Kubernetes is here: their files are read; their command is the one above."""
    workflow, job = (yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", page(), re.S))
    steps = [step.get("run") for step in workflow["jobs"]["rdma"]["steps"]]
    assert "aiordma preload ctest --test-dir build --output-on-failure" in steps
    spec = job["spec"]["template"]["spec"]
    assert spec["containers"][0]["command"] == steps[-1].split()
    assert "privileged" not in str(job)
