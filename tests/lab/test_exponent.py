"""Exponents of a constant, in words, and against what the target claims."""

import math

import pytest

from lab.exponent import Exponent, cross_check, exponents
from store.models import Claim
from tests.lab.measurements import measurement


def constant(site: str, value: float = 2.5, *, layer: int = 0, phase: str = "decode") -> Claim:
    body = {"event": "constant", "name": "f", "value": value, "site": site, "layer": layer, "phase": phase}
    return Claim(attempt_id=1, event="constant", body={**body, "branch": "routed"})


def exponent(value: float, *, branch: str = "routed", residual: float | None = None) -> Exponent:
    return Exponent(arm="full", layer=0, phase="decode", branch=branch, value=value, residual=residual)


@pytest.mark.parametrize(
    ("value", "branch", "reading"),
    [
        (1.0002, "routed", "right"),
        (2.0, "routed", "doubled"),
        (3.01, "routed", "applied 3 times"),
        (0.0, "routed", "missing"),
        (-1.0, "routed", "undone"),
        (0.4, "routed", "no power law"),
        (0.0, "shared", "right"),
        (1.0, "shared", "applied once where it does not belong"),
        (math.nan, "routed", "not a number"),
    ],
)
def test_exponent_is_read_in_words(value: float, branch: str, reading: str) -> None:
    assert exponent(value, branch=branch).reading == reading
    assert exponent(value, branch=branch).right == (reading == "right")


def test_large_residual_is_no_power_law_even_near_one() -> None:
    assert exponent(1.0, residual=0.4).reading == "no power law"
    assert not exponent(1.0, residual=math.nan).right


def test_rows_come_out_by_layer_phase_and_branch() -> None:
    rows = [
        ("exponent", 1.0, {"layer": 10, "phase": "decode", "branch": "routed", "residual": 1e-6}),
        ("exponent", 0.0, {"layer": 2, "phase": "prefill", "branch": "shared"}),
        ("exponent", 1.0, {"layer": 2, "phase": "decode", "branch": "routed"}),
        ("exponent_error", 0.0, {}),
    ]

    found = exponents([measurement("full", rows=rows)])

    assert [(e.layer, e.phase) for e in found] == [(2, "decode"), (2, "prefill"), (10, "decode")]
    assert found[2].residual == pytest.approx(1e-6)


def test_claims_that_add_up_to_the_exponent_agree() -> None:
    assert cross_check([exponent(1.0)], [constant("topk"), constant("topk", 5.0)]) == []
    assert cross_check([exponent(2.0)], [constant("topk"), constant("kernel")]) == []
    assert cross_check([exponent(0.0)], [constant("topk"), constant("epilogue", 0.4)]) == []


def test_silent_multiplication_is_a_disagreement() -> None:
    found = cross_check([exponent(2.0)], [constant("topk")])

    assert [d.claimed for d in found] == [1]
    assert "the events claim topk (power 1), the measured exponent is 2.000 (doubled)" in found[0].text


def test_claim_in_another_layer_does_not_count_here() -> None:
    found = cross_check([exponent(1.0)], [constant("topk", layer=1)])

    assert "no multiplication" in found[0].text


def test_target_without_events_claims_nothing() -> None:
    assert cross_check([exponent(2.0)], []) == []
