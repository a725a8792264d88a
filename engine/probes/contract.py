"""How often the routed scaling factor is applied on every way through the experts, and how exact each way is.

One item per (method, runner, router, renormalise, phase, shared fusion, expert-parallel size). Its power comes from the
`constant` events and, apart from them, from what doubling the factor does to the output; an item is ok where both are 1
(and 0 for the shared expert) and the output agrees with fp32 within the format's tolerance. Random weights, no
checkpoint. `--markdown` prints the table of docs/contract.md instead of the one for terminals.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

from engine import events
from engine.checkpoint import DEFAULT_CHECKPOINT
from engine.contract import TOLERANCE, Bench, Measured, Row, rows
from engine.errors import ConfigError
from engine.methods import METHODS
from engine.probes import session
from engine.runners import RUNNERS

HEADINGS = ("experts", "runner", "gate/up order", "codes", "scales", "bits", "factor applied by", "tolerance")


def work(args: argparse.Namespace) -> None:
    wanted = [row for row in rows() if args.only in row.name]
    if not wanted:
        raise ConfigError(f"--only {args.only!r}: no row has that in its name, expected a part of {next(rows()).name}")
    if args.checkpoint != DEFAULT_CHECKPOINT:
        reason = "the weights are random"
        events.emit("ignored", setting="--checkpoint", where="engine/probes/contract.py", reason=reason)
    found: list[Measured] = []
    refused = 0
    with torch.inference_mode(), tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), args.seed)
        for number, row in enumerate(wanted):
            try:
                measured = list(bench.measure(row))
            except ConfigError as error:
                refused += 1
                events.emit("item", id=row.name, cluster=row.name, ok=False, tags={"refused": error.message})
                print(f"{row.name}: {error.message}", file=sys.stderr)
                continue
            found += measured
            for one in measured:
                _emit(one, args.seed)
            if number % 100 == 99:
                session.progress(number + 1, len(wanted), row.name)
    print("\n".join(_markdown(found) if args.markdown else _terminal(found)))
    wrong = [one for one in found if not one.right]
    for one in wrong:
        print(f"wrong: {one.row.name}/{one.phase}: {_numbers(one)}", file=sys.stderr)
    worst = max((one.deviation for one in found), default=0.0)
    events.emit("metric", name="power_error", value=worst, n=len(found), higher_is_better=False)
    said = f"{len(found)} rows, {len(wrong)} wrong, {refused} refused, largest error of a power {worst:.1g}"
    print(said, file=sys.stderr)


def _emit(one: Measured, seed: int) -> None:
    row, name = one.row, session.item_id(seed, f"{one.row.name}/{one.phase}")
    tags = {
        "method": row.method,
        "runner": row.runner,
        "router": row.router,
        "renormalise": row.renormalise,
        "fused": row.fused,
        "size": row.size,
        "phase": one.phase,
        "sites": list(one.sites),
        "power_said": one.said[0],
        "power_measured": one.exponent[0],
        "shared_power_said": one.said[1],
        "shared_power_measured": one.exponent[1],
        "error": one.error,
        "tolerance": TOLERANCE[row.bits],
    }
    events.emit("item", id=name, cluster=row.name, ok=one.right, tags=tags)


def _numbers(one: Measured) -> str:
    said, exponent = (f"{routed:.3f} routed, {shared:.3f} shared" for routed, shared in (one.said, one.exponent))
    return f"said {said}; measured {exponent}; error {one.error:.2g}, tolerance {TOLERANCE[one.row.bits]:.2g}"


def _by_way(found: Iterable[Measured]) -> dict[tuple[str, str], list[Measured]]:
    ways: dict[tuple[str, str], list[Measured]] = {}
    for one in found:
        ways.setdefault((one.row.method, one.row.runner), []).append(one)
    return ways


def _terminal(found: list[Measured]) -> Iterator[str]:
    yield f"{'experts':<25} {'runner':<10} {'rows':>4} {'said':>6} {'measured':>9} {'error':>8} {'allowed':>8}"
    for (method, runner), ones in _by_way(found).items():
        said = max((one.said[0] for one in ones), key=lambda power: abs(power - 1))
        exponent = max((one.exponent[0] for one in ones), key=lambda power: abs(power - 1))
        error, allowed = max(one.error for one in ones), TOLERANCE[ones[0].row.bits]
        yield f"{method:<25} {runner:<10} {len(ones):>4} {said:>6.2f} {exponent:>9.4f} {error:>8.1e} {allowed:>8.1e}"


def _markdown(found: list[Measured]) -> Iterator[str]:
    """One line per method and runner; nothing in it that another machine would round otherwise."""
    yield f"| {' | '.join((*HEADINGS, 'rows', 'power'))} |"
    yield f"|{'---|' * (len(HEADINGS) + 2)}"
    for (method, runner), ones in _by_way(found).items():
        powers = {round(power) for one in ones for power in (one.said[0], one.exponent[0])}
        cells = (*_cells(ones[0].row, ones), str(len(ones)), ", ".join(map(str, sorted(powers))))
        yield f"| `{method}` | `{runner}` | {' | '.join(cells)} |"


def _cells(row: Row, ones: list[Measured]) -> Iterator[str]:
    runner, (weights, activations) = RUNNERS[row.runner], row.bits
    yield runner.half_order
    yield runner.layout
    # Scales of four-bit formats come one set per row and move with the rows; those of blocks and tensors stay.
    moving = METHODS[row.method].weight_bits == 4 or runner.scales == "none"
    yield runner.scales if moving else "linear" if METHODS[row.method].weight_bits == 8 else "none"
    yield f"W{weights}A{activations}"
    sites: dict[str, list[str]] = {}
    for one in ones:
        routers = sites.setdefault(" and ".join(one.sites) or "nobody", [])
        if one.row.router not in routers:
            routers.append(one.row.router)
    yield "; ".join(site if len(sites) == 1 else f"{site} ({', '.join(routers)})" for site, routers in sites.items())
    yield f"{TOLERANCE[row.bits]:g}"


def main(argv: list[str] | None = None) -> int:
    parser = session.parser_of("contract", __doc__, "--only nvfp4/marlin/hash")
    parser.add_argument("--only", default="", metavar="TEXT", help="rows whose name has this in it (default all)")
    parser.add_argument("--markdown", action="store_true", help="print the table of docs/contract.md")
    return session.run(parser, argv, work)


if __name__ == "__main__":
    sys.exit(main())
