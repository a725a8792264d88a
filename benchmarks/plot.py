"""Draw the experts' time against tokens, with floor and peers: `python -m benchmarks.plot RESULT.json [...]`.

Writes one SVG per shape to `docs/images/`. Later files win where rows repeat; both axes are logarithmic, and each line
also has its own dash pattern, so that colour is not the only carrier. `--table` prints the files of any op as the
Markdown that the docs hold.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from benchmarks.table import markdown

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 760, 420, 70, 40, 200, 50
TITLES = {"experts": "Fused NVFP4 experts", "experts_fp8": "FP8 block experts", "experts_bf16": "bf16 experts"}
STYLES = [("#1f5fa8", ""), ("#777777", "2 3"), ("#b5442e", "7 3"), ("#2e8b57", "7 3 2 3"), ("#8a5fb0", "1 4")]


def series_of(rows: list[dict[str, Any]]) -> dict[str, dict[int, float]]:
    """Line name to {tokens: microseconds}; ours first, then the floor, then each peer."""
    series: dict[str, dict[int, float]] = {"this kernel": {}, "floor": {}}
    for row in rows:
        if row["us"] is not None:
            series["this kernel"][row["tokens"]] = row["us"]
        series["floor"][row["tokens"]] = row["floor_us"]
        for peer, us in row["peers"].items():
            series.setdefault(peer, {})[row["tokens"]] = us
    return series


def draw(title: str, series: dict[str, dict[int, float]]) -> str:
    """The chart as SVG text."""
    tokens = sorted({token for line in series.values() for token in line})
    values = [value for line in series.values() for value in line.values()]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    span = max(1e-9, math.log2(tokens[-1]) - math.log2(tokens[0]))

    def x(token: int) -> float:
        return LEFT + (math.log2(token) - math.log2(tokens[0])) / span * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (math.log10(value) - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" '
        f'font-size="12"><rect width="100%" height="100%" fill="white"/>',
        f'<text x="{LEFT}" y="22" font-size="14">{escape(title)}</text>',
    ]
    out += [
        f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(10**power):.1f}" y2="{y(10**power):.1f}" stroke="#ddd"/>'
        f'<text x="{LEFT - 8}" y="{y(10**power) + 4:.1f}" text-anchor="end">{10**power:,} us</text>'
        for power in range(low, high + 1)
    ]
    out += [
        f'<text x="{x(token):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{token}</text>' for token in tokens
    ]
    out.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - 10}" text-anchor="middle">tokens</text>')
    for index, (name, line) in enumerate(series.items()):
        colour, dash = STYLES[index % len(STYLES)]
        points = " ".join(f"{x(token):.1f},{y(line[token]):.1f}" for token in sorted(line))
        style = f'fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"'
        legend = TOP + 18 * index
        out.append(
            f'<polyline points="{points}" {style}/>'
            f'<line x1="{WIDTH - RIGHT + 14}" x2="{WIDTH - RIGHT + 44}" y1="{legend}" y2="{legend}" {style}/>'
            f'<text x="{WIDTH - RIGHT + 50}" y="{legend + 4}">{escape(name)}</text>'
        )
    return "\n".join([*out, "</svg>"]) + "\n"


def charts(results: list[dict[str, Any]]) -> dict[str, str]:
    """The SVG text of each chart by the name of its file: one per op of the experts, shape and kind of rows."""
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    cards: dict[tuple[str, ...], str] = {}
    for result in results:
        for row in result["rows"]:
            if row["op"] in TITLES and {"tokens", "peers", "floor_us"} <= row.keys():
                activations = (f"{row['activations']} activations",) if "activations" in row else ()
                skewed = ("skewed routing",) if row.get("routing") == "skewed" else ()
                key = (row["op"], row["shape"], *activations, *skewed)
                groups.setdefault(key, []).append(row)
                cards[key] = result["machine"]["gpu"].removeprefix("NVIDIA ")
    out = {}
    for (op, shape, *kinds), rows in groups.items():
        title = ", ".join([TITLES[op], f"{shape} shape", *kinds, f"one {cards[op, shape, *kinds]}"])
        name = "-".join([op, shape, *(kind.split()[0] for kind in kinds)])
        out[f"{name}.svg"] = draw(title, series_of(rows))
    return out


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plot", description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, help="result files, for instance benchmarks/results/*-index-*")
    parser.add_argument("--table", action="store_true", help="print Markdown instead of drawing")
    options = parser.parse_args(arguments)
    if not options.files:
        print("plot: name one result file or more, for instance benchmarks/results/*-experts-*.json", file=sys.stderr)
        return 2
    results = [json.loads(path.read_text(encoding="utf-8")) for path in options.files]
    if options.table:
        print("\n\n".join(markdown(result, path.name) for path, result in zip(options.files, results, strict=True)))
        return 0
    IMAGES.mkdir(parents=True, exist_ok=True)
    for name, svg in charts(results).items():
        (IMAGES / name).write_text(svg, encoding="utf-8")
        print(IMAGES / name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
