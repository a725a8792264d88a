"""Run the kernel benchmarks: `./run bench experts --shapes flash,v3 --tokens 1,8,64`.

Needs a CUDA device. Writes `benchmarks/results/<date>-<op>-<gpu>.json`; every row names its error, and an op whose
error is above its limit gets no time.
"""

from __future__ import annotations

import argparse
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"
OPS = ("experts", "index")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="./run bench", description=__doc__.splitlines()[0])
    parser.add_argument("op", choices=OPS)
    parser.add_argument("--shapes", help="names of the op's shapes, by commas; all of them without it")
    parser.add_argument("--tokens", default="1,8,64,512,4096,16384", help="of `experts`")
    parser.add_argument("--skewed", action="store_true", help="a few experts get most tokens")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the result file")
    options = parser.parse_args(arguments)

    import torch

    if not torch.cuda.is_available():
        print("bench: no CUDA device; the benchmarks need one", file=sys.stderr)
        return 1
    from benchmarks import timing
    from benchmarks.kernels import experts, index

    result: dict[str, Any] = {"machine": timing.machine(), "ceilings": timing.ceilings(), "rows": []}
    print(json.dumps({key: result[key] for key in ("machine", "ceilings")}, indent=1), flush=True)
    try:
        if options.op == "experts":
            result["rows"] = experts.run(
                options.shapes.split(",") if options.shapes else list(experts.SHAPES),
                [int(tokens) for tokens in options.tokens.split(",")],
                peers=not options.no_peers,
                skewed=options.skewed,
            )
        else:
            result["rows"] = index.run(options.shapes.split(",") if options.shapes else list(index.SHAPES))
    finally:
        result["machine"]["clocks_after"] = timing.clocks()
        gpu = torch.cuda.get_device_name().split()[-1].lower()
        options.out.mkdir(parents=True, exist_ok=True)
        name = f"{options.op}-skewed" if options.skewed else options.op
        path = options.out / f"{datetime.now(UTC):%Y-%m-%d}-{name}-{gpu}.json"
        path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
