"""Search for ECN thresholds and alpha: which settings are better in nothing but worse in something else?"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import suite

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Executor

    from .model import Network
    from .simulate import Outcome, Traffic
    from .store import Store

__all__ = ["MODELS", "Trial", "apply", "tune", "usual_models"]

#: What a search simulates by default: a lot of each kind of trouble in little time.
MODELS = ("incast-8-64k", "endless-4", "websearch-40", "bursts-16-32k")
ALPHAS = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)


@dataclass(frozen=True)
class Trial:
    """One set of settings and its three costs: all are better when smaller."""

    kmin_cells: int
    kmax_cells: int
    pmax_percent: float
    alpha: float
    #: Of busy ports' capacity, the share that was not used.
    unused: float
    latency_us: float
    pauses: float
    #: Whether no other trial is as good in all and better in one.
    best: bool = False


def usual_models(network: Network) -> tuple[str, ...]:
    """`MODELS`, and the largest lasting incast that the network can have: it shows what thresholds do."""
    hosts = sum(host.count for host in network.hosts if host.roce)
    large = next((count for count in (39, 16, 8) if count < hosts), None)
    return MODELS if large is None else (*MODELS, f"endless-{large}")


def apply(network: Network, kmin: int, kmax: int, pmax_percent: float, alpha: float) -> Network:
    """The network with other settings; cells for the slowest ports."""
    ecn = dataclasses.replace(
        network.ecn, kmin_cells=kmin, kmax_cells=max(kmin, kmax), pmax_percent=pmax_percent
    )
    return dataclasses.replace(network, ecn=ecn, pfc=dataclasses.replace(network.pfc, alpha=alpha))


def costs(outcomes: Sequence[Outcome]) -> tuple[float, float, float]:
    """Unused capacity, mean of the 99th percentiles of latency, pauses. A loss costs as much as all else."""
    busy = [1 - each.throughput for each in outcomes if each.throughput >= 0]
    unused = sum(busy) / len(busy) if busy else 0.0
    lost = sum(each.lossless_drops + each.watchdog_drops for each in outcomes)
    latency = sum(each.latency_99_us for each in outcomes) / len(outcomes)
    return unused + (lost > 0), latency * (1 + (lost > 0)), float(sum(each.pauses for each in outcomes))


def _marked(trials: Sequence[Trial]) -> list[Trial]:
    def values(trial: Trial) -> tuple[float, float, float]:
        return trial.unused, trial.latency_us, trial.pauses

    def beaten(trial: Trial) -> bool:
        mine = values(trial)
        return any(
            values(other) != mine and all(one <= two for one, two in zip(values(other), mine, strict=True))
            for other in trials
        )

    return [dataclasses.replace(trial, best=not beaten(trial)) for trial in trials]


def tune(
    network: Network,
    *,
    trials: int = 40,
    models: Sequence[str | Traffic] | None = None,
    seed: int = 1,
    profile: str = "sigcomm15",
    store: Store | None = None,
    executor: Executor | None = None,
    progress: Callable[[Trial], None] | None = None,
) -> list[Trial]:
    """Search with Optuna (TPE, three goals at once); the trials in order, the best ones marked.

    Needs the extra `aiordma[fabric]`. The same seed tries the same settings.

    :param models: traffic models, or traffic of one's own; by default `usual_models`.
    :param seed: of the search, and of the first traffic; each setting meets two.
    :raises ImportError: without Optuna.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)  # a trial that fails ends the search
    found: list[Trial] = []
    names = usual_models(network) if models is None else models

    def objective(trial: Any) -> tuple[float, float, float]:
        kmin = trial.suggest_int("kmin", 1, 1000, log=True)
        kmax = kmin + trial.suggest_int("span", 20, 4000, log=True)
        pmax = trial.suggest_int("pmax", 1, 50, log=True)
        alpha = trial.suggest_categorical("alpha", ALPHAS)
        other = apply(network, kmin, kmax, pmax, alpha)
        outcomes = suite.run(
            other, names, seeds=(seed, seed + 1), profile=profile, store=store, executor=workshop
        )
        result = costs(outcomes)
        found.append(Trial(kmin, kmax, pmax, alpha, *result))
        if progress:
            progress(found[-1])
        return result

    sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=min(10, trials))
    study = optuna.create_study(directions=["minimize"] * 3, sampler=sampler)
    with suite.pool(executor) as workshop:
        study.optimize(objective, n_trials=trials)
    return _marked(found)
