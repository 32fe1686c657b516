"""Rounds of the benchmark, each in a process of its own, which may fail without an effect on the others.

What is measured comes by a file: transports, and the programs that they start, print what they like. The file
is written after each kind of measurement, so what was measured before a failure is kept.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from measure import Sample, measure

if TYPE_CHECKING:
    from measure import Effort

__all__ = ["Outcome", "in_a_process", "in_this_process"]


class Outcome(NamedTuple):
    """What one round of one protocol has measured."""

    samples: list[Sample]
    #: of all comms, at its end; None: it did not come to that
    paths: dict[str, Any] | None
    #: why it ended early, as the end of a sentence; None: it did not
    failure: str | None


def in_this_process(protocol: str, effort: Effort, result: Path) -> None:
    """Measure one round, with the outcome in the file ``result``. Its failures are in there, too."""

    def keep(samples: list[Sample], paths: dict[str, Any] | None, failure: str | None = None) -> None:
        _write(result, {"samples": samples, "paths": paths, "failure": failure})

    kept: list[Sample] = []

    def keep_all(samples: list[Sample], paths: dict[str, Any] | None) -> None:
        kept[:] = samples
        keep(samples, paths)

    try:
        measure(protocol, effort, keep_all)
    except Exception as exc:
        if not (result.exists() and _read(result).paths):  # else only its end has failed
            keep(kept, None, f"failed: {type(exc).__name__}: {exc}")
        raise


def in_a_process(protocol: str, command: list[str], limit: float) -> Outcome:
    """Have ``command``, with ``--one PROTOCOL --result FILE``, measure one round.

    :param limit: seconds after which it is ended, with its workers.
    """
    # Installers compile what they install. So the modules of this tree must not be compiled in each process.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryDirectory(prefix="bench-dask-") as directory:
        result = Path(directory) / "result.json"
        process = subprocess.Popen(
            [*command, "--one", protocol, "--result", str(result)],
            stdout=sys.stderr.fileno(),
            env=environment,
            start_new_session=True,
        )
        failure = None
        try:
            status = process.wait(timeout=limit)
            if status:
                failure = f"failed: {_told(status)}"
        except subprocess.TimeoutExpired:
            failure = f"was not done after {limit:g} s"
        finally:
            _end(process)
        outcome = _read(result) if result.exists() else Outcome([], None, None)
    return outcome._replace(failure=outcome.failure or (None if outcome.paths else failure))


def _told(status: int) -> str:
    return f"ended by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"


def _end(process: subprocess.Popen[bytes]) -> None:
    """End it with all that it has started, also what has outlived it."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def _write(path: Path, outcome: dict[str, Any]) -> None:
    new = path.with_suffix(".new")
    new.write_text(json.dumps(outcome))
    new.replace(path)


def _read(path: Path) -> Outcome:
    found = json.loads(path.read_text())
    return Outcome([Sample(*sample) for sample in found["samples"]], found["paths"], found["failure"])
