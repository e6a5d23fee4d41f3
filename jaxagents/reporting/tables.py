"""Tables for the terminal."""

from collections.abc import Mapping
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table

from jaxagents.reporting.statistics import Interval


def print_speeds(title: str, rows: Mapping[str, Mapping[str, float]]) -> None:
    """Prints what `benchmarks.timing.measure` returned."""
    table = Table(title=title)
    for column in ("what", "per second", "spread", "compile s"):
        table.add_column(column, justify="left" if column == "what" else "right")
    for name, row in rows.items():
        table.add_row(
            name, f"{row['per_second']:,.0f}", f"{100 * row['spread']:.0f} %", f"{row['compile_seconds']:.1f}"
        )
    Console().print(table)


def print_paper(results: Mapping[str, Any], stream: TextIO | None = None) -> None:
    """Prints what `papers.verdicts.conclude` returned, to stdout unless there is another `stream`."""
    console = Console(file=stream)
    console.print(f"{results['title']}\nThe paper: {results['claim']}", markup=False, highlight=False)
    table = Table(title=f"{results['paper']}: means over seeds with 95 % intervals")
    for column in ("metric", "arm", "mean", "interval", "seeds"):
        table.add_column(column, justify="left" if column in ("metric", "arm") else "right")
    for metric in results["metrics"]:
        for name, of_metrics in {**results["summary"], **results["stale"]}.items():
            if metric in of_metrics:
                mean, _, interval = describe_interval(of_metrics[metric]).partition(" ")
                table.add_row(metric, name, mean, interval.strip("()"), str(of_metrics[metric]["num_seeds"]))
        table.add_section()
    console.print(table)
    for finding in results["findings"]:
        told = f"{finding['verdict']}: {finding['expectation']}; {describe_finding(finding)}"
        console.print(told, markup=False, highlight=False)
    minutes = f"{results['minutes']:.1f} of {results['minutes_planned']:g} minutes"
    console.print(f"Verdict: {results['verdict']} ({minutes})", markup=False, highlight=False)


def describe_interval(interval: Mapping[str, float] | None) -> str:
    """Returns "mean (low to high)", the mean alone where there is no interval or no width to be seen, "-" for None."""
    if interval is None:
        return "-"
    mean, low, high = (None if interval[name] is None else f"{interval[name]:.3g}" for name in Interval._fields)
    return mean if low == high else f"{mean} ({low} to {high})"


def describe_finding(finding: Mapping[str, Any]) -> str:
    """Returns what was measured of an expectation, or why nothing is said about it."""
    if finding["measured"] is None:
        return finding["reason"]
    return f"measured {describe_interval(finding['measured'])} over {finding['num_seeds']} seeds"
