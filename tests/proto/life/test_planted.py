"""The model finds faults: each planted one, in bounded time, with the same programs in each run."""

from __future__ import annotations

import time

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import constants_from_module
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from . import end, planted, programs, test_model, wire, world
from .planted import FAULTS
from .programs import FOUND, play
from .test_model import Ending, Leaving, Returning, Streams
from .world import World

#: Which machine looks for it. What it takes longest to find says no more about the model than the others.
MACHINES: dict[str, type[RuleBasedStateMachine]] = {
    # A stream that changed its device 4,600 times found this one, and nothing else did.
    "no look-ahead": Returning,
    "freed at once": Streams,
    "a second end": Ending,
    "the wrong byte": Leaving,
    "neither moves": Returning,
}

LONG = {"no look-ahead", "the wrong byte"}

SETTINGS = settings(
    max_examples=4000,
    stateful_step_count=12,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    report_multiple_bugs=False,
    print_blob=False,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(autouse=True)
def no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """A life with a fault may also leave the table of transitions: that is not what is to be found."""
    monkeypatch.setattr(World, "note", lambda *_: None)


@pytest.fixture(autouse=True)
def same_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Examples are also drawn from constants of all modules that this process has loaded: here of these."""
    constants = type(providers._local_constants)()
    for module in (end, planted, programs, test_model, wire, world):
        constants |= constants_from_module(module)
    monkeypatch.setattr(providers, "_get_local_constants", lambda: constants)
    monkeypatch.setattr(providers, "CONSTANTS_CACHE", {})


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.long if name in LONG else ()) for name in MACHINES],
)
def test_it_is_found(name: str) -> None:
    fault = FAULTS[name]
    began = time.process_time()
    with fault.planted(), pytest.raises(Exception, match=fault.found):
        run_state_machine_as_test(MACHINES[name], settings=SETTINGS)
    assert time.process_time() - began < 20  # ten on a CPU that nobody shares


@pytest.mark.parametrize("name", FOUND)
def test_a_program_finds_it(name: str) -> None:
    fault = FAULTS[name]
    play(FOUND[name])
    with fault.planted(), pytest.raises(Exception, match=fault.found):
        play(FOUND[name])


def test_each_is_looked_for() -> None:
    assert MACHINES.keys() | FOUND.keys() == FAULTS.keys()
