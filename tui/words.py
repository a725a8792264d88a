"""Rows of a case in words: one place for how a number, a verdict or a liveness is said on screen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tui.widgets.signs import LIVENESS, state_sign, verdict_sign
from tui.widgets.spans import Span, Spans

if TYPE_CHECKING:
    from store.models import Comparison, Hypothesis, PatchVerdict, Predicate, ReadingLiveness
    from tui.view import CaseView, PatchLiveness, RunView, SuspectView


def number(value: float | None, *, sign: bool = False) -> str:
    """A number as short as it stays useful."""
    if value is None:
        return "?"
    text = f"{value:+.3f}" if sign else f"{value:.3f}"
    if 0 < abs(value) < 0.001:
        text = f"{value:+.1e}" if sign else f"{value:.1e}"
    return text


def comparison_words(comparison: Comparison, *, short: bool = False) -> str:
    """Difference, interval, n: a number never comes without its conditions."""
    words = number(comparison.difference, sign=True)
    if not short and comparison.low < comparison.high:
        words += f" [{number(comparison.low, sign=True)}, {number(comparison.high, sign=True)}]"
    n = f"n={comparison.n}" + (" (deterministic)" if comparison.deterministic and not short else "")
    return f"{words} {n}" if short else f"{comparison.metric} {words} {n}"


def verdict_words(verdict: PatchVerdict) -> str:
    """What comes with a verdict: what is needed, what makes it dead, who shares it, what proves the sight."""
    parts = []
    if verdict.needs:
        parts.append("needs " + ", ".join(verdict.needs))
    if verdict.given:
        parts.append("given " + ", ".join(verdict.given))
    if verdict.verdict_with:
        parts.append("together with " + ", ".join(verdict.verdict_with))
    if verdict.control:
        parts.append(f"control {verdict.control} was caught")
    return "; ".join(parts)


def liveness_span(liveness: PatchLiveness | None) -> Span:
    """How many acting lines of a patch ran, in nine cells."""
    if liveness is None:
        return ("· no run", "dim")
    if not liveness.acting:
        return ("◐ none", "cool")
    sign = LIVENESS[liveness.word]
    if sign.letter in ("L", "D"):
        return (f"{sign.glyph} {liveness.executed}/{liveness.acting}", sign.tone)
    return sign.span


def evidence_words(suspect: SuspectView, view: CaseView, *, short: bool = False) -> str:
    """The strongest evidence behind a patch's verdict, in one line."""
    verdict = suspect.verdict
    if verdict is None:
        return suspect.patch.reason
    said = verdict_words(verdict)
    compared = next((rule.comparison for rule in view.ruled if rule.verdict is verdict), None)
    if verdict.verdict in ("dead", "needs"):
        names = ", ".join(verdict.given or verdict.needs)
        return names if short and names else said or verdict.reason
    if compared is not None:
        words = comparison_words(compared, short=short)
        return words if short or not verdict.probe else f"{verdict.probe}: {words}"
    return verdict.reason or said


def predicate_words(predicate: Predicate) -> str:
    return f"{predicate.probe}.{predicate.metric} on {predicate.arm} {predicate.operator} {predicate.number:g}"


def prediction_words(hypothesis: Hypothesis) -> str:
    if hypothesis.predicate is not None:
        return predicate_words(hypothesis.predicate)
    return "judged by a person"


def run_value(view: RunView) -> str:
    """What a run measured, in a few cells."""
    measured = view.measured
    if measured is None:
        return ""
    if measured.mean is not None:
        return f"{number(measured.mean)} n={measured.items}"
    untagged = [metric for metric in measured.metrics if not metric.tags] or list(measured.metrics)
    if not untagged:
        return ""
    metric = untagged[0]
    # The shared branch carries no factor: its exponents are 0 and would widen the range for nothing.
    same = [m.value for m in measured.metrics if m.name == metric.name and m.tags.get("branch") != "shared"]
    low, high = min(same, default=metric.value), max(same, default=metric.value)
    if high - low < 0.005:
        return f"{metric.name} {number(high)}"
    return f"{metric.name} {low:.2f}..{high:.2f}"


def liveness_words(liveness: ReadingLiveness | None) -> Span:
    if liveness is None:
        return ("· no run yet", "dim")
    return LIVENESS[liveness.word].span


def run_name(view: CaseView, run_id: int | None) -> str:
    """`run 7 (needle on full+fix)`."""
    found = view.run(run_id) if run_id is not None else None
    return f"run {run_id} ({found.run.probe} on {found.run.arm})" if found else f"run {run_id}"


