"""The sight table: every probe held against every planted fault of the target.

Contract: measured on the full stack with the fix, where a fix is found, since a fault that is there already hides
others. The rows are kept with the case; `livepath demo --sight` prints them.
"""

from __future__ import annotations

from lab.arms import BASE, FIX, FULL
from lab.fixes import try_candidates
from lab.inquiry import Inquiry
from lab.sight import sight


def measure_table(inquiry: Inquiry) -> str:
    """Hold every probe against every planted fault on the fullest background with headroom; returns one line."""
    fix = inquiry.case.store.meta("fix")
    if fix is None:
        fix = try_candidates(inquiry, [BASE, FULL])
    inquiry.bench.fix = fix
    background = FULL.with_(FIX) if fix else FULL
    pairs = [
        (probe, control)
        for probe in inquiry.case.target.probes.values()
        for control in inquiry.case.store.patches(role="control")
        if inquiry.bench.applies(background.with_(control.name))
    ]
    inquiry.bench.pace.expect([probe.name for probe, _ in pairs] + list(inquiry.case.target.probes))
    for probe, control in pairs:
        inquiry.start(probe.name, background, background.with_(control.name))
    seen = 0
    for probe, control in pairs:
        kind = control.suspected[0] if control.suspected else ""
        seen += sight(inquiry, probe, kind, background, control=control.name).seen
    return f"{seen} of {len(pairs)} pairs of probe and planted fault are seen on {background.name}"
