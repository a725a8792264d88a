"""Plain text for a terminal: nothing hidden, nothing too wide."""

from __future__ import annotations

import re
import string
import unicodedata

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from tui.text import words
from tui.text.clean import clean
from tui.text.grids import exponent_lines, layer_list, recall_lines
from tui.text.layout import Cell, Page

any_text = st.text(st.characters()) | st.text(st.sampled_from("\x1b[m\x9b\u202e\u200b\r\n\t\x00\udc80ab "))


@settings(max_examples=200, deadline=None)
@given(any_text)
def test_clean_text_has_no_character_that_could_steer_or_hide(text: str) -> None:
    out = clean(text)

    assert not {unicodedata.category(character) for character in out} & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    assert clean(out) == out


@settings(max_examples=100, deadline=None)
@given(any_text)
def test_clean_text_keeps_every_printable_character_and_drops_nothing(text: str) -> None:
    out = clean(text)

    assert len(out) >= len(text)
    for character in string.printable[:95]:
        assert out.count(character) >= text.count(character)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(any_text, any_text, any_text), min_size=1, max_size=5), st.integers(100, 160))
def test_a_table_with_prose_fits_its_page(rows: list[tuple[str, str, str]], width: int) -> None:
    lines = Page(width=width).table(("one", "two", "three"), rows, prose=2)

    assert max(map(cell_len, lines)) <= width
    assert len(lines) > len(rows)


@settings(max_examples=60, deadline=None)
@given(any_text, st.integers(40, 120), st.integers(0, 8))
def test_prose_fits_and_loses_no_letter(text: str, width: int, indent: int) -> None:
    lines = Page(width=width).prose(text, indent=indent)

    assert "".join("".join(lines).split()) == "".join(clean(" ".join(text.split("\n"))).split())


def test_colour_is_put_around_words_and_never_into_the_width() -> None:
    rows = [(Cell("culprit", "bad"), "a"), (Cell("fix", "good"), "b")]

    plain, coloured = (Page(colour=colour).table(("verdict", "patch"), rows) for colour in (False, True))

    assert [re.sub(r"\x1b\[\d+m", "", line) for line in coloured] == plain
    assert "\x1b[31mculprit\x1b[0m" in coloured[1]


def test_a_long_block_is_cut_and_says_so() -> None:
    lines = Page(width=20).block("\n".join(f"+line {number}" + "x" * 30 for number in range(5)), most=3)

    assert [cell_len(line) for line in lines[:3]] == [20, 20, 20]
    assert lines[3] == "  ... 2 more lines"


def test_layers_are_folded() -> None:
    assert layer_list([3, 0, 1, 2, 7, 2]) == "0-3, 7"
    assert layer_list([None]) == "all"
    assert layer_list(["mtp", 1]) == "1, mtp"


def test_recall_is_a_grid_with_its_n_and_a_gap_where_nothing_was_asked() -> None:
    cells = [
        {"probe": "needle", "arm": "base", "length": 512, "depth": 0.0, "ok": 9, "n": 10},
        {"probe": "needle", "arm": "base", "length": 512, "depth": 0.5, "ok": 12, "n": 20},
        {"probe": "needle", "arm": "base", "length": 1024, "depth": 0.5, "ok": 0, "n": 20},
    ]

    name, *grid = recall_lines(cells, Page())[-4:]

    assert name == "base"
    assert [line.split() for line in grid] == [
        ["length", "@0", "@0.5", "n"],
        ["512", "0.90", "0.60", "10-20"],
        ["1024", "-", "0.00", "20"],
    ]


def test_arms_with_the_same_numbers_share_a_grid() -> None:
    cells = [
        {"probe": "needle", "arm": arm, "length": 512, "depth": 0.0, "ok": ok, "n": 10}
        for arm, ok in [("base", 9), ("full", 9), ("full+fix", 10)]
    ]
    rows = [
        {"arm": arm, "layer": layer, "phase": "decode", "branch": "routed", "value": value, "reading": reading}
        for arm, value, reading in [("base", 1.0, "right"), ("full", 2.0, "doubled"), ("full+fix", 1.0000001, "right")]
        for layer in range(3)
    ]

    assert [line for line in recall_lines(cells, Page()) if line[:1].isalpha()][1:] == ["base; full", "full+fix"]
    assert [line for line in exponent_lines(rows, Page()) if line[:1].isalpha()][1:] == ["base; full+fix", "full"]
    assert exponent_lines(rows, Page())[-1].split() == ["routed", "decode", "0-2", "2.00", "doubled"]


def test_liveness_and_numbers_in_words() -> None:
    assert words.liveness(None).text == "no run"
    assert words.liveness({"word": "executed", "count": 3}).text == "live 3 times"
    assert words.liveness({"word": "not_seen_blind"}).text == "not seen, blind"
    assert [words.number(value) for value in (0.5, 1e-5, None, "NaN")] == ["0.5", "1.0e-05", "?", "NaN"]
    assert words.evidence([{"kind": "run", "id": 3}, {"path": "a.py", "start": 2, "end": 4}]) == "run 3, a.py:2-4"