def evidence_line(view: CaseView, evidence: Sequence[dict[str, object]]) -> str:
    """Evidence rows of a hypothesis, question or finding: what each one is, in words."""
    parts = []
    for row in evidence:
        kind, id = str(row.get("kind", "")), row.get("id")
        if kind == "run" and isinstance(id, int):
            parts.append(run_name(view, id))
        elif kind == "reading" and isinstance(id, int) and (reading := view.reading(id)):
            parts.append(f"reading {id} ({reading.reading.path}:{reading.reading.start})")
        elif "path" in row:
            parts.append(f"{row['path']}:{row.get('start', '')}")
        elif id is not None:
            parts.append(f"{kind} {id}")
        elif row.get("text"):
            parts.append(str(row["text"]))
    return ", ".join(dict.fromkeys(parts))


def suspect_page(suspect: SuspectView, view: CaseView) -> list[Spans]:
    """Everything on record about one patch."""
    patch = suspect.patch
    sign = verdict_sign(suspect.verdict.verdict if suspect.verdict else None)
    page: list[Spans] = [
        ((f"{patch.name}  ", "strong"), sign.span),
        ((patch.subject, "plain"),),
        ((_where(suspect), "dim"),),
    ]
    if patch.reason:
        page.append((("why suspected: ", "dim"), (patch.reason, "plain")))
    page.append(())
    live = suspect.liveness
    if live is None:
        page.append((("liveness: ", "dim"), ("no run with it yet", "dim")))
    else:
        ran = f"{live.executed} of its {live.acting} acting lines ran in {run_name(view, live.run_id)}"
        page.append((("liveness: ", "dim"), LIVENESS[live.word].span, (f"  {ran}", "plain")))
    for rule in view.ruled:
        if rule.verdict.patch != patch.name:
            continue
        page.append(())
        page.extend(verdict_page(rule.verdict, rule.comparison, view))
    return page


def _where(suspect: SuspectView) -> str:
    patch = suspect.patch
    where = {"stack": f"position {patch.position + 1} of the stack", "candidate": "candidate fix", "control": "control"}
    commit = f", commit {patch.commit[:12]}" if patch.commit else f", {patch.source}" if patch.source else ""
    tier = f", tier {patch.tier}" if patch.tier else ""
    return where[patch.role] + commit + tier


def verdict_page(verdict: PatchVerdict, comparison: Comparison | None, view: CaseView) -> list[Spans]:
    """One verdict with its evidence."""
    where = " on ".join(part for part in (verdict.probe, verdict.background) if part)
    page: list[Spans] = [(verdict_sign(verdict.verdict).span, (f"  {where}", "head"))]
    if verdict.reason:
        page.append(((f"  {verdict.reason}", "plain"),))
    if comparison is not None:
        page.append(((f"  {comparison_words(comparison)}", "plain"),))
        page.append(
            ((f"  {comparison.with_arm} against {comparison.without_arm}, margin {comparison.margin:g}", "dim"),)
        )
    said = verdict_words(verdict)
    if said and said not in verdict.reason:
        page.append(((f"  {said}", "plain"),))
    if verdict.runs:
        page.append(((f"  {', '.join(run_name(view, id) for id in verdict.runs)}", "dim"),))
    return page


def hypothesis_page(hypothesis: Hypothesis, view: CaseView) -> list[Spans]:
    page: list[Spans] = [
        ((hypothesis.text, "strong"),),
        (state_sign(hypothesis.state).span, (f"  by {hypothesis.by}" if hypothesis.by else "", "dim")),
        (),
        (("prediction: ", "dim"), (prediction_words(hypothesis), "plain")),
    ]
    if hypothesis.refuted_if:
        page.append((("refuted if: ", "dim"), (hypothesis.refuted_if, "plain")))
    if hypothesis.reason:
        page.append((("because: ", "dim"), (hypothesis.reason, "plain")))
    if evidence := evidence_line(view, hypothesis.evidence):
        page.append((("evidence: ", "dim"), (evidence, "plain")))
    return page


def case_page(view: CaseView) -> list[Spans]:
    """The case itself: what is wrong, where, on which machine, how far it is."""
    info = view.info
    page: list[Spans] = [
        ((info.symptom, "strong"),),
        (),
        (("repository  ", "dim"), (info.repo, "plain")),
        (("base        ", "dim"), (info.base, "plain")),
        (("head        ", "dim"), (info.head, "plain")),
        (("made        ", "dim"), (f"{info.created_utc} by Livepath {info.livepath_version}", "plain")),
        (),
        (("Machine", "head"),),
    ]
    page += [((f"  {key:<12}", "dim"), (str(value), "plain")) for key, value in sorted(info.machine.items())]
    page += [(), (("Jobs", "head"),)]
    for job in view.jobs:
        page.append((state_sign(job.state).span, (f"  {job.kind} {job.id}: {job.message or job.note}", "plain")))
    return page
