"""How far a job is and how long it may still take.

Contract: time left = what the runs still expected would take, by the mean of this job's finished runs of the same
probe, over the number of runs at a time. An estimate, shown as one.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Iterable

# Before a probe has been seen once, it is thought to take this long.
_UNSEEN_S = 8.0


class Pace:
    """Counts runs by probe. Thread-safe."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._lock = threading.Lock()
        self._expected: Counter[str] = Counter()
        self._begun: Counter[str] = Counter()
        self._ended: Counter[str] = Counter()
        self._seconds: dict[str, list[float]] = defaultdict(list)
        self._running: dict[tuple[str, str], float] = {}  # (probe, arm) -> the part of it that is done

    def expect(self, probes: Iterable[str]) -> None:
        """Say which runs will probably be needed in all; more may begin, fewer may."""
        with self._lock:
            self._expected = Counter(probes)

    def expect_no_more(self) -> None:
        """Forget runs that were expected and turned out not to be needed."""
        with self._lock:
            self._expected = Counter(self._begun)

    def begin(self, probe: str) -> None:
        with self._lock:
            self._begun[probe] += 1

    def note(self, probe: str, arm: str) -> None:
        with self._lock:
            self._running[probe, arm] = 0.0

    def advance(self, probe: str, arm: str, done: float, total: float) -> None:
        """A probe says how far it is."""
        with self._lock:
            if (probe, arm) in self._running and total > 0:
                self._running[probe, arm] = min(1.0, max(0.0, done / total))

    def end(self, probe: str, arm: str, seconds: float, *, cached: bool) -> None:
        with self._lock:
            self._ended[probe] += 1
            self._running.pop((probe, arm), None)
            if not cached:
                self._seconds[probe].append(seconds)

    def state(self) -> tuple[int, int, str]:
        """(runs ended, runs expected, a line that says what runs and the time left)."""
        with self._lock:
            wanted = self._expected | self._begun
            left = wanted - self._ended
            seconds = sum(count * self._mean(probe) for probe, count in left.items())
            seconds -= sum(self._mean(probe) * part for (probe, _), part in self._running.items())
            seconds /= self._workers
            running = ", ".join(
                f"{probe} on {arm}" + (f" {part:.0%}" if part else "") for (probe, arm), part in self._running.items()
            )
            done, total = sum(self._ended.values()), sum(wanted.values())
        left_text = f"about {max(5, round(seconds / 5) * 5)} s left" if total > done else "weighing the evidence"
        return done, total, f"{running}; {left_text}" if running else left_text

    def _mean(self, probe: str) -> float:
        seen = self._seconds.get(probe)
        if seen:
            return sum(seen) / len(seen)
        others = [second for seconds in self._seconds.values() for second in seconds]
        return sum(others) / len(others) if others else _UNSEEN_S
