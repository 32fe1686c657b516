"""Medians over the rounds, and how to look a number up."""

from __future__ import annotations

import statistics
from typing import Any

from .peers import PEERS


class Summary:
    """Reads the results of one run: `value("tcp-uvloop", "roundtrip", "64", "p50_us")`."""

    def __init__(self, results: dict[str, Any]) -> None:
        self.results = results

    def rounds(self, peer: str, *keys: str) -> list[float]:
        found = []
        for one in self.results["peers"].get(peer, {"rounds": []})["rounds"]:
            value: Any = one.get("results")
            for key in keys:
                value = value.get(key) if value is not None else None
            if value is not None:
                found.append(float(value))
        return found

    def value(self, peer: str, *keys: str) -> float | None:
        """The median over the rounds; None when no round has it."""
        found = self.rounds(peer, *keys)
        return statistics.median(found) if found else None

    def wire(self, name: str) -> float | None:
        """The median over the rounds of a number of wire.py."""
        found = self.results.get("wire", {}).get("found", {}).get(name)
        return statistics.median(found) if found else None

    def title(self, peer: str) -> str:
        if peer in self.results["peers"]:
            return str(self.results["peers"][peer]["title"])
        return PEERS[peer].title

    def problems(self) -> dict[str, list[str]]:
        """Title of each peer that failed somewhere -> what it said, once each."""
        found: dict[str, list[str]] = {}
        for data in self.results["peers"].values():
            said: dict[str, None] = {}
            for one in data["rounds"]:
                if "failed" in one:
                    said[one["failed"]] = None
                for workload, error in one.get("errors", {}).items():
                    said[f"{workload}: {error}"] = None
            if said:
                found[data["title"]] = list(said)
        return found
