"""What `aiordma doctor` finds: one result for each step, and the report that `--json` prints."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

State = Literal["ok", "note", "failed", "skipped"]

#: Version of the object that `aiordma doctor --json` prints: fields may be added.
SCHEMA = "aiordma-doctor/1"


class Finding(NamedTuple):
    """The result of one step."""

    step: str
    state: State
    text: str
    remedy: str = ""


def ok(text: str) -> Finding:
    return Finding("", "ok", text)


def failed(text: str, remedy: str = "") -> Finding:
    return Finding("", "failed", text, remedy)


def note(text: str, remedy: str = "") -> Finding:
    return Finding("", "note", text, remedy)


def schema() -> dict[str, Any]:
    """The JSON schema of the report."""
    text = {"type": "string"}
    step = {
        "type": "object",
        "properties": {
            "step": {**text, "description": "name of the step; their order is that in which RDMA needs them"},
            "state": {
                "enum": ["ok", "note", "failed", "skipped"],
                "description": "note: it works, but look at it; skipped: a step before it failed",
            },
            "text": {**text, "description": "what was found, for people"},
            "remedy": {**text, "description": "what to do; empty: nothing, or the text says it"},
        },
        "required": ["step", "state", "text", "remedy"],
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "aiordma doctor --json",
        "type": "object",
        "properties": {
            "schema": {"const": SCHEMA},
            "ok": {"type": "boolean", "description": "RDMA works, also to the peer if one was given"},
            "verdict": {**text, "description": "one line that says what to do"},
            "steps": {"type": "array", "items": step},
        },
        "required": ["schema", "ok", "verdict", "steps"],
    }
