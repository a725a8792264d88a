"""What a run measured, as grids: recall by length and depth, exponents by layer, any other metric by its tags.

Contract: numbers are printed with two decimals or as a percentage of n items; n stands under the grid.
"""

from __future__ import annotations

from collections.abc import Sequence

from store.models import Metric
from tui.view import CaseView, Cell, RunView
from tui.widgets.grid_map import Grid, GridCell
from tui.widgets.spans import Tone
from tui.words import number

_HEAT: tuple[tuple[float, Tone], ...] = ((0.5, "heat0"), (0.75, "heat1"), (0.9, "heat2"), (0.99, "heat3"))
_NUM_ROWS = 40
_LABEL = 60  # cells of a metric's name and tags


def heat(value: float) -> Tone:
    """Shade of a share between 0 and 1."""
    return next((tone for limit, tone in _HEAT if value < limit), "heat4")


def _ordered(labels: Sequence[str]) -> list[str]:
    """Numbers by size, words by the alphabet, numbers first."""

    def key(label: str) -> tuple[int, float, str]:
        try:
            return (0, float(label), label)
        except ValueError:
            return (1, 0.0, label)

    return sorted(dict.fromkeys(labels), key=key)


def recall_grid(cells: Sequence[Cell], title: str) -> Grid:
    """Depth down, length across, per cent of the items answered."""
    lengths = _ordered([cell.length for cell in cells])
    depths = _ordered([cell.depth for cell in cells])
    at = {(cell.length, cell.depth): cell for cell in cells}
    rows = []
    for depth in depths:
        line: list[GridCell | None] = []
        for length in lengths:
            cell = at.get((length, depth))
            line.append(GridCell(f"{100 * cell.total / cell.n:.0f}", heat(cell.total / cell.n)) if cell else None)
        rows.append((depth, tuple(line)))
    counts = [cell.n for cell in cells]
    foot = f"% of n={min(counts)}" + (f"..{max(counts)}" if max(counts) != min(counts) else "") + " items a cell"
    return Grid(title=title, corner="depth", columns=tuple(lengths), rows=tuple(rows), foot=foot)


def _exponent_tone(value: float, branch: str) -> Tone:
    wanted = 0.0 if branch == "shared" else 1.0
    return "heat4" if abs(value - wanted) < 0.05 else "heat0"


def exponent_grid(metrics: Sequence[Metric]) -> Grid:
    """Layer and branch down, phase across: 1 is once, 2 doubled, 0 missing; the shared branch has none."""
    phases = list(dict.fromkeys(str(metric.tags.get("phase", "")) for metric in metrics))
    labels = list(dict.fromkeys((str(m.tags.get("layer", "")), str(m.tags.get("branch", ""))) for m in metrics))
    at = {
        (str(m.tags.get("layer", "")), str(m.tags.get("branch", "")), str(m.tags.get("phase", ""))): m for m in metrics
    }
    rows = []
    for layer, branch in labels:
        line: list[GridCell | None] = []
        for phase in phases:
            metric = at.get((layer, branch, phase))
            line.append(GridCell(f"{metric.value:.2f}", _exponent_tone(metric.value, branch)) if metric else None)
        rows.append((f"L{layer} {branch}", tuple(line)))
    foot = "1 once, 2 doubled, 0 missing; shared 0"
    return Grid(title="exponent of the factor", corner="layer", columns=tuple(phases), rows=tuple(rows), foot=foot)


def metric_grid(metrics: Sequence[Metric]) -> Grid:
    """Any metrics, one row each, with n and interval where the target gave them."""
    shown = metrics[:_NUM_ROWS]
    with_n = any(metric.n is not None for metric in shown)
    with_interval = any(metric.low is not None for metric in shown)
    columns = ("value", *(("n",) if with_n else ()), *(("interval",) if with_interval else ()))
    rows = []
    for metric in shown:
        cells = [GridCell(number(metric.value), "plain")]
        if with_n:
            cells.append(GridCell("" if metric.n is None else str(metric.n), "dim"))
        if with_interval:
            interval = f"{number(metric.low)}..{number(metric.high)}" if metric.low is not None else ""
            cells.append(GridCell(interval, "dim"))
        rows.append((f"{metric.name} {_tags(metric)}"[:_LABEL], tuple(cells)))
    foot = f"and {len(metrics) - _NUM_ROWS} more" if len(metrics) > _NUM_ROWS else ""
    return Grid(title="metrics", corner="", columns=columns, rows=tuple(rows), foot=foot)


def _tags(metric: Metric) -> str:
    return " ".join(
        f"{key}={number(value) if isinstance(value, float) else value}" for key, value in metric.tags.items()
    )


def grids_of(run: RunView, case: CaseView) -> list[Grid]:
    """The grids of a run; recall beside the same of the base arm, so that the difference can be seen."""
    measured = run.measured
    if measured is None:
        return []
    grids = []
    if measured.cells:
        grids.append(recall_grid(measured.cells, f"recall, {run.run.arm}"))
        for arm in ("base", "full", "full+fix"):
            other = next((view for view in reversed(case.runs) if _same_probe(view, run, arm)), None)
            if other is not None and other.measured is not None and other.measured.cells:
                grids.append(recall_grid(other.measured.cells, f"recall, {arm} (run {other.run.id})"))
    exponents = [metric for metric in measured.metrics if metric.name == "exponent" and "branch" in metric.tags]
    if exponents:
        grids.append(exponent_grid(exponents))
    # What the cells say already is not said again.
    in_cells = {"length", "depth"} if measured.cells else set()
    rest = [
        metric
        for metric in measured.metrics
        if metric not in exponents and not (in_cells and in_cells <= metric.tags.keys())
    ]
    if rest:
        grids.append(metric_grid(rest))
    return grids


def _same_probe(view: RunView, run: RunView, arm: str) -> bool:
    return view.run.arm == arm and view.run.probe == run.run.probe and view.run.id != run.run.id and arm != run.run.arm
