"""The report of a case as text for a terminal, from the report's JSON object.

Contract: takes the object of `lab.report` and adds nothing to it; readable from 80 columns up, with or without colour.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tui.text import words
from tui.text.grids import exponent_lines, recall_lines
from tui.text.layout import Cell, Page

Data = dict[str, Any]

# What a reader wants to know first.
_WORTH = ("culprit", "fix", "does_not_apply", "needs", "cannot_be_tested", "inconclusive", "dead", "exonerated")
_DIFF_LINES = 14
_ANSWER_LINES = 8


def report_lines(report: Data, page: Page) -> list[str]:
    """The whole report, line by line."""
    return [
        *_head(report, page),
        *_in_short([*report["candidates"], *report["stack"]], page),
        *_questions(report["questions"], page),
        *_hypotheses(report["hypotheses"], page),
        *_suspects("Suspects, most likely first", _by_tier(report["stack"]), page),
        *_suspects("Candidate fixes", report["candidates"], page),
        *recall_lines(report["cells"], page),
        *exponent_lines(report["exponents"], page),
        *_readings(report["readings"], page),
        *_assumptions(report["assumptions"], page),
        *_findings(report["findings"], page),
        *_not_verified(report["not_verified"], page),
        *_runs(report["runs"], page),
    ]


def _head(report: Data, page: Page) -> list[str]:
    base, full = report["base"], report["full"]
    lines = [page.paint(f"Case {words.one_line(report['case'])}", "strong"), *page.prose(report["symptom"])]
    lines.append("")
    ends = [
        ("base", words.word(base.get("verdict"), missing="not measured"), str(base.get("commit") or "")[:12]),
        ("full stack", words.word(full.get("verdict"), missing="not measured"), str(full.get("commit") or "")[:12]),
    ]
    lines += page.table(("end", "verdict", "commit"), ends)
    if full.get("story"):
        lines += ["", *page.prose(f"{full['story']}: {full.get('text') or ''}", tone="strong")]
    return lines


def _in_short(patches: Sequence[Data], page: Page) -> list[str]:
    """One row per verdict: which patches have it, and given what."""
    names: dict[str, list[str]] = {}
    for patch in patches:
        given = f" (given {', '.join(patch['given'])})" if patch["given"] else ""
        names.setdefault(patch["verdict"] or "", []).append(patch["name"] + given)
    judged = [verdict for verdict in _WORTH if verdict in names]
    rows = [(words.word(verdict), ", ".join(names[verdict])) for verdict in judged]
    return ["", *page.table(("verdict", "patches"), rows, prose=1)] if rows else []


def _questions(questions: Sequence[Data], page: Page) -> list[str]:
    if not questions:
        return []
    lines = page.heading("Questions, before any run")
    for question in questions:
        lines += _item(question, question["text"], page)
        answer = question["answer"].splitlines()
        for line in answer[:_ANSWER_LINES]:
            lines += page.prose(line, indent=6, hanging=4)
        if len(answer) > _ANSWER_LINES:
            lines += page.prose(f"... {len(answer) - _ANSWER_LINES} more lines", indent=6, tone="dim")
    return lines


def _hypotheses(hypotheses: Sequence[Data], page: Page) -> list[str]:
    if not hypotheses:
        return []
    lines = page.heading("Hypotheses")
    for hypothesis in hypotheses:
        lines += _item(hypothesis, hypothesis["text"], page)
        predicate = hypothesis["predicate"]
        if predicate:
            said = "{probe}.{metric} on {arm} {operator} {number:g}".format(**predicate)
            lines += page.prose(f"predicted {said}", indent=6, hanging=2, tone="dim")
        cited = words.evidence(hypothesis["evidence"])
        because = [hypothesis.get("reason"), f"by {hypothesis['by']}" if hypothesis["by"] else "", cited]
        if any(because):
            lines += page.prose("; ".join(filter(None, because)), indent=6, hanging=2)
    return lines


def _item(row: Data, text: str, page: Page) -> list[str]:
    """A numbered line: its state, then its text."""
    state = words.word(row["state"])
    first, *rest = page.prose(f"{row['id']:>3}  {state.text}: {text}", hanging=5)
    return [first.replace(state.text, page.paint(state.text, state.tone), 1), *rest]


def _by_tier(stack: Iterable[Data]) -> list[Data]:
    return sorted(stack, key=lambda patch: patch["tier"] or 99)


def _suspects(title: str, patches: Sequence[Data], page: Page) -> list[str]:
    if not patches:
        return []
    head = ("tier", "patch", "verdict", "liveness")
    rows = [
        (
            "" if patch["tier"] is None else str(patch["tier"]),
            Cell(patch["name"], "strong"),
            words.word(patch["verdict"], missing="not judged"),
            words.liveness(patch["liveness"]),
        )
        for patch in patches
    ]
    titles, *table = page.table(head, rows)
    lines = [*page.heading(title), titles]
    for line, patch in zip(table, patches, strict=True):
        lines.append(line)
        for because in filter(None, [_context(patch), *_reasons(patch)]):
            lines += page.prose(because, indent=6, hanging=2, tone="dim")
    return lines


def _context(patch: Data) -> str:
    given = [f"given {', '.join(patch['given'])}"] if patch["given"] else []
    needs = [f"needs {', '.join(patch['needs'])}"] if patch["needs"] else []
    shared = [f"judged together with {', '.join(patch['verdict_with'])}"] if patch["verdict_with"] else []
    return "; ".join([*given, *needs, *shared])


def _reasons(patch: Data) -> list[str]:
    """Why, per probe. What makes a patch dead is told once, with the other probes under which it is dead."""
    verdicts = [verdict for verdict in patch["per_probe"] if verdict["verdict"] == patch["verdict"]]
    told = [f"{_where(verdict)}: {verdict['reason']}" for verdict in verdicts]
    if patch["verdict"] != "dead" or len(verdicts) < 2:
        return told
    return [told[0], f"dead too under {', '.join(_where(verdict) for verdict in verdicts[1:])}"]


def _where(verdict: Data) -> str:
    return f"{verdict['probe']} on {verdict['background']}" if verdict["probe"] else f"{verdict['background']}"


def _readings(readings: Sequence[Data], page: Page) -> list[str]:
    if not readings:
        return []
    lines = page.heading("Readings")
    for reading in readings:
        place = f"{reading['path']}:{reading['start']}-{reading['end']}"
        live = reading["liveness"] or {}
        what = "; ".join(filter(None, [reading.get("qualname"), reading["freshness"], _ran(live, reading["sibling"])]))
        head = [(str(reading["id"]), place, words.liveness(reading["liveness"]), what)]
        lines += page.table(("id", "lines", "liveness", "what"), head, prose=3)[0 if reading is readings[0] else 1 :]
    return lines


def _ran(live: Data, sibling: Data | None) -> str:
    reason = str(live.get("reason") or "")
    if sibling:
        reason += f"; ran in its stead: {sibling['qualname']} ({sibling['path']}:{sibling['start']})"
    return reason + (f" (run {live['run']})" if live.get("run") else "")


def _assumptions(assumptions: Sequence[Data], page: Page) -> list[str]:
    if not assumptions:
        return []
    return [*page.heading("Assumptions"), *(line for row in assumptions for line in _item(row, row["text"], page))]


def _findings(findings: Sequence[Data], page: Page) -> list[str]:
    if not findings:
        return []
    lines = page.heading("Findings")
    for finding in findings:
        marks = [finding["verdict"] or ""]
        marks += [f"withdrawn: {finding['withdrawn']}"] if finding["withdrawn"] else []
        marks += [f"flagged: {finding['flagged']}"] if finding.get("flagged") else []
        cited = words.evidence(finding["evidence"])
        marks += [f"rests on {cited}"] if cited else []
        tone = "" if finding["withdrawn"] else "strong"
        lines += page.prose(f"{finding['id']:>3}  {finding['claim']}", hanging=5, tone=tone)
        lines += page.prose("; ".join(filter(None, marks)), indent=5, tone="dim")
        if finding["diff"] and not finding["withdrawn"]:
            lines += page.block(_changes(finding["diff"]), indent=7, most=_DIFF_LINES)
    return lines


def _changes(diff: str) -> str:
    """A diff without git's own header lines."""
    return "\n".join(line for line in diff.splitlines() if not line.startswith(("diff --git ", "index ")))


def _not_verified(sentences: Sequence[str], page: Page) -> list[str]:
    if not sentences:
        return []
    return [*page.heading("Not verified"), *(line for text in sentences for line in page.prose(f"- {text}", hanging=2))]


def _runs(runs: Sequence[Data], page: Page) -> list[str]:
    if not runs:
        return []
    again = sum(bool(run["cached"]) for run in runs)
    seconds = sum(run["wall_s"] or 0.0 for run in runs if not run["cached"])
    failed = [run for run in runs if run["status"] not in ("ok", "good", "bad")]
    told = f"{len(runs)} runs, {again} of them from the record; {seconds:.0f} s of probes for the rest."
    rows = [
        (
            str(run["id"]),
            run["probe"],
            words.word(run["status"]),
            f"{run['arm']}: {run.get('reason') or 'no reason given'}",
        )
        for run in failed
    ]
    return [*page.heading("Runs"), told, *page.table(("run", "probe", "status", "arm and reason"), rows, prose=3)]
