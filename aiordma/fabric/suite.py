"""Many simulations on all cores, with results in SQLite: what is there already is not computed again."""

from __future__ import annotations

import contextlib
import hashlib
import multiprocessing
import os
import sqlite3
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from . import simulate, traffic
from .topology import build

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from concurrent.futures import Executor

    from .model import Network
    from .simulate import Outcome

__all__ = ["Store", "one", "pool", "run"]

#: Raise it when the engine or a traffic model gives other results: what is stored is then computed again.
VERSION = 1


def key_of(network: Network, profile: str) -> str:
    """Names the network and the senders in a store: other settings, other results."""
    plain = replace(network, file="", lines={})
    return hashlib.sha256(f"{VERSION} {plain!r} {profile}".encode()).hexdigest()[:16]


def one(network: Network, name: str, seed: int, profile: str) -> Outcome:
    """One traffic model in one simulation; runs in a process of its own."""
    found = traffic.make(name, build(network), seed)
    return simulate.run(simulate.assemble(network, found, seed=seed, profile=profile), seed=seed)


class Store:
    """Outcomes in an SQLite file."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file = sqlite3.connect(os.fspath(path))
        columns = (
            "network TEXT, traffic TEXT, seed INTEGER, outcome TEXT, PRIMARY KEY (network, traffic, seed)"
        )
        with self._file:
            self._file.execute(f"CREATE TABLE IF NOT EXISTS outcomes ({columns})")

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def get(self, network: str, name: str, seed: int) -> Outcome | None:
        """The outcome, if it is there."""
        row = self._file.execute(
            "SELECT outcome FROM outcomes WHERE (network, traffic, seed) = (?, ?, ?)",
            (network, name, seed),
        ).fetchone()
        return None if row is None else msgspec.json.decode(row[0], type=simulate.Outcome)

    def put(self, network: str, outcome: Outcome) -> None:
        """Write one outcome; it stays if the program is killed right after."""
        text = msgspec.json.encode(outcome).decode()
        with self._file:
            row = (network, outcome.traffic, outcome.seed, text)
            self._file.execute("INSERT OR REPLACE INTO outcomes VALUES (?, ?, ?, ?)", row)


@contextlib.contextmanager
def pool(executor: Executor | None = None, workers: int | None = None) -> Iterator[Executor]:
    """The given executor, or processes of its own that end with the block."""
    if executor is not None:
        yield executor
        return
    # Not fork: the caller may have threads.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers or os.cpu_count(), mp_context=context) as own:
        yield own


def run(
    network: Network,
    names: Iterable[str],
    *,
    seeds: Sequence[int] = (1,),
    profile: str = "sigcomm15",
    store: Store | None = None,
    executor: Executor | None = None,
    workers: int | None = None,
    progress: Callable[[Outcome, bool], None] | None = None,
) -> list[Outcome]:
    """Simulate traffic models; outcomes in the order of `names` and `seeds`.

    :param store: what is in it is taken from there, what is new is written.
    :param executor: of `concurrent.futures` or one that is like it (Dask's); by default processes of its own.
    :param workers: how many processes, if there is no executor.
    :param progress: called for each outcome, with whether it came from the store.
    :raises KeyError: if there is no such traffic model.
    """
    wanted = [(name, seed) for name in names for seed in seeds]
    for name, _ in wanted:
        traffic.MODELS[name]
    key, found = key_of(network, profile), {}
    for name, seed in wanted:
        if store is not None and (old := store.get(key, name, seed)) is not None:
            found[name, seed] = old
            if progress:
                progress(old, True)
    missing = [each for each in wanted if each not in found]
    if not missing:
        return [found[each] for each in wanted]
    plain = replace(network, lines={})
    with pool(executor, workers) as workshop:
        waiting = {workshop.submit(one, plain, name, seed, profile): (name, seed) for name, seed in missing}
        for future in as_completed(waiting):
            outcome = found[waiting[future]] = future.result()
            if store is not None:
                store.put(key, outcome)
            if progress:
                progress(outcome, False)
    return [found[each] for each in wanted]
