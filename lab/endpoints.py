"""The two ends first: base and full stack, each judged by itself, with a noise floor from running one of them twice.

Contract: the four cases are named here and nowhere else: a regression of the stack (good, bad), a fault older than
the stack (bad, bad), a stack that mends (bad, good), and not reproduced (good, good), which states what drop would
have been seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lab.arms import BASE, FULL, Arm
from lab.bench import USABLE
from lab.inquiry import Inquiry
from lab.judge import detectable_drop
from store.errors import RunError

State = Literal["good", "bad", "unclear", "cannot_be_tested"]
Story = Literal["regression", "older than the stack", "mended by the stack", "not reproduced", "undecided"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoints:
    base: State
    full: State
    story: Story
    text: str


def measure_endpoints(inquiry: Inquiry) -> Endpoints:
    """Judge base and full stack on the probe of the symptom.

    Raises:
        RunError: neither end can be tested, so there is nothing to compare.
    """
    probe = inquiry.primary
    inquiry.start(probe.name, BASE, FULL)
    base, base_text = _state(inquiry, BASE)
    full, full_text = _state(inquiry, FULL)
    if base == full == "cannot_be_tested":
        attempt = inquiry.outcome(probe.name, BASE).attempt
        raise RunError(
            f"`{probe.name}` can be tested neither on base nor on the full stack: {attempt.reason}",
            hint=f"see what it printed: {inquiry.case.folder / attempt.folder / 'stderr'}",
        )
    story = _story(base, full)
    if story == "undecided" and "cannot_be_tested" not in (base, full):
        story = _by_difference(inquiry)
    text = f"base {base_text}; full {full_text}"
    if story == "not reproduced":
        drop = detectable_drop(probe, inquiry.measurements(probe.name, FULL))
        text += f"; a drop of {drop:.2g} or more would have been seen" if drop is not None else ""
    if floor := noise_floor(inquiry, BASE if base != "cannot_be_tested" else FULL):
        text += f"; {floor}"
    ends = Endpoints(base=base, full=full, story=story, text=text)
    inquiry.case.store.set_meta("endpoints", {"base": base, "full": full, "story": story, "text": text})
    return ends


def _state(inquiry: Inquiry, arm: Arm) -> tuple[State, str]:
    outcome = inquiry.outcome(inquiry.primary.name, arm)
    if not outcome.usable:
        return "cannot_be_tested", f"cannot be tested ({outcome.attempt.reason})"
    judgement = inquiry.judge(inquiry.primary, arm)
    if judgement is None:
        return "unclear", "has no absolute judgement"
    return judgement.state, judgement.text


def _story(base: State, full: State) -> Story:
    match base, full:
        case "good", "bad":
            return "regression"
        case "bad", "bad":
            return "older than the stack"
        case "bad", "good":
            return "mended by the stack"
        case "good", "good":
            return "not reproduced"
        case _:
            return "undecided"


def _by_difference(inquiry: Inquiry) -> Story:
    """Without a clear judgement of each end, the paired difference of the two decides."""
    comparison = inquiry.compare(inquiry.primary, "base", BASE, FULL)
    return {"worse": "regression", "better": "mended by the stack", "equivalent": "not reproduced"}.get(
        comparison.outcome, "undecided"
    )  # type: ignore[return-value]


def noise_floor(inquiry: Inquiry, arm: Arm) -> str:
    """Run the same tree, probe and seed twice (A/A) and say in words what moved."""
    probe, store = inquiry.primary, inquiry.case.store
    outcome = inquiry.bench.run(probe.name, arm, again=True)
    counting = [attempt for attempt in store.attempts(outcome.run_id) if attempt.status in USABLE]
    if len(counting) < 2:
        return ""
    pair = (counting[0], counting[-1])
    items = [{item.item: item.score for item in store.items(attempt.id)} for attempt in pair]
    values = [{(m.name, str(m.tags)): m.value for m in store.metrics(attempt.id)} for attempt in pair]
    if items[0]:
        moved = sum(items[0][key] != items[1].get(key) for key in items[0])
        text = f"A/A on {arm.name}: {moved} of {len(items[0])} items moved"
    elif values[0]:
        moved = sum(values[0][key] != values[1].get(key) for key in values[0])
        text = f"A/A on {arm.name}: {moved} of {len(values[0])} values moved"
    else:
        moved = int(pair[0].status != pair[1].status)
        text = f"A/A on {arm.name}: the exit code {'moved' if moved else 'held'}"
    store.set_meta("noise_floor", {"arm": arm.name, "probe": probe.name, "moved": moved, "text": text})
    return text
