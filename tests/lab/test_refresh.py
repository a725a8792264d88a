"""The patch series follows the engine: rebased by three-way merges, or refused by name with nothing written."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab import refresh, series
from lab.scribe import Scribe
from store.errors import PatchError
from tests.lab.conftest import Repo, make_repo

ENGINE = "".join(f"line_{number} = {number}\n" for number in range(40))


def diff(repo: Repo, old: str, new: str) -> str:
    path = repo.path / "engine" / "a.py"
    before = path.read_text(encoding="utf-8")
    assert old in before
    path.write_text(before.replace(old, new), encoding="utf-8")
    return repo.git("diff", "--full-index") + "\n"


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repo:
    """A checkout with a tiny engine and a series: base turns 5 into 50, the stack 20 into 21 and 30 into 31."""
    repo = make_repo(tmp_path / "checkout")
    repo.write("engine/a.py", ENGINE)
    repo.write("kernels/b.py", "B = 1\n")
    repo.commit("one")
    steps = [
        ("base.patch", "line_5 = 5\n", "line_5 = 50\n"),
        ("stack/01-twenty.patch", "line_20 = 20\n", "line_20 = 21\n"),
        ("stack/02-thirty.patch", "line_30 = 30\n", "line_30 = 31\n"),
        ("candidates/mend.patch", "line_5 = 50\n", "line_5 = 5\n"),
    ]
    written = {}
    for name, old, new in steps:
        written[name] = f"Subject: engine: {Path(name).stem}\n\nWhy.\n\n{diff(repo, old, new)}"
        repo.commit(name)
    repo.git("reset", "--quiet", "--hard", "HEAD~4")
    for name, text in written.items():
        repo.write(f"engine/patches/{name}", text)
    repo.commit("engine: the series")
    for module in (series, refresh):
        monkeypatch.setattr(module, "ROOT", repo.path)
        monkeypatch.setattr(module, "PATCHES", repo.path / "engine" / "patches")
    return repo


def apply_all(repo: Repo, tmp_path: Path) -> str:
    with Scribe(tmp_path / "git") as scribe:
        scribe.init()
        scribe.stage(repo.path, series.source_files(repo.path))
        for patch in [series.read_patch(series.PATCHES / "base.patch"), *series.read_group("stack")]:
            scribe.apply(patch.name, patch.diff)
        for patch in series.read_group("candidates"):
            scribe.apply(patch.name, patch.diff)
        return scribe.git("show", f"{scribe.commit('all')}:engine/a.py")


def test_an_unchanged_engine_leaves_every_patch_as_it_is(checkout: Repo) -> None:
    assert refresh.refresh("HEAD") == []
    assert checkout.git("status", "--porcelain") == ""


def test_the_series_follows_lines_that_moved_and_context_that_changed(checkout: Repo, tmp_path: Path) -> None:
    path = checkout.path / "engine" / "a.py"
    moved = path.read_text(encoding="utf-8").replace("line_18 = 18\n", "line_18 = 18\nextra = 0\n")
    path.write_text(moved.replace("line_23 = 23\n", ""), encoding="utf-8")

    changed = refresh.refresh("HEAD")

    assert "engine/patches/stack/01-twenty.patch" in changed
    text = apply_all(checkout, tmp_path)
    assert "extra = 0" in text
    assert "line_20 = 21" in text
    assert "line_30 = 31" in text
    assert "line_5 = 5" in text
    assert "line_23" not in text


def test_a_patch_that_ends_in_blank_lines_keeps_them(checkout: Repo, tmp_path: Path) -> None:
    path = checkout.path / "engine" / "a.py"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("line_32 = 32\nline_33 = 33\n", "\n\n"), encoding="utf-8")

    refresh.refresh("HEAD")

    assert "line_30 = 31\nline_31 = 31\n\n\nline_34" in apply_all(checkout, tmp_path)


def test_a_conflict_names_the_patch_and_writes_nothing(checkout: Repo) -> None:
    path = checkout.path / "engine" / "a.py"
    path.write_text(path.read_text(encoding="utf-8").replace("line_30 = 30\n", "line_30 = 300\n"), encoding="utf-8")

    with pytest.raises(PatchError, match="`thirty` does not carry over") as caught:
        refresh.refresh("HEAD")

    assert "02-thirty.patch" in caught.value.hint
    assert checkout.git("status", "--porcelain", "engine/patches") == ""


def test_a_file_that_is_no_patch_is_named(checkout: Repo) -> None:
    checkout.write("engine/patches/zoo/odd.patch", "no subject\n")

    with pytest.raises(PatchError, match=r"odd\.patch"):
        refresh.refresh("HEAD")
