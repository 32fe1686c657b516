"""Programs for two ends, as lists: of a seed, or written down because they found something."""

from __future__ import annotations

from random import Random
from typing import TypeAlias

from aiordma.proto.codes import Code

from .world import World

__all__ = ["FOUND", "ROW", "Program", "play", "program"]

Step: TypeAlias = tuple[object, ...]
Program: TypeAlias = tuple[dict[str, object], list[Step]]


def step(world: World, name: str, *arguments: int | str | bool) -> None:
    """One step of a program."""
    match name, arguments:
        case "turns", (int(count), int(seed)):
            world.turns(count, Random(seed))
        case "break tcp", ():
            world.break_tcp()
        case "stall", (bool(answers),):
            world.stall(host_answers=answers)
        case "on tcp", ():
            world.leave_rdma()
        case _, (int(who), *rest):
            end = world.ends[who]
            match name, rest:
                case "write", [int(count)]:
                    if not (end.finished_sending or end.closed or end.dead):
                        end.wants += count
                        end.send()
                case "read", [int(count)]:
                    end.receive(count)
                case "eof", []:
                    end.send_eof()
                case ("close" | "abort") as how, []:
                    world.end_user(who, how)
                case "attach", []:
                    world.attach(who)
                case "break link", []:
                    world.break_link(who)
                case "die", []:
                    world.die(who)
                case "refuse", [] if not end.dead:
                    end.work(fail=True)
                case "leave", [] if not end.dead:
                    end.do("leave", Code.SWITCHED, "asked for", world.now)
                case "rejoin", [] if not end.dead:
                    end.do("rejoin", world.now)
                case _:
                    assert end.dead, name


def play(chosen: Program) -> World:
    """Run a program to the end of both lives."""
    options, steps = chosen
    world = World(**options)  # type: ignore[arg-type]
    for name, *arguments in steps:
        step(world, str(name), *arguments)  # type: ignore[arg-type]
    world.finish()
    return world


def program(seed: int) -> Program:
    """A random one."""
    random = Random(seed)
    options: dict[str, object] = {
        "ring_bytes": random.choice([8, 64]),
        "capacity": random.choice([60, 300]),
        "mirror": random.random() < 0.5,
        "shows_end": random.random() < 0.5,
        "stubborn": random.choice([None, 0, 1]),
    }
    steps: list[Step] = random.choice([[], [("attach", 0)], [("attach", 0), ("attach", 1)], [("on tcp",)]])
    harm = random.random() < 0.4
    for _ in range(random.randrange(30)):
        who = random.randrange(2)
        choice: list[Step] = [
            ("write", who, random.choice([1, 10, 100, 700])),
            ("read", who, random.choice([1, 20, 200])),
            ("attach", who),
            ("break link", who),
            *[("leave", who), ("rejoin", who)] * 2,
            *[("turns", random.choice([1, 3, 10, 30, 100]), random.randrange(1000))] * 6,
        ]
        if random.random() < 0.3:
            choice += [("eof", who), ("close", who)]
        if harm and random.random() < 0.4:
            choice += [("abort", who), ("break tcp",), ("die", who), ("stall", random.random() < 0.5)]
        if random.random() < 0.2:
            choice.append(("refuse", who))
        steps = [*steps, random.choice(choice)]
    return options, steps


#: Programs that found a fault which the model's random ones seldom meet (:mod:`.planted`).
FOUND: dict[str, Program] = {
    # Both attach, one aborts on the link while the other leaves: what that says then is said on TCP, and
    # refused.
    "not said again": ({}, [("attach", 0), ("attach", 1), ("abort", 1), ("leave", 0)]),
    # A half-closed end has left its rings and freed its own when TCP breaks, and the other end has not heard
    # of it.
    "goes on as before": (
        {"mirror": True},
        [
            ("attach", 0), ("attach", 1), ("eof", 0), ("leave", 1), ("write", 1, 10), ("turns", 10, 499),
            ("break tcp",),
        ],
    ),
}  # fmt: skip
#: A row of the table that random programs hardly meet: an end takes its word back, since TCP has broken,
#: says on the link what it has read since, and that comes before the other end's rings have quiesced.
ROW: Program = (
    {"ring_bytes": 64},
    [
        ("attach", 0), ("attach", 1), ("leave", 1), ("write", 0, 100), ("turns", 3, 776), ("turns", 3, 806),
        ("break tcp",),
    ],
)  # fmt: skip
