"""Medians over the rounds, and lookup of single numbers."""

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
        """Return the median over the rounds; None if no round has the number."""
        found = self.rounds(peer, *keys)
        return statistics.median(found) if found else None

    def peers(self, workload: str) -> list[str]:
        """Return the names of the peers for which a round has this workload."""
        return [
            name
            for name, data in self.results["peers"].items()
            if any(workload in one.get("results", {}) for one in data["rounds"])
        ]

    def copies(self, kind: str) -> float | None:
        """Return the median over the rounds of one copy's GB/s, "warm" or "cold"; None: not measured."""
        found = self.results.get("copies", {}).get(kind)
        return statistics.median(found) if found else None

    def perftest(self, transport: str) -> list[float]:
        """Return each round's GB/s of `perftest.rate(transport)`."""
        found: list[float] = self.results.get("perftest", {}).get(transport, [])
        return found

    def wire(self, name: str) -> float | None:
        """Return the median over the rounds of one of wire.py's numbers."""
        found = self.results.get("wire", {}).get("found", {}).get(name)
        return statistics.median(found) if found else None

    def title(self, peer: str) -> str:
        if peer in self.results["peers"]:
            return str(self.results["peers"][peer]["title"])
        return PEERS[peer].title

    def problems(self) -> dict[str, list[str]]:
        """Return the title of each failed peer -> its distinct error messages."""
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
