"""What every step of an investigation shares: run, measure, compare, judge, and write down.

Contract: a comparison or verdict that is returned has been written to the store. Measurements pool every seed that
was run on an arm, so a step that needs more evidence runs another seed and compares again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from lab.arms import Arm
from lab.bench import Bench, Outcome, outcome_of
from lab.case import Case
from lab.compare import compare
from lab.judge import Judgement, judge
from lab.live import PatchLiveness, patch_liveness
from lab.metric import Measurement, measure
from lab.target import Probe
from store.errors import TargetError
from store.models import Comparison, Patch, PatchVerdict, Verdict


class Inquiry:
    """One investigation under way."""

    def __init__(self, case: Case, bench: Bench) -> None:
        self.case = case
        self.bench = bench
        self._liveness: dict[tuple[str, int], PatchLiveness] = {}
        self._extra_seeds: dict[tuple[str, str], list[int]] = {}
        if not case.target.probes:
            raise TargetError(
                f"{case.target.path.name} names no probe", hint="add a [probe.NAME] table with a command to it"
            )

    @property
    def primary(self) -> Probe:
        """The probe of the symptom: the first in livepath.toml."""
        return next(iter(self.case.target.probes.values()))

    @property
    def machine(self) -> dict[str, Any]:
        """Facts of the machine the runs are made on."""
        return self.bench.machine

    @property
    def standing(self) -> list[Probe]:
        """The probes that judge an arm by itself: those with `good`, and the primary."""
        return [probe for probe in self.case.target.probes.values() if probe.good is not None or probe == self.primary]

    def patch(self, name: str) -> Patch:
        return self.case.store.patch(name)

    def start(self, probe: str, *arms: Arm) -> list[Future[Outcome]]:
        return [self.bench.start(probe, arm) for arm in arms]

    def outcome(self, probe: str, arm: Arm) -> Outcome:
        return self.bench.run(probe, arm)

    def usable(self, probe: str, arm: Arm) -> bool:
        return self.outcome(probe, arm).usable

    def seeds(self, probe: str, arm: Arm) -> list[int]:
        """The seeds an arm was measured with: the first of the probe and every further one that was asked for."""
        return [self.case.target.probe(probe).seeds[0], *self._extra_seeds.get((probe, arm.name), [])]

    def measurements(self, probe: str, arm: Arm, seeds: Sequence[int] = ()) -> list[Measurement]:
        """What was measured on an arm, for all its seeds or for those named."""
        seeds = seeds or self.seeds(probe, arm)
        outcomes = [self.bench.run(probe, arm, seed=seed) for seed in seeds]
        found = [measure(self.case.store, outcome.run) for outcome in outcomes]
        return [measurement for measurement in found if measurement is not None]

    def more(self, probe: str, *arms: Arm) -> None:
        """Run one more seed on each of the arms: fresh items, which pool with the ones before."""
        known = {seed for arm in arms for seed in self._extra_seeds.get((probe, arm.name), [])}
        listed = [seed for seed in self.case.target.probe(probe).seeds[1:] if seed not in known]
        seed = listed[0] if listed else max([*known, *self.case.target.probe(probe).seeds]) + 1
        for future in [self.bench.start(probe, arm, seed=seed) for arm in arms]:
            outcome_of(future)
        for arm in arms:
            self._extra_seeds.setdefault((probe, arm.name), []).append(seed)

    def judge(self, probe: Probe, arm: Arm) -> Judgement | None:
        """The probe's own word on an arm, or None where the arm cannot be tested or the probe has no word."""
        if not self.usable(probe.name, arm):
            return None
        measurements = self.measurements(probe.name, arm)
        if probe.good is None and any(m.items or m.metrics for m in measurements):
            return None
        return judge(probe, measurements)

    def compare(self, probe: Probe, background: str, without: Arm, with_: Arm) -> Comparison:
        """Compare two arms on the seeds that both have, and write the comparison down."""
        seeds = [seed for seed in self.seeds(probe.name, without) if seed in self.seeds(probe.name, with_)]
        sides = [self.measurements(probe.name, arm, seeds) for arm in (without, with_)]
        compared = compare(probe, background, sides[0], sides[1])
        named = replace(compared.comparison, without_arm=without.name, with_arm=with_.name)
        return self.case.store.add_comparison(named)

    def compare_bracketed(self, probe: Probe, background: str, without: Arm, with_: Arm) -> Comparison:
        """As `compare`; a difference for the worse must hold when both arms have run on fresh items as well."""
        comparison = self.compare(probe, background, without, with_)
        if comparison.outcome != "worse":
            return comparison
        self.more(probe.name, without, with_)
        return self.compare(probe, background, without, with_)

    def liveness(self, patch: Patch, outcome: Outcome) -> PatchLiveness:
        """What a run of an arm with the patch proved about the patch's lines; written down once."""
        key = (patch.name, outcome.attempt_id)
        if key not in self._liveness:
            found = patch_liveness(
                self.case.git,
                patch,
                tree=outcome.run.tree,
                executed=self.case.store.executed(outcome.attempt_id),
                attempt=outcome.attempt,
                run_id=outcome.run_id,
                trace=self.case.target.trace,
            )
            self.case.store.put_changed_lines(found.lines)
            self._liveness[key] = found
        return self._liveness[key]

    def verdict(
        self,
        patch: str,
        verdict: Verdict,
        reason: str,
        *,
        probe: str = "",
        background: str = "",
        given: Iterable[str] = (),
        needs: Iterable[str] = (),
        verdict_with: Iterable[str] = (),
        control: str = "",
        comparison: Comparison | None = None,
        runs: Sequence[int] = (),
    ) -> PatchVerdict:
        """Write one verdict down."""
        return self.case.store.put_verdict(
            PatchVerdict(
                patch=patch,
                probe=probe,
                background=background,
                verdict=verdict,
                reason=reason,
                given=tuple(given),
                needs=tuple(needs),
                verdict_with=tuple(name for name in verdict_with if name != patch),
                control=control,
                comparison_id=comparison.id if comparison else None,
                runs=tuple(runs) or ((comparison.without_run, comparison.with_run) if comparison else ()),
            )
        )
