"""`livepath question | hypothesis | assumption`: what people ask and suppose."""

from __future__ import annotations

from typing import Any, get_args

import click

from store.errors import UsageError
from store.models import (
    Assumption,
    AssumptionState,
    Hypothesis,
    HypothesisState,
    Predicate,
    Question,
    QuestionState,
)
from tui.cli.output import Field, Output, Row
from tui.cli.session import on_case, parse_evidence, say
from tui.gateway import Gateway, person
from tui.text import words
from tui.text.layout import Cell

_HOW = 'How the lab answers it: "multiplies NAME", "declares NAME", "grep PATTERN" or "loaded MODULE".'
_PREDICT = "For example: needle.recall[length>=1024] on base < 0.95"
_ABOUT = "What takes it for granted: hypothesis:3, reading:1, run:7."
_EVIDENCE = click.option(
    "--evidence", multiple=True, metavar="KIND:ID", help="What it rests on: run:3, reading:1; may be given again."
)


@click.group()
def question() -> None:
    """Questions: cheap and read-only, answered before any run."""


@question.command("add")
@click.argument("text")
@click.option("--how", default="", help=_HOW)
@on_case(reads=False)
def add_question(gateway: Gateway, text: str, how: str) -> None:
    """Ask a question."""
    added = gateway.store.add_question(Question(text=_said(text), how=how))
    say(f"question {added.id} is {added.state}")


@question.command("list")
@on_case()
def list_questions(gateway: Gateway, output: Output) -> None:
    """List the questions with their answers."""

    def row(one: Question) -> Row:
        return str(one.id), words.word(one.state), f"{one.text} {_first_line(one.answer)}".strip()

    head = ("id", "state", "question and answer")
    output.rows(gateway.store.questions(), head, row, prose=2, empty="no question was asked yet")


@question.command("show")
@click.argument("id", type=int)
@on_case()
def show_question(gateway: Gateway, output: Output, id: int) -> None:
    """Show one question with its whole answer."""
    one = gateway.store.question(id)
    fields: list[Field] = [
        ("question", one.text),
        ("state", words.word(one.state)),
        ("how", one.how or "a person answers"),
        ("answer", one.answer),
        ("evidence", words.evidence(one.evidence)),
        ("asked", one.created_utc),
    ]
    output.thing(one, fields)


@question.command("set")
@click.argument("id", type=int)
@click.option("--answer", default="", help="The answer.")
@click.option("--state", type=click.Choice(get_args(QuestionState)), default="answered", help="Its new state.")
@_EVIDENCE
@on_case(reads=False)
def set_question(gateway: Gateway, id: int, answer: str, state: Any, evidence: tuple[str, ...]) -> None:
    """Answer a question, or open it again."""
    if state == "answered" and not answer.strip():
        raise UsageError(f"question {id} cannot be answered without an answer", hint="give it with `--answer TEXT`")
    gateway.store.set_question(id, state=state, answer=answer, evidence=parse_evidence(evidence))
    say(f"question {id} is {state}")


@click.group()
def hypothesis() -> None:
    """Hypotheses: a statement, its prediction, and what would refute it."""


@hypothesis.command("add")
@click.argument("text")
@click.option("--predict", default="", metavar="PREDICTION", help=_PREDICT)
@click.option("--refuted-if", default="", help="What would refute it, in words.")
@on_case(reads=False)
def add_hypothesis(gateway: Gateway, text: str, predict: str, refuted_if: str) -> None:
    """State a hypothesis; with a prediction, the runs decide it."""
    predicate = gateway.prediction(predict) if predict else None
    added = gateway.store.add_hypothesis(Hypothesis(text=_said(text), predicate=predicate, refuted_if=refuted_if))
    if added.predicate != predicate:
        raise UsageError(
            f"hypothesis {added.id} says this already, with another prediction",
            hint="a prediction is fixed before the runs it cites; state the new one in other words",
        )
    say(f"hypothesis {added.id} is {added.state.replace('_', ' ')}")


@hypothesis.command("list")
@on_case()
def list_hypotheses(gateway: Gateway, output: Output) -> None:
    """List the hypotheses with their states."""

    def row(one: Hypothesis) -> Row:
        return str(one.id), words.word(one.state), one.by, f"{one.text} {_first_line(one.reason)}".strip()

    head = ("id", "state", "by", "hypothesis and reason")
    output.rows(gateway.store.hypotheses(), head, row, prose=3, empty="no hypothesis was stated yet")


