"""The thread that stands in for the event loop, in C: three threads in orders that are drawn (stand_in.c)."""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.processes import FULL_PATIENCE
from tests.proto.test_smcr_link import MESSAGES, client

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiordma.proto.smcr_link import SmcrLink

ROOT = Path(__file__).parents[2]
#: More seeds find more.
ROUNDS = int(os.environ.get("AIORDMA_TEST_ROUNDS", "1"))
CONFIRM_LINK, DELETE_LINK, NEGATIVE = 1, 4, 0x20
SANITIZERS = {"plain": [], "address": ["-fsanitize=address,undefined"], "thread": ["-fsanitize=thread"]}


@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_the_queue_has_one_owner_at_a_time(tmp_path: Path, sanitizer: str) -> None:
    run(tmp_path, *SANITIZERS[sanitizer])


def test_what_is_kept_is_bounded(tmp_path: Path) -> None:
    run(tmp_path, "-DAIO_STAND_IN_COPIES=2")


def compiled(tmp_path: Path, source: str, *more: str) -> Path:
    program = tmp_path / "program"
    flags = ["-std=gnu11", "-D_GNU_SOURCE", "-O1", "-g", "-Wall", "-Wextra", "-Werror", *more]
    flags += [f"-I{ROOT}", "-o", str(program)]
    subprocess.run(["cc", *flags, Path(__file__).with_name(source), "-lpthread"], check=True)
    return program


def test_its_answers_are_those_of_the_loop(tmp_path: Path) -> None:
    """Any bytes: the two answer alike, and the thread reads nothing behind the message.

    What takes a decision is the loop's: it refuses keys that it does not know, and ends a link for what is no
    message.
    """
    program = compiled(tmp_path, "stand_in_answers.c", "-fsanitize=address,undefined")
    messages = list(fuzzed(random.Random(7), 4000 * ROUNDS))
    framed = b"".join(len(each).to_bytes(2, "little") + each for each in messages)
    done = subprocess.run([program], input=framed, capture_output=True, check=False, timeout=FULL_PATIENCE)
    assert done.returncode == 0, done.stderr.decode()
    lines = done.stdout.decode().splitlines()
    assert len(lines) == len(messages)
    alike = 0
    for message, line in zip(messages, lines, strict=True):
        link = active()
        events = link.receive(message, 2.0)
        answer = link.next_message()
        if line == "-" or (events and answer is None):
            continue
        theirs = bytes.fromhex(line)
        assert answer is not None, message.hex()
        if answer[3] & NEGATIVE and not theirs[3] & NEGATIVE:
            continue
        assert answer == theirs, message.hex()
        alike += 1
    assert alike > 500
    # The other way round: what the loop answers is the thread's, too, but for messages that make a link or
    # end it, and Request Add Link of version 1.
    for message, line in zip(messages, lines, strict=True):
        link = active()
        if not link.receive(message, 2.0) and link.next_message() is not None:
            left = message[0] & 15 in (CONFIRM_LINK, DELETE_LINK) or message[0] == 5
            assert line != "-" or left, message.hex()


def active() -> SmcrLink:
    link = client()
    link.add_key(0x0361, 0)
    return link


def fuzzed(rng: random.Random, count: int) -> Iterator[bytes]:
    """Requests of both versions, some of them changed, some longer, and some that are anything."""
    for _ in range(count):
        data = bytearray(rng.choice(MESSAGES))
        if rng.random() < 0.2:
            data += rng.randbytes(rng.choice([1, 4, 28, 44, 500]))
            data[1:3] = len(data).to_bytes(2, rng.choice(["little", "big"]))
        elif rng.random() < 0.3:
            data[:3] = bytes((data[0] & 15, len(data), 0))
        for _ in range(rng.choice([0, 0, 1, 3])):
            data[rng.randrange(len(data))] = rng.randrange(256)
        yield rng.randbytes(rng.randrange(44, 100)) if rng.random() < 0.1 else bytes(data)


def run(tmp_path: Path, *more: str) -> None:
    program = compiled(tmp_path, "stand_in.c", "-DAIO_STAND_IN_BUSY_MS=1", *more)
    for seed in range(1, 3 * ROUNDS + 1):
        done = subprocess.run(
            [program, str(seed)], capture_output=True, text=True, check=False, timeout=FULL_PATIENCE
        )
        assert done.returncode == 0, f"seed {seed}: {done.stdout}{done.stderr}"
        taken, answered = int(done.stdout.split()[0]), int(done.stdout.split()[4])
        assert taken > 0
        assert answered > 0
