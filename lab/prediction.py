"""A prediction as a person writes it: `needle.recall[length>=1024] on base+indexer-bf16-keys >= 0.95`.

Contract: `PROBE.METRIC on ARM OPERATOR NUMBER`, the form in which `predicate_text` prints one. The metric may carry a
filter; whether probe and arm exist is for the case to say.
"""

from __future__ import annotations

import re

from lab.metric import parse_metric
from store.errors import UsageError
from store.models import Predicate

_PREDICTION = re.compile(r"\s*([\w-]+)\.(.+?)\s+on\s+(\S+)\s*(<=|>=|==|<|>)\s*(\S+)\s*")


def parse_prediction(text: str) -> Predicate:
    """Read a prediction.

    Raises:
        UsageError: it has another form, or its metric or number is none.
    """
    match = _PREDICTION.fullmatch(text)
    if match is None:
        raise UsageError(
            f"`{text}` is no prediction: expected PROBE.METRIC on ARM OPERATOR NUMBER",
            hint="write for example `needle.recall[length>=1024] on base < 0.95`",
        )
    probe, metric, arm, operator, number = match.groups()
    try:
        value = float(number)
    except ValueError:
        raise UsageError(f"`{number}` in the prediction is no number") from None
    return Predicate(
        probe=probe,
        metric=str(parse_metric(metric)),
        arm=arm,
        operator=operator,  # type: ignore[arg-type]  # the pattern allows only these
        number=value,
    )
