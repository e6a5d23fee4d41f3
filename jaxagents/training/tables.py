"""Tables for the terminal."""

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table


def print_speeds(title: str, rows: Mapping[str, Mapping[str, float]]) -> None:
    """Prints what `benchmarks.measure` returned."""
    table = Table(title=title)
    for column in ("what", "per second", "spread", "compile s"):
        table.add_column(column, justify="left" if column == "what" else "right")
    for name, row in rows.items():
        table.add_row(
            name, f"{row['per_second']:,.0f}", f"{100 * row['spread']:.0f} %", f"{row['compile_seconds']:.1f}"
        )
    Console().print(table)
