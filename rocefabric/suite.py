"""Many simulations on all cores, or on an engine that runs already: what is stored is not computed again."""

from __future__ import annotations

import contextlib
import hashlib
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from . import simulate, traffic
from .topology import build

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Executor

    from .model import Network
    from .simulate import Outcome
    from .store import Store

__all__ = ["Job", "dask", "job", "one", "pool", "run", "work"]

#: Raise it when the engine or a traffic model gives other results: what is stored is then computed again.
VERSION = 5


@dataclass(frozen=True)
class Job:
    """One simulation: a network, a traffic model, a seed, and the senders' parameters."""

    network: Network
    name: str
    seed: int = 1
    profile: str = "sigcomm15"
    #: What a sweep has set, to be stored with the outcome.
    settings: Mapping[str, float] = field(default_factory=dict)
    #: Instead of the model of this name.
    own: simulate.Traffic | None = None

    def key(self) -> str:
        """Names network, senders and traffic in a store: other settings, other results."""
        return key_of(self.network, self.profile, self.own)


def job(
    network: Network,
    which: str | simulate.Traffic,
    seed: int = 1,
    profile: str = "sigcomm15",
    settings: Mapping[str, float] | None = None,
) -> Job:
    """Of a traffic model by its name, or of traffic of one's own."""
    if isinstance(which, str):
        return Job(network, which, seed, profile, settings or {})
    return Job(network, which.name, seed, profile, settings or {}, which)


def key_of(network: Network, profile: str, own: simulate.Traffic | None = None) -> str:
    """Names the network and the senders in a store: other settings, other results."""
    plain = replace(network, file="", lines={})
    more = "" if own is None else f" {own!r}"
    return hashlib.sha256(f"{VERSION} {plain!r} {profile}{more}".encode()).hexdigest()[:16]


def one(network: Network, name: str, seed: int, profile: str, own: simulate.Traffic | None = None) -> Outcome:
    """One traffic model, or traffic of one's own, in one simulation; runs in a process of its own."""
    found = traffic.make(name, build(network), seed) if own is None else own
    return simulate.run(simulate.assemble(network, found, seed=seed, profile=profile), seed=seed)


@contextlib.contextmanager
def pool(executor: Executor | None = None, workers: int | None = None) -> Iterator[Executor]:
    """The given executor, or processes of its own that end with the block.

    When the block ends with an exception (or Ctrl-C), what has not begun is not begun any more.
    """
    if executor is not None:
        yield executor
        return
    # Not fork: the caller may have threads.
    context = multiprocessing.get_context("spawn")
    own = ProcessPoolExecutor(workers or os.cpu_count(), mp_context=context)
    try:
        yield own
    except BaseException:
        own.shutdown(wait=True, cancel_futures=True)
        raise
    own.shutdown()


@contextlib.contextmanager
def dask(address: str, *, timeout: float = 10) -> Iterator[Executor]:
    """The workers of a Dask cluster as an executor. They need `rocefabric` of the same version.

    :param address: of the scheduler, such as `tcp://10.0.0.1:8786`.
    :param timeout: seconds to wait for the scheduler.
    :raises ImportError: without `distributed`, which the extra `aiordma[fabric]` has.
    :raises OSError: if the scheduler does not answer.
    """
    from distributed import Client

    with Client(address, timeout=timeout, set_as_default=False) as client:
        yield client.get_executor(pure=False)


def work(
    jobs: Sequence[Job],
    *,
    store: Store | None = None,
    executor: Executor | None = None,
    workers: int | None = None,
    progress: Callable[[Job, Outcome, bool], None] | None = None,
) -> list[Outcome]:
    """Do all jobs; outcomes in their order.

    :param store: what is in it is taken from there, what is new is written.
    :param executor: of `concurrent.futures` or one that is like it (`dask`); by default processes of its own.
    :param workers: how many processes, if there is no executor.
    :param progress: called for each outcome, with whether it came from the store.
    :raises KeyError: if there is no such traffic model.
    """
    for each in jobs:
        if each.own is None:
            traffic.MODELS[each.name]
    found: dict[int, Outcome] = {}
    for at, job in enumerate(jobs):
        if store is not None and (old := store.get(job.key(), job.name, job.seed)) is not None:
            found[at] = old
            if progress:
                progress(job, old, True)
    missing = [at for at in range(len(jobs)) if at not in found]
    if not missing:
        return [found[at] for at in range(len(jobs))]
    with pool(executor, workers) as workshop:
        waiting = {}
        for at in missing:
            job = jobs[at]
            plain = replace(job.network, lines={})
            waiting[workshop.submit(one, plain, job.name, job.seed, job.profile, job.own)] = at
        for future in as_completed(waiting):
            job, outcome = jobs[waiting[future]], future.result()
            found[waiting[future]] = outcome
            if store is not None:
                store.put(job.key(), outcome, job.settings)
            if progress:
                progress(job, outcome, False)
    return [found[at] for at in range(len(jobs))]


def run(
    network: Network,
    names: Iterable[str | simulate.Traffic],
    *,
    seeds: Sequence[int] = (1,),
    profile: str = "sigcomm15",
    **how: Any,
) -> list[Outcome]:
    """Simulate traffic models in one network; outcomes in the order of `names` and `seeds`.

    :param names: of models, or traffic of one's own.
    :param how: as for `work`.
    :raises KeyError: if there is no such traffic model.
    """
    jobs = [job(network, each, seed, profile) for each in names for seed in seeds]
    return work(jobs, **how)
