"""What is wrong with a workflow of the continuous integration, as far as its text shows it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator

_PINNED = re.compile(r"^[\w.-]+/[\w./-]+@[0-9a-f]{40}$")
_USES = re.compile(r"^ *(?:- )?uses: (\S+)(.*)$", re.MULTILINE)
_VERSION = re.compile(r"^ # v\d+\.\d+\.\d+$")
#: What a pull request's author can choose: in a script, it would be run.
_CHOSEN = re.compile(r"\$\{\{\s*(?:github\.(?:event|head_ref|ref_name)|inputs)\b")


class _Strict(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML has no types
    """Keys that are there twice are an error; of these, YAML's reader takes the last one without a word."""


def _mapping(loader: _Strict, node: yaml.MappingNode) -> dict[Any, Any]:
    keys = [loader.construct_object(key, deep=True) for key, _ in node.value]
    if twice := {key for key in keys if keys.count(key) > 1}:
        raise ValueError(f"line {node.start_mark.line + 1}: twice: {twice}")
    return dict(
        zip(keys, (loader.construct_object(value, deep=True) for _, value in node.value), strict=True)
    )


_Strict.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def findings(text: str) -> list[str]:
    """Each says what is wrong and where; empty: nothing.

    :raises ValueError: the text has a key twice.
    :raises yaml.YAMLError: it is no YAML.
    """
    read = yaml.load(text, _Strict)
    # YAML 1.1 takes the key "on" for a truth value.
    missing = {"name", "permissions", "jobs"} - read.keys() | ({"on"} if True not in read else set())
    found = [f"no {what!r}" for what in sorted(missing)]
    if read.get("permissions") not in ({}, {"contents": "read"}):
        found.append(f"permissions of all jobs: {read.get('permissions')}")
    found += [
        f"{action} is not pinned to a commit, with its version behind it"
        for action, behind in _USES.findall(text)
        if not _PINNED.match(action) or not _VERSION.match(behind)
    ]
    for name, job in read.get("jobs", {}).items():
        found += [f"{name}: {what}" for what in _of_job(job, read.get("jobs", {}))]
    return found


def _of_job(job: dict[str, Any], jobs: dict[str, Any]) -> Iterator[str]:
    if "timeout-minutes" not in job:
        yield "no timeout-minutes"
    needs = job.get("needs", [])
    for other in [needs] if isinstance(needs, str) else needs:
        if other not in jobs:
            yield f"needs {other}, which is no job"
    actions = [str(step.get("uses", "")) for step in job.get("steps", [])]
    uploads = any("/gh-action-pypi-publish@" in action for action in actions)
    allowed = {"contents": "read"} | ({"id-token": "write"} if uploads else {})
    for what, right in job.get("permissions", {}).items():
        if allowed.get(what) != right:
            yield f"may {right} {what}"
    if uploads:
        yield from _of_upload(job)
    for step in job["steps"]:
        if ("uses" in step) == ("run" in step):
            yield f"a step has to have either uses or run: {step}"
        if _CHOSEN.search(step.get("run", "")):
            yield f"a script contains what others choose: {step['run']}"
        if (
            "/checkout@" in step.get("uses", "")
            and step.get("with", {}).get("persist-credentials") is not False
        ):
            yield "the checkout leaves its token behind"


def _of_upload(job: dict[str, Any]) -> Iterator[str]:
    """A job that may upload: with its own environment, after all others, and without anything of the tree."""
    if "environment" not in job:
        yield "uploads without an environment, which could ask a person"
    if "id-token" not in job.get("permissions", {}):
        yield "uploads without trusted publishing"
    if "if" not in job:
        yield "uploads whatever has started it"
    for step in job["steps"]:
        if "/checkout@" in step.get("uses", "") or re.search(r"\b(pip|make|python3?)\b", step.get("run", "")):
            yield "runs a part of the tree beside the right to upload"
        if {"password", "user"} & step.get("with", {}).keys():
            yield "uploads with a stored token"