@hypothesis.command("show")
@click.argument("id", type=int)
@on_case()
def show_hypothesis(gateway: Gateway, output: Output, id: int) -> None:
    """Show one hypothesis with its prediction and evidence."""
    one = gateway.store.hypothesis(id)
    fields: list[Field] = [
        ("hypothesis", one.text),
        ("prediction", prediction(one.predicate)),
        ("refuted if", one.refuted_if),
        ("state", words.word(one.state)),
        ("decided by", one.by),
        ("reason", one.reason),
        ("evidence", words.evidence(one.evidence)),
        ("stated", one.created_utc),
    ]
    output.thing(one, fields)


@hypothesis.command("set")
@click.argument("id", type=int)
@click.option("--state", type=click.Choice(get_args(HypothesisState)), required=True, help="Its new state.")
@click.option("--reason", default="", help="Why.")
@_EVIDENCE
@on_case(reads=False)
def set_hypothesis(gateway: Gateway, id: int, state: Any, reason: str, evidence: tuple[str, ...]) -> None:
    """Judge a hypothesis. One with a prediction is supported or refuted by its runs alone."""
    if gateway.store.hypothesis(id).predicate is not None and state in ("supported", "refuted"):
        raise UsageError(
            f"hypothesis {id} has a prediction: its runs decide it, nobody else",
            hint="run the probe it names on the arm it names; it can be parked or called a dead end by hand",
        )
    by = "" if state == "open" else person()
    gateway.store.set_hypothesis(id, state=state, by=by, reason=reason, evidence=parse_evidence(evidence))
    say(f"hypothesis {id} is {state.replace('_', ' ')}")


@click.group()
def assumption() -> None:
    """Assumptions: what a hypothesis, a reading or a run takes for granted."""


@assumption.command("add")
@click.argument("text")
@click.option("--about", default="", metavar="NOUN:ID", help=_ABOUT)
@on_case(reads=False)
def add_assumption(gateway: Gateway, text: str, about: str) -> None:
    """Write down an assumption."""
    if about:
        noun, _, number = about.partition(":")
        if noun not in ("hypothesis", "reading", "run") or not number.isdigit():
            raise UsageError(f"`{about}` names nothing: expected hypothesis:N, reading:N or run:N")
        getattr(gateway.store, noun)(int(number))
    added = gateway.store.add_assumption(Assumption(text=_said(text), about=about))
    say(f"assumption {added.id} is {added.state}")


@assumption.command("list")
@on_case()
def list_assumptions(gateway: Gateway, output: Output) -> None:
    """List the assumptions with their states."""

    def row(one: Assumption) -> Row:
        return str(one.id), words.word(one.state), one.about.replace(":", " "), f"{one.text} {one.reason}".strip()

    head = ("id", "state", "about", "assumption and reason")
    output.rows(gateway.store.assumptions(), head, row, prose=3, empty="no assumption was written down yet")


@assumption.command("show")
@click.argument("id", type=int)
@on_case()
def show_assumption(gateway: Gateway, output: Output, id: int) -> None:
    """Show one assumption."""
    one = gateway.store.assumption(id)
    fields: list[Field] = [
        ("assumption", one.text),
        ("about", one.about.replace(":", " ")),
        ("state", words.word(one.state)),
        ("reason", one.reason),
        ("written", one.created_utc),
    ]
    output.thing(one, fields)


@assumption.command("set")
@click.argument("id", type=int)
@click.option("--state", type=click.Choice(get_args(AssumptionState)), required=True, help="Its new state.")
@click.option("--reason", default="", help="How that is known.")
@on_case(reads=False)
def set_assumption(gateway: Gateway, id: int, state: Any, reason: str) -> None:
    """Say whether an assumption held."""
    gateway.store.set_assumption(id, state=state, reason=reason)
    say(f"assumption {id} is {state}")


def prediction(predicate: Predicate | None) -> Cell | str:
    """A prediction as a person writes it."""
    if predicate is None:
        return Cell("none: a person judges it", "dim")
    return f"{predicate.probe}.{predicate.metric} on {predicate.arm} {predicate.operator} {predicate.number:g}"


def _said(text: str) -> str:
    if not text.strip():
        raise UsageError("the text is empty", hint="put it in quotes after `add`")
    return text.strip()


def _first_line(text: str) -> str:
    lines = text.strip().splitlines()
    return f"-> {lines[0]}{' ...' if len(lines) > 1 else ''}" if lines else ""
