"""A result file as Markdown: the machine in a sentence, then a row per row, the fastest of each in bold."""

from __future__ import annotations

from typing import Any

# What has columns of its own; every other key of a row tells it from the next.
MEASURED = ("us", "clean_us", "floor_us", "error", "error_limit", "peers", "peer_errors")


def markdown(result: dict[str, Any], file_name: str) -> str:
    """The sentence and the table of one result file."""
    rows = result["rows"]
    if "tools" in result:
        return f"{sentence(result, file_name)}\n\n{_sanitizer(result)}"
    names = list(
        dict.fromkeys(
            key for row in rows for key, value in row.items() if key not in MEASURED and not isinstance(value, list)
        )
    )
    # A column that says the same in every row says nothing, unless it is all there is.
    names = [name for name in names if name == "shape" or len({str(row.get(name)) for row in rows}) > 1]
    peers = list(dict.fromkeys(peer for row in rows for peer in row.get("peers", {})))
    clean = any(row.get("clean_us") for row in rows)
    ours = ["us", "x floor", *(["clean us", "x floor"] if clean else [])]
    head = [*names, "floor us", *ours, *(f"{peer} us" for peer in peers), "error"]
    return f"{sentence(result, file_name)}\n\n{_table(head, [_cells(row, names, peers, clean) for row in rows])}"


def sentence(result: dict[str, Any], file_name: str) -> str:
    """Machine, versions, commit, clocks and power of a result, as what must stand beside its figures."""
    machine = result["machine"]
    before, after = machine["clocks_before"], machine.get("clocks_after", {})
    parts = [
        f"One {machine['gpu'].removeprefix('NVIDIA ')}",
        f"torch {machine['torch']}",
        f"triton {machine['triton']}",
        f"driver {machine['driver']}",
        f"commit {machine['commit'][:7]}{' with uncommitted changes' if machine.get('dirty') else ''}",
    ]
    if after:
        parts.append(f"SM clock {before['clocks.sm']} before and {after['clocks.sm']} after at {after['power.draw']}")
    if ceilings := result.get("ceilings"):
        copy, product = ceilings["copy_tb_per_s"], ceilings["bf16_tflop_per_s"]
        parts.append(f"in the same run: copy {copy:.2f} TB/s, bf16 8192^3 {product:.0f} TFLOP/s")
    text = f"{', '.join(parts)} (`{file_name}`)."
    return f"{text} Broke off: {result['stopped']}." if "stopped" in result else text


def _cells(row: dict[str, Any], names: list[str], peers: list[str], clean: bool) -> list[str]:
    us, floor, of_peers, clean_us = row["us"], row.get("floor_us"), row.get("peers", {}), row.get("clean_us")
    times = [time for time in (us, *of_peers.values()) if time is not None]
    fastest = min(times) if len(times) > 1 else None

    def shown(time: float | None) -> str:
        return "" if time is None else f"**{_number(time)}**" if time == fastest else _number(time)

    return [
        *(_plain(row.get(name)) for name in names),
        _number(floor) if floor else "",
        "wrong" if us is None else shown(us),
        _ratio(us, floor),
        *([_number(clean_us) if clean_us else "", _ratio(clean_us, floor)] if clean else []),
        *(shown(of_peers.get(peer)) for peer in peers),
        f"{row['error']:.1e}".replace("e-0", "e-") if row["error"] else "0",
    ]


def _sanitizer(result: dict[str, Any]) -> str:
    """A row per op: what each tool came to, and the kernels that ran."""
    tools = ["plain", *result["tools"]]
    verdicts: dict[str, dict[str, str]] = {}
    kernels: dict[str, str] = {}
    for row in result["rows"]:
        rewritten = f", {row['rewritten']} arrivals rewritten" if row.get("rewritten") else ""
        verdicts.setdefault(row["op"], {})[row["tool"]] = row["verdict"] + rewritten
        kernels[row["op"]] = ", ".join(f"`{kernel.removeprefix('kernels.')}`" for kernel in row["kernels"])
    cells = [[op, *(said.get(tool, "not run") for tool in tools), kernels[op]] for op, said in verdicts.items()]
    return _table(["op", *tools, "kernels"], cells)


def _table(head: list[str], cells: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *cells))


def _ratio(us: float | None, floor: float | None) -> str:
    return f"{us / floor:.2f}" if us and floor else ""


def _number(value: float) -> str:
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    return "" if value is None else str(value)
