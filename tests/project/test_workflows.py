"""The workflows of the continuous integration: valid, pinned, and with the rights that each job needs."""

from __future__ import annotations

import re

import pytest
import yaml

from .tree import ROOT
from .workflows import findings

FOLDER = ROOT / ".github" / "workflows"
NAMES = sorted(path.name for path in FOLDER.glob("*.y*ml"))
SHA = "0" * 40
GOOD = f"""
name: x
on: push
permissions: {{}}
jobs:
  build:
    timeout-minutes: 5
    permissions:
      contents: read
    steps:
      - uses: actions/checkout@{SHA} # v4.2.2
        with:
          persist-credentials: false
      - run: make test
  publish:
    if: github.ref_type == 'tag'
    needs: build
    environment: release
    timeout-minutes: 5
    permissions:
      id-token: write
    steps:
      - uses: pypa/gh-action-pypi-publish@{SHA} # v1.12.4
"""


def _read(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def test_there_are_a_check_and_a_release() -> None:
    assert {"ci.yml", "release.yml"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_wrong(name: str) -> None:
    assert findings(_read(name)) == []


def test_a_good_one_has_no_findings() -> None:
    assert findings(GOOD) == []


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        (f"actions/checkout@{SHA}", "actions/checkout@v4", "is not pinned"),
        (" # v4.2.2", "", "is not pinned"),
        ("permissions: {}", "permissions: write-all", "permissions of all jobs"),
        ("permissions: {}", "", "no 'permissions'"),
        ("contents: read", "contents: write", "may write contents"),
        ("contents: read", "id-token: write", "build: may write id-token"),
        ("id-token: write", "contents: read", "without trusted publishing"),
        ("    environment: release\n", "", "without an environment"),
        ("    if: github.ref_type == 'tag'\n", "", "whatever has started it"),
        ("needs: build", "needs: built", "which is no job"),
        ("persist-credentials: false", "persist-credentials: true", "leaves its token"),
        ("run: make test", "run: echo ${{ github.event.title }}", "what others choose"),
        ("- run: make test", "- name: nothing", "either uses or run"),
        ("    timeout-minutes: 5\n    permissions:\n      con", "    permissions:\n      con", "no timeout"),
        (" # v1.12.4", " # v1.12.4\n        with:\n          password: x", "stored token"),
        (" # v1.12.4", " # v1.12.4\n      - run: pip install .", "beside the right to upload"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_found(old: str, new: str, what: str) -> None:
    assert old in GOOD
    assert [finding for finding in findings(GOOD.replace(old, new)) if what in finding]


def test_a_key_that_is_there_twice_is_found() -> None:
    with pytest.raises(ValueError, match="twice"):
        findings(GOOD + "jobs: {}\n")
    with pytest.raises(yaml.YAMLError):
        findings(GOOD + "\tx: [")


def test_a_release_has_a_wheel_for_each_python_that_the_metadata_names() -> None:
    text = _read("release.yml")
    named = set(re.findall(r":: Python :: (3\.\d+)\"", (ROOT / "pyproject.toml").read_text(encoding="utf-8")))
    (command,) = re.findall(r'PYTHONS="(.*)"', text)
    built = {word.removeprefix("python") for word in command.split()}
    (set_up,) = re.findall(r"python-version: \|\n((?: {12}\S+\n)+)", text)
    assert set(set_up.split()) == built
    assert {release for release in built if not release.endswith("t")} == named


def test_the_pages_environments_are_those_of_the_workflow() -> None:
    page = (ROOT / "docs" / "releasing.md").read_text(encoding="utf-8")
    text = _read("release.yml")
    for name in ("release", "rehearsal"):
        assert f"environment: {name}\n" in text
        assert f"environment `{name}`" in page
    assert "`REHEARSAL_UPLOAD_URL`" in page
    assert "vars.REHEARSAL_UPLOAD_URL" in text
