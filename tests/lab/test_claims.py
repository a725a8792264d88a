"""A target's word against the recorder's proof."""

from __future__ import annotations

from lab.claims import contradicted_routes
from lab.git import Git
from store.models import Claim, ExecutedFile
from tests.lab.conftest import Repo

CODE = """\
class Fast:
    def apply(self, x):
        y = x + 1
        return y


class Slow:
    def apply(self, x):
        return x
"""


def route(line: object, file: object = "pkg/run.py") -> Claim:
    return Claim(attempt_id=1, event="route", body={"op": "experts", "implementation": "X", "file": file, "line": line})


def seen(*lines: int) -> dict[str, ExecutedFile]:
    return {"pkg/run.py": ExecutedFile(attempt_id=1, path="pkg/run.py", sha256="", lines=lines)}


def test_a_claim_whose_body_did_not_run_is_contradicted(repo: Repo) -> None:
    repo.write("pkg/run.py", CODE)
    tree = repo.commit("one")
    fast, slow = route(2), route(8)

    assert contradicted_routes(Git(repo.path), tree, [fast, slow], seen(1, 2, 7, 8, 9)) == [fast]
    assert contradicted_routes(Git(repo.path), tree, [fast, slow], {}) == [fast, slow]


def test_a_claim_that_names_no_place_cannot_be_contradicted(repo: Repo) -> None:
    repo.write("pkg/run.py", CODE)
    tree = repo.commit("one")
    claims = [route(None), route(6), route(2, file=None), route(2, file="pkg/gone.py"), route("2")]

    assert contradicted_routes(Git(repo.path), tree, claims, {}) == []
