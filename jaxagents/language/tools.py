"""Basic tools: a calculator, and a search over the user's documents."""

import ast
import json
import operator
import re
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path

_OPERATORS: dict[type, Callable[..., float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
_MOST_CHARACTERS = 200


def calculate(expression: str) -> str:
    """Calculates a number.

    Args:
        expression: of numbers, + - * / // % and brackets, such as 12 * (3 + 4).

    Returns:
        The number.
    """
    if len(expression) > _MOST_CHARACTERS:
        raise ValueError(f"the expression has more than {_MOST_CHARACTERS} characters")
    return f"{_value(ast.parse(expression, mode='eval').body):.12g}"


def search(query: str, path: str, limit: int = 1) -> str:
    """Searches documents for words.

    Args:
        query: words that a document should have.
        path: of a text file with a document per line, or of JSON lines with a field `text`.
        limit: most documents to return.

    Returns:
        The documents that have most of the words, the rarer ones first.
    """
    documents = _read(path)
    wanted, counts = _words(query), Counter(word for _, words in documents for word in words)
    scores = [(sum(1.0 / counts[word] for word in wanted & words), text) for text, words in documents]
    found = sorted((one for one in scores if one[0] > 0.0), key=lambda one: -one[0])
    return "\n".join(text for _, text in found[: max(limit, 1)]) or "No document has these words."


def _value(node: ast.AST) -> float:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return node.value
    function = _OPERATORS.get(type(getattr(node, "op", None)))
    if function is not None and isinstance(node, ast.BinOp):
        return function(_value(node.left), _value(node.right))
    if function is not None and isinstance(node, ast.UnaryOp):
        return function(_value(node.operand))
    raise ValueError("only numbers, + - * / // % and brackets can be calculated")


@cache
def _read(path: str) -> list[tuple[str, set[str]]]:
    """Returns the documents of a file, and the set of words of each."""
    lines = [line for line in Path(path).expanduser().read_text(encoding="utf-8").split("\n") if line.strip()]
    texts = [json.loads(line)["text"] if line.startswith("{") else line for line in lines]
    return [(text, _words(text)) for text in texts]


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.casefold()))
