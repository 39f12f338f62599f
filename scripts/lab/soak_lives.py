# SPDX-License-Identifier: Apache-2.0
"""The processes of a soak, one after the other on the same folder, and what is left of them.

Covers starting, killing and listening, and looking at the folder from outside. What a process does
is in ``soak_life``; which of them there are, in ``soak_cache``.
"""

import json
import multiprocessing
import random
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final

from lab.soak_figures import occupied
from lab.soak_life import Orders, capacity, run

#: Forks each process from one that has imported all it needs: torch takes seconds.
_SERVER: Final = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload([run.__module__])
#: Seconds that a process lives before it is killed, at most, once it plays; and those that are
#: killed while they open the tier, once they began to.
LONGEST_LIFE_S, LONGEST_START_S = 8.0, 1.0
#: How many those are.
KILLED_EARLY: Final = 0.15
#: Seconds in which a process must say something, and in which it must end.
SILENCE_S: Final = 120.0
POLL_S: Final = 0.05
#: Of killed servers so many stats segments are kept, besides that of the one that runs.
KEPT_SEGMENTS: Final = 4


@dataclass(slots=True)
class Found:
    """What the processes of one phase said, and what was seen from outside."""

    counts: Counter[str] = field(default_factory=Counter)
    injected: Counter[str] = field(default_factory=Counter)
    calls: list[dict[str, Any]] = field(default_factory=list)
    samples: list[dict[str, float]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0
    most_bytes: int = 0


class Lives:
    """Processes in ``folder``, whose tier lies in ``disk``; ``tell`` is told how it goes."""

    def __init__(self, folder: Path, disk: Path, dice: random.Random) -> None:
        self.found = Found()
        self._folder, self._disk, self._dice = folder, disk, dice
        self._quota = 0

    def live(self, orders: Orders, *, kill: bool) -> None:
        """One process, to its end or until it is killed."""
        self._quota = capacity(orders.layout)
        out, log = self._folder / "said", self._folder / "log"
        out.write_bytes(b"")
        process = _SERVER.Process(target=run, args=(orders.text(), str(out), str(log)), daemon=True)
        process.start()
        try:
            killed = self._watch(process, Listener(out), kill=kill)
        finally:
            process.kill()
            process.join()
        self._take(Listener(out), killed=killed, code=process.exitcode, log=log)
        process.close()

    def _watch(self, process: BaseProcess, said: "Listener", *, kill: bool) -> bool:
        """Whether it was killed: at a random moment, or because it said nothing any more."""
        early = self._dice.random() < KILLED_EARLY
        lives = self._dice.uniform(0, LONGEST_START_S if early else LONGEST_LIFE_S)
        end: float | None = None
        heard = time.monotonic()
        while process.is_alive():
            now = time.monotonic()
            events = said.new()
            heard = now if events else heard
            for event in events:
                self._look(event)
                if kill and event["event"] == ("opening" if early else "ready"):
                    end = now + lives
            if end is not None and now >= end:
                process.kill()
                self.found.counts["kills"] += 1
                return True
            if now > heard + SILENCE_S:
                self.found.problems.append(f"a process said nothing for {SILENCE_S:.0f} s")
                return True
            time.sleep(POLL_S)
        return False

    def _look(self, event: Mapping[str, Any]) -> None:
        """From outside, while the process runs."""
        taken = occupied(self._disk)
        self.found.most_bytes = max(self.found.most_bytes, taken)
        if taken > self._quota:
            self.found.problems.append(f"the tier takes {taken} bytes of {self._quota}")

    def _take(self, said: "Listener", *, killed: bool, code: int | None, log: Path) -> None:
        """Sum up what a process said before it ended."""
        found = self.found
        last: dict[str, Any] = {}
        ended = False
        for event in said.new():
            if event["event"] == "looked":
                self._take_look(event)
            elif event["event"] == "ready" and len(event["shared"]) > 1 + KEPT_SEGMENTS:
                found.problems.append(f"left in shared memory: {', '.join(event['shared'])}")
            elif event["event"] == "played":
                last = event
                found.samples += [event["sample"]] if event["sample"] else []
            ended |= event["event"] == "end"
            found.problems += event.get("problems", ()) if event["event"] == "end" else ()
        if last:
            found.counts.update(last["counts"])
            found.injected.update(last["injected"])
            found.calls.append(last["calls"])
            found.problems += last["problems"]
        found.counts["lives"] += 1
        if not killed and (code or not ended):
            found.problems.append(f"a process ended with {code}: {_tail(log)}")

    def _take_look(self, event: Mapping[str, Any]) -> None:
        counts, lost = self.found.counts, event["missing"] + event["unreadable"]
        counts.update({"looked": event["checked"], "lost": lost, "wrong": event["wrong"]})
        if lost or event["wrong"] or event["left"]:
            self.found.problems.append(f"after a restart: {dict(event)}")


class Listener:
    """What a process says in a file, an object a line; the last one may be cut off."""

    def __init__(self, path: Path) -> None:
        self._path, self._read = path, 0

    def new(self) -> list[dict[str, Any]]:
        with self._path.open("rb") as file:
            file.seek(self._read)
            whole = file.read().rpartition(b"\n")[0]
        self._read += len(whole) + bool(whole)
        return [json.loads(line) for line in whole.splitlines()]


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-40:])


@contextmanager
def small_disk(folder: Path, nbytes: int) -> Iterator[Path | None]:
    """A file system of its own in a file in ``folder``; None where we may not mount one."""
    image, where = folder / "image", folder / "small"
    where.mkdir()
    with image.open("wb") as file:
        file.truncate(nbytes)
    make = ["mkfs.ext4", "-q", "-m", "0", str(image)]
    if not (_done(make) and _done(["mount", "-o", "loop", str(image), str(where)])):
        yield None
        return
    try:
        yield where
    finally:
        subprocess.run(["umount", str(where)], check=True)
        image.unlink()


def _done(command: list[str]) -> bool:
    try:
        return not subprocess.run(command, capture_output=True, check=False).returncode
    except FileNotFoundError:
        return False
