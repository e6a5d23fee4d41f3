"""Expected results of a study or a paper, written down before the runs."""

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jaxagents.papers.metrics import parse_metric

START = "start"  # In expectations, stands for what the other arm starts from.
_FORMS = (
    "{better: a, worse: b, margin: x} of the own metric, {higher: a, lower: b, margin: x}, {equal: [a, b], margin: x}, "
    "{arm: a, above: x}, {arm: a, below: x}, {arm: a, near: x, margin: y}, {arm: a, than: metric, margin: x} or "
    "{wins: a, against: [b, c], within: x, above: share}"
)


class Expectation(NamedTuple):
    """One expected result.

    Attributes:
        metric: metric of the arms; for "wins" a pattern such as `exploitability_*`, one metric per game.
        kind: "higher" and "lower": the metric of the first arm is at least `margin` higher (lower) than that of the
            second, or than another metric of the second arm, `than`; "equal": they differ by at most `margin`; "above"
            and "below": the metric of the only arm is above or below `margin`; "near": it is within `margin` of
            `value`; "wins": the share of games in which the first arm is best, or within `tolerance` of the best, is
            above `margin`.
        arms: names of one arm, two arms, or all that "wins" compares; `START` stands for what the other arm starts
            from.
        margin: margin, in units of the metric.
        confidence: confidence of the interval that decides.
        than: metric of the second arm, if it differs from `metric`.
        value: target value of "near".
        tolerance: distance from the best within which a game counts as won, for "wins".
        effect: expected effect, for which the number of seeds was chosen; it decides nothing.
        higher_is_better: whether higher values are better, for "wins".
    """

    metric: str
    kind: str
    arms: tuple[str, ...]
    margin: float
    confidence: float = 0.95
    than: str | None = None
    value: float = 0.0
    tolerance: float = 0.0
    effect: float | None = None
    higher_is_better: bool = True

    @property
    def metrics(self) -> tuple[str, ...]:
        """Returns the metrics that the arms must log; none for "wins", whose games are found by a pattern."""
        named = () if self.kind == "wins" else (self.metric, self.than)
        return tuple(metric for metric in named if metric is not None)

    def describe(self) -> str:
        """Returns the expectation in words."""
        first, second = self.arms[0], self.arms[-1]
        if self.kind == "wins":
            others = ", ".join(self.arms[1:])
            near = f"or within {self.tolerance:g}, in at least {self.margin:.0%}"
            return f"{first} is best of {others} in {self.metric}, {near}"
        if self.kind == "near":
            return f"{self.metric} of {first} within {self.margin:g} of {self.value:g}"
        if self.kind in ("above", "below"):
            return f"{self.metric} of {first} {self.kind} {self.margin:g}"
        if self.kind == "equal":
            return f"{self.metric} of {first} and {second} equal within {self.margin:g}"
        other = f"of {second}" if self.than is None else f"its {self.than}"
        return f"{self.metric} of {first} {self.kind} than {other} by {self.margin:g}"


def make_expectations(
    name: str, nodes: Any, metric: str, higher_is_better: bool, arms: Sequence[str]
) -> tuple[Expectation, ...]:
    """Reads the entries of `headline`, `secondary` or `checks`.

    Args:
        name: name of the list, for error messages.
        nodes: plain data, see `_FORMS`; each may have its own `metric`, `confidence` and `effect`.
        metric: metric of entries that do not name one.
        higher_is_better: whether higher values of that metric are better.
        arms: arms that may be named.

    Returns:
        The expectations.

    Raises:
        ValueError: an entry has none of the known forms, names an arm that does not exist, has a number out of range,
            or has a metric that cannot be parsed.
    """
    if not isinstance(nodes or [], Sequence) or isinstance(nodes, str):
        raise ValueError(f"`{name}` must be a list of expectations, got {nodes!r}.")
    found = tuple(_make(f"{name}[{i}]", node, metric, higher_is_better) for i, node in enumerate(nodes or ()))
    for i, expectation in enumerate(found):
        for arm in expectation.arms:
            if arm not in arms:
                near = difflib.get_close_matches(str(arm), arms, n=1, cutoff=0.4)
                hint = f"; try {near[0]}" if near else ""
                raise ValueError(f"`{name}[{i}]` must be about the arms {', '.join(arms)}, got {arm!r}{hint}.")
    return found


def _make(name: str, node: Any, metric: str, higher_is_better: bool) -> Expectation:
    if not isinstance(node, Mapping):
        raise ValueError(f"`{name}` must be {_FORMS}; got {node!r}.")
    node = dict(node)
    own = {
        "metric": node.pop("metric", metric),
        "confidence": float(node.pop("confidence", 0.95)),
        "effect": node.pop("effect", None),
    }
    read = _read_form(node, own["metric"] == metric, higher_is_better)
    if read is None:
        raise ValueError(f"`{name}` must be {_FORMS}; got the keys {', '.join(node)} of {own['metric']}.")
    if not 0.0 < own["confidence"] < 1.0 or (read["kind"] not in ("above", "below") and read["margin"] < 0.0):
        raise ValueError(
            f"`{name}` must have a confidence between 0 and 1 and a margin of at least 0, got {own['confidence']} and "
            f"{read['margin']}."
        )
    made = Expectation(**own, **read)
    for named in made.metrics:
        parse_metric(named)
    return made


def _read_form(node: Mapping[str, Any], of_own_metric: bool, higher_is_better: bool) -> dict[str, Any] | None:
    keys = set(node)
    arms: tuple[Any, ...]
    if keys == {"better", "worse", "margin"} and of_own_metric:
        kind, arms = "higher" if higher_is_better else "lower", (node["better"], node["worse"])
    elif keys == {"higher", "lower", "margin"}:
        kind, arms = "higher", (node["higher"], node["lower"])
    elif keys == {"equal", "margin"} and isinstance(node["equal"], Sequence) and len(node["equal"]) == 2:
        kind, arms = "equal", tuple(node["equal"])
    elif keys == {"arm", "than", "margin"}:
        fields = {"margin": float(node["margin"]), "than": node["than"]}
        return {"kind": "higher", "arms": (node["arm"], node["arm"]), **fields}
    elif keys == {"arm", "near", "margin"}:
        return {"kind": "near", "arms": (node["arm"],), "margin": float(node["margin"]), "value": float(node["near"])}
    elif keys in ({"arm", "above"}, {"arm", "below"}):
        kind, arms = (keys - {"arm"}).pop(), (node["arm"],)
    elif keys == {"wins", "against", "within", "above"}:
        fields = {"margin": float(node["above"]), "tolerance": float(node["within"])}
        fields["higher_is_better"] = higher_is_better
        return {"kind": "wins", "arms": (node["wins"], *node["against"]), **fields}
    else:
        return None
    return {"kind": kind, "arms": arms, "margin": float(node.get("margin", node.get(kind, 0.0)))}
