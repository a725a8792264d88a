"""The names of arms."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.arms import BASE, FULL, Arm, parse_arm
from store.errors import UsageError

NAMES = ("hash-topk", "hash-topk-more", "fp8", "fp8-guard", "mhc-bf16-gemm")


@pytest.mark.parametrize(
    ("arm", "name"),
    [
        (BASE, "base"),
        (FULL, "full"),
        (BASE.with_("fp8"), "base+fp8"),
        (FULL.with_("fix"), "full+fix"),
        (FULL.with_("fix").without("hash-topk", "fp8"), "full+fix-hash-topk,fp8"),
        (FULL.without("mhc-bf16-gemm"), "full-mhc-bf16-gemm"),
    ],
)
def test_an_arm_is_named_by_what_is_applied(arm: Arm, name: str) -> None:
    assert arm.name == name
    assert parse_arm(name, NAMES) == arm


@settings(max_examples=100, deadline=None)
@given(
    root=st.sampled_from(["base", "full"]),
    plus=st.lists(st.sampled_from([*NAMES, "fix"]), unique=True),
    minus=st.lists(st.sampled_from(NAMES), unique=True),
)
def test_every_name_parses_back_to_its_arm(root: str, plus: list[str], minus: list[str]) -> None:
    arm = Arm(root, tuple(plus), tuple(minus))  # type: ignore[arg-type]

    assert parse_arm(arm.name, NAMES) == arm


def test_patches_of_an_arm_keep_the_order_of_the_stack() -> None:
    arm = FULL.with_("fix").without("b")

    assert arm.patches(["a", "b", "c"], fix="mend") == ("a", "c", "mend")
    assert BASE.with_("c", "a").patches(["a", "b", "c"]) == ("c", "a")


@pytest.mark.parametrize("name", ["", "head", "base+", "base+unknown", "full-", "full+fp8-unknown", "fullfp8"])
def test_a_name_that_is_no_arm_is_refused_with_the_next_step(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_arm(name, NAMES)

    assert "livepath patch list" in caught.value.hint
