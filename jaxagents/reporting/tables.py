"""Tables for the terminal."""

import math
from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from jaxagents.reporting.statistics import Interval


def print_speeds(title: str, rows: Mapping[str, Mapping[str, float]]) -> None:
    """Prints the result of `benchmarks.timing.measure`."""
    cells = [
        (name, f"{row['per_second']:,.0f}", f"{100 * row['spread']:.0f} %", f"{row['compile_seconds']:.1f}")
        for name, row in rows.items()
    ]
    print_table(title, ("what", "per second", "spread", "compile s"), cells)


def print_table(title: str | None, head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Prints rows of text; the first column is left-aligned, the others are right-aligned."""
    table = Table(title=title)
    for index, column in enumerate(head):
        table.add_column(column, justify="right" if index else "left", overflow="fold")  # Nothing is cut off.
    for row in rows:
        table.add_row(*map(escape, row))
    Console().print(table)


def describe_number(number: float) -> str:
    """Formats a number with three significant digits; from 1,000 on with commas instead of an exponent; "-" for NaN."""
    if math.isnan(number):
        return "-"
    text = f"{number:.3g}"
    return f"{float(text):,.0f}" if 1e3 <= abs(float(text)) < 1e12 else text


def describe_interval(interval: Mapping[str, float | None] | None) -> str:
    """Returns "mean (low to high)", the mean alone if there is no interval or no visible width, and "-" for None."""
    if interval is None:
        return "-"
    numbers = (interval[name] for name in Interval._fields)
    mean, low, high = ("-" if number is None else describe_number(number) for number in numbers)
    return mean if low == high else f"{mean} ({low} to {high})"


def markdown_row(*cells: str) -> str:
    """Returns a row of a table in Markdown."""
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |\n"


def print_plan(title: str, rows: Mapping[str, Mapping[str, float | bool]]) -> None:
    """Prints the result of `training.planning.plan_devices`; parts in GiB per device."""
    parts = [name.removesuffix("_gib") for name in next(iter(rows.values())) if name.endswith("_gib")]
    cells = []
    for name, row in rows.items():
        sizes = [f"{row[f'{part}_gib']:,.2f}" for part in parts]
        speeds = [f"{row[f'{work}_tokens_per_second']:,.0f}" for work in ("trained", "decoded")]
        cells.append((name, *sizes, "yes" if row["fits"] else "no", *speeds))
    print_table(title, ("devices", *parts, "fits", "trained tokens/s", "sampled tokens/s"), cells)
