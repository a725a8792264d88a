"""What the lines of a Python file are."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.source import Source, parse, source_of
from store.errors import UsageError

FILE = '''\
"""Head
of two lines."""
import os  # a name
from __future__ import annotations
LIMIT = 1

@decorate(
    LIMIT)
def scale(x, factor=2,
          *, fast,
) -> float:
    """What it does."""
    # why
    width: int
    if fast:
        return x  # early
    elif factor and \\
            x:
        y = (x *
             factor)
    else:
        pass
    try:
        z = 1
    except ValueError:
        z = 2
    finally:
        w = 3
    match x:
        case 1:
            w = 4
    return y

class Method(Base):
    name: str
    kind = "a"

    def apply(self): ...
'''


def kinds(text: str) -> dict[int, str]:
    source = Source(text)
    return {line: source.kind(line) for line in range(1, len(source.lines) + 1)}


def test_conditions_defaults_decorators_constants_and_class_attributes_act() -> None:
    found = kinds(FILE)

    acting = {5, 7, 8, 9, 15, 16, 17, 18, 19, 20, 23, 24, 25, 26, 28, 29, 30, 31, 32, 35, 36, 38}
    assert {line for line, kind in found.items() if kind == "acting"} == acting


def test_imports_and_plain_headers_only_bind() -> None:
    found = kinds(FILE)

    assert [found[line] for line in (3, 4)] == ["import", "import"]
    assert [line for line, kind in found.items() if kind == "header"] == [10, 11, 34]


def test_comments_docstrings_else_and_bare_annotations_are_nothing() -> None:
    found = kinds(FILE)

    assert [found[line] for line in (1, 2, 6, 12, 13, 14, 21, 22, 27)] == ["nothing"] * 9


def test_an_empty_function_acts_because_it_hides_what_it_overrides() -> None:
    source = Source('class A(B):\n    def apply(self):\n        """Nothing."""\n')

    assert source.kind(3) == "acting"


def test_guards_are_in_order_and_know_which_way_the_line_lies() -> None:
    guards = Source(FILE).guards(19)

    assert [(guard.line, guard.text, guard.taken) for guard in guards] == [
        (15, "if fast:", False),
        (17, "elif factor and \\", True),
    ]


def test_an_early_exit_guards_what_comes_after_it() -> None:
    source = Source("def f(gpu):\n    if not gpu:\n        return 1\n    launch()\n")

    assert [(guard.line, guard.taken) for guard in source.guards(4)] == [(2, False)]


def test_definitions_know_class_bases_decorators_and_extent() -> None:
    source = Source(
        "import triton\n@triton.jit\ndef kernel(x):\n    pass\nclass A(B, C):\n    def apply(self):\n        pass\n"
    )

    apply, kernel = source.definition("A.apply"), source.definition("kernel")
    assert (apply.owner, apply.bases, apply.start, apply.end, apply.body) == ("A", ("B", "C"), 6, 7, 7)
    assert kernel.compiled_by == "triton.jit"
    assert kernel.start == 2
    assert apply.compiled_by == ""


def test_an_unknown_definition_names_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"no `Method\.appliez`") as error:
        Source(FILE).definition("Method.appliez")

    assert "Method.apply" in error.value.hint


def test_comments_docstrings_and_formatting_make_no_other_program() -> None:
    plain = Source("def f(a, b):\n    return g(a, b)\n")
    same = Source('def f(\n    a,\n    b,\n):\n    """New words."""\n    return g(  # why\n        a, b)\n')
    other = Source("def f(a, b):\n    return g(b, a)\n")

    assert plain.same_program(same)
    assert not plain.same_program(other)


def test_indentation_that_moves_a_statement_makes_another_program() -> None:
    inside = Source("if a:\n    b()\n    c()\n")
    outside = Source("if a:\n    b()\nc()\n")

    assert not inside.same_program(outside)


def test_what_is_no_python_has_no_view() -> None:
    assert source_of("weights.json", "{}") is None
    assert source_of("old.py", "print 'two'\n") is None
    assert source_of("binary.py", None) is None
    assert parse("a = '\0'") is None


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(FILE.splitlines()), max_size=12))
def test_any_text_has_a_view_exactly_where_python_parses_it(lines: list[str]) -> None:
    text = "\n".join(lines) + "\n"
    try:
        ast.parse(text)
    except SyntaxError:
        assert parse(text) is None
    else:
        source = parse(text)
        assert source is not None
        assert all(1 <= s.start <= s.end <= len(source.lines) for s in source.statements)
        for statement in source.statements:
            assert statement.extent[0] <= statement.start
            assert statement.end <= statement.extent[1]
