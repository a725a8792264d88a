"""Where a target's word and the recorder's proof disagree: an implementation that is said to have run and did not.

Contract: a `route` event that names a file and the line of a definition is held against the lines the recorder saw of
that definition's body. Only a fully traced attempt can contradict. Arms with a planted fault are left out.
"""

from __future__ import annotations

from lab.git import Git
from lab.metric import measure
from lab.source import source_of
from store.models import Claim, ExecutedFile, Finding, Run
from store.store import Store


def contradicted_routes(git: Git, tree: str, claims: list[Claim], executed: dict[str, ExecutedFile]) -> list[Claim]:
    """The route claims whose implementation the recorder did not see at all."""
    return [claim for claim in claims if _body_lines(git, tree, claim) and not _ran(git, tree, claim, executed)]


def route_findings(store: Store, git: Git) -> list[Finding]:
    """One finding per implementation that some run claims and no line of which it ran."""
    planted = {patch.name for patch in store.patches("control")}
    runs_of: dict[str, list[Run]] = {}
    claim_of: dict[str, Claim] = {}
    for run in store.runs():
        found = None if planted & set(run.patches) else measure(store, run)
        if found is None or found.attempt.id is None or not found.attempt.fully_traced:
            continue
        claims = store.claims(found.attempt.id, event="route")
        for claim in contradicted_routes(git, run.tree, claims, store.executed(found.attempt.id)):
            key = f"{claim.body.get('file')}:{claim.body.get('line')}"
            claim_of.setdefault(key, claim)
            if run not in runs_of.setdefault(key, []):
                runs_of[key].append(run)
    return [
        Finding(
            key=f"route:{key}",
            claim=f"The target says that `{claim_of[key].body.get('implementation')}` ({key}) ran for "
            f"{claim_of[key].body.get('op')}; the recorder saw no line of it in {', '.join(r.arm for r in runs)}",
            verdict=None,
            patch="",
            patch_id="",
            diff="",
            evidence=tuple({"kind": "run", "id": run.id} for run in runs),
        )
        for key, runs in runs_of.items()
    ]


def _body_lines(git: Git, tree: str, claim: Claim) -> range:
    """The lines of the body of the definition that a claim names; empty where it names none."""
    path, line = claim.body.get("file"), claim.body.get("line")
    if not isinstance(path, str) or not isinstance(line, int):
        return range(0)
    blob = git.read(tree, path)
    source = source_of(path, blob.decode("utf-8", "replace")) if blob is not None else None
    inside = [each for each in (source.definitions if source else ()) if each.start <= line <= each.end]
    if not inside:
        return range(0)
    innermost = max(inside, key=lambda each: each.start)
    assert source is not None
    body = [s.start for s in source.statements if innermost.start < s.start <= innermost.end and s.kind == "acting"]
    return range(min(body), innermost.end + 1) if body else range(0)


def _ran(git: Git, tree: str, claim: Claim, executed: dict[str, ExecutedFile]) -> bool:
    file = executed.get(claim.body["file"])
    return file is not None and any(line in file.lines for line in _body_lines(git, tree, claim))
