"""The report as Markdown for a pull request: symptom, rule-out table, path evidence, folded diffs, not verified.

Contract: takes the JSON of `build_report` and nothing else; every foreign text goes through `markdown_text`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lab.markdown_text import block, bullets, code, escape, folded, prose, section, table

Data = Mapping[str, Any]

_VERDICTS = {
    "culprit": "**culprit**",
    "fix": "**fix**",
    "does_not_apply": "does not apply",
    "cannot_be_tested": "cannot be tested",
}


def to_markdown(report: Data) -> str:
    """The whole page."""
    parts = [
        f"# {escape(report['case'])}",
        escape(report["symptom"]),
        _ends(report),
        section("Ruled out, and not", _patches(report)),
        section("Findings", _findings(report["findings"])),
        section("Path evidence", _paths(report)),
        section("Recall by context length", _lengths(report["cells"])),
        section("How often the constant is applied", _exponents(report["exponents"])),
        section("Bisects", _bisects(report["bisects"])),
        section("Hypotheses", _hypotheses(report["hypotheses"])),
        section("Questions, answered before any run", _questions(report["questions"])),
        section("Not verified", bullets(prose(line) for line in report["not_verified"])),
        section("To repeat it", _repeat(report)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _ends(report: Data) -> str:
    base, full = report["base"], report["full"]
    ends = (
        f"Base {code(_short(base['commit']))}: {_said(base['verdict'])}. "
        f"Full stack {code(_short(full.get('commit')))}: {_said(full['verdict'])}."
    )
    story = full.get("story")
    return f"{ends} **{escape(story).capitalize()}.** {prose(full.get('text') or '')}".strip() if story else ends


def _patches(report: Data) -> str:
    rows = [*_by_tier(report["stack"]), *report["candidates"]]
    return table(
        ("patch", "tier", "verdict", "what shows it", "its lines"),
        [(code(p["name"]), str(p["tier"] or "candidate"), _verdict(p), _shown_by(p), _lines(p)) for p in rows],
    )


def _by_tier(patches: Sequence[Data]) -> list[Data]:
    return sorted(patches, key=lambda patch: patch["tier"] or 99)


def _verdict(patch: Data) -> str:
    text = _said(patch["verdict"])
    if patch["given"]:
        text += f" given {', '.join(code(fact) for fact in patch['given'])}"
    if patch["verdict_with"]:
        text += f", together with {', '.join(map(code, patch['verdict_with']))}"
    if patch["needs"]:
        text += f"; needs {', '.join(map(code, patch['needs']))}"
    return text


def _shown_by(patch: Data) -> str:
    lines = [
        f"{code(v['probe'])} on {code(v['background'])}: {prose(v['reason'])}" if v["probe"] else prose(v["reason"])
        for v in patch["per_probe"]
        if v["verdict"] == patch["verdict"]
    ]
    return "<br>".join(dict.fromkeys(lines))


def _lines(patch: Data) -> str:
    live = patch["liveness"]
    if live is None:
        return "no run"
    return f"{live['executed']} of {live['acting']} acting lines executed (run {live['run']})"


def _findings(findings: Sequence[Data]) -> str:
    return "\n\n".join(_finding(finding) for finding in findings)


def _finding(finding: Data) -> str:
    claim = prose(finding["claim"])
    if finding["withdrawn"]:
        claim = f"~~{claim}~~ Withdrawn: {prose(finding['withdrawn'])}"
    if finding["flagged"]:
        claim += f" **No longer holds as it stands:** {prose(finding['flagged'])}"
    text = f"{finding['id']}. {claim} {_evidence(finding['evidence'])}".rstrip()
    if finding["diff"] and not finding["withdrawn"]:
        name = escape(finding["patch"] or _short(finding["patch_id"]))
        text += "\n\n" + folded(f"diff of {name}", block(finding["diff"], "diff"))
    return text


def _evidence(evidence: Iterable[Data]) -> str:
    by_kind: dict[str, list[str]] = {}
    for one in evidence:
        if one.get("id") is not None:
            by_kind.setdefault(str(one.get("kind", "evidence")), []).append(str(one["id"]))
    told = "; ".join(f"{kind} {', '.join(ids)}" for kind, ids in by_kind.items())
    return f"({escape(told)})" if told else ""


def _paths(report: Data) -> str:
    lines = []
    for reading in report["readings"]:
        where = code(f"{reading['path']}:{reading['start']}-{reading['end']}")
        live, sibling = reading["liveness"], reading["sibling"]
        word = escape(live["word"].replace("_", " ")) if live else "no run says"
        line = f"{where} {escape(reading['qualname'])}: {word}"
        if live:
            line += f" in run {live['run']}; {prose(live['reason'])}"
        if sibling:
            ran = f"{sibling.get('path')}:{sibling.get('start')}-{sibling.get('end')}"
            line += f"; what ran is {code(sibling.get('qualname') or ran)} ({code(ran)})"
        lines.append(f"{line}; {escape(reading['freshness'])}")
    return bullets(lines)


def _lengths(cells: Sequence[Data]) -> str:
    lengths = sorted({cell["length"] for cell in cells})
    arms = dict.fromkeys((cell["probe"], cell["arm"]) for cell in cells)
    rows = []
    for probe, arm in arms:
        row = [code(probe), code(arm)]
        for length in lengths:
            here = [c for c in cells if (c["probe"], c["arm"], c["length"]) == (probe, arm, length)]
            right, n = sum(c["ok"] for c in here), sum(c["n"] for c in here)
            row.append(f"{right / n:.2f} (n {n})" if n else "")
        rows.append(row)
    return table(("probe", "arm", *(f"{length:g}" for length in lengths)), rows)


def _exponents(rows: Sequence[Data]) -> str:
    """One line per arm: all right, or each layer that is not."""
    lines = []
    for arm in dict.fromkeys(row["arm"] for row in rows):
        mine = [row for row in rows if row["arm"] == arm]
        wrong = [
            f"layer {escape(row['layer'])}, {escape(row['phase'])}, {escape(row['branch'])}: "
            f"{_number(row['value'])} ({escape(row['reading'])})"
            for row in mine
            if row["reading"] != "right"
        ]
        lines.append(f"{code(arm)}: " + ("; ".join(wrong) if wrong else f"right in all {len(mine)} rows"))
    return bullets(lines)


def _bisects(bisects: Iterable[Data]) -> str:
    return table(
        ("probe", "against", "what came of it", "runs"),
        [
            (code(b["probe"]), code(b["background"]), escape(b["text"] or b["verdict"]), str(len(b["runs"])))
            for b in bisects
        ],
    )


def _hypotheses(hypotheses: Sequence[Data]) -> str:
    lines = []
    for h in hypotheses:
        line = f"{escape(h['state'].replace('_', ' '))}: {prose(h['text'])}"
        if p := h["predicate"]:
            line += ", that is " + code(f"{p['probe']}.{p['metric']} on {p['arm']} {p['operator']} {p['number']}")
        lines.append(line + (f"; {prose(h['reason'])}" if h["reason"] else ""))
    return bullets(lines)


def _questions(questions: Sequence[Data]) -> str:
    answered = [question for question in questions if question["state"] == "answered"]
    return "\n\n".join(folded(escape(q["text"]), block(q["answer"])) for q in answered)


def _repeat(report: Data) -> str:
    machine = report["machine"]
    facts = [f"{name} {machine[name]}" for name in ("cpu", "cpus", "python", "torch", "triton") if machine.get(name)]
    facts += [str(fact) for fact in machine.get("given") or []]
    lines = [escape(f"Livepath {report['livepath']}" + (f"; {', '.join(facts)}" if facts else ""))]
    commands = dict.fromkeys(run["command"] for run in report["runs"] if run["command"])
    if commands:
        lines.append(folded(f"{len(commands)} commands", block("\n".join(commands), "sh")))
    return "\n\n".join(lines)


def _said(verdict: str | None) -> str:
    return _VERDICTS.get(verdict or "", escape((verdict or "not measured").replace("_", " ")))


def _short(commit: str | None) -> str:
    return (commit or "none")[:12]


def _number(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, (int, float)) else str(value)
