"""Which code a run goes through: a hash of every definition that its `_target_`s reach, and of the packages' versions.

Definitions are followed by name, from the syntax of the files: functions, classes and constants of `jaxagents` that a
definition mentions, those that these mention, and so on. Docstrings, comments and annotations of functions do not
count, so that what is only said differently keeps its runs. Nor does what only refuses: the words of a `raise`, and
statements that call a function which returns nothing and changes nothing, but may raise. A run that is stored was not
refused, and would be the same with other refusals. In a `try` or `with` statement an error may decide, and all counts.
Files of a user's own count whole, those that they import and all of a package included.
"""

import ast
import copy
import hashlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

_ROOT = Path(__file__).parents[1]
_OWN = "jaxagents"
_WHOLE = "*"  # All definitions of a module.
_WITH = {"jax": ("jax", "jaxlib")}  # Distributions of a package, where its name does not tell.
_BRANCHES = (ast.Raise, ast.Assert, ast.Pass, ast.Break, ast.Continue, ast.If, ast.While, ast.Import, ast.ImportFrom)
_EFFECTS = (ast.Yield, ast.YieldFrom, ast.Await)
_CHANGING = ("pop", "popitem", "setdefault")  # Methods that have a value and an effect.


class _Module(NamedTuple):
    """A file of ours.

    Attributes:
        definitions: top-level statements by the name that they define.
        imports: dotted name by the name that it has here.
    """

    definitions: Mapping[str, tuple[ast.stmt, ...]]
    imports: Mapping[str, str]


def code_digest(targets: Iterable[str]) -> str:
    """Computes the hash of all code that some functions reach.

    Args:
        targets: dotted names, such as `_target_`s of a config.

    Returns:
        16 hexadecimal digits.
    """
    return _digest(tuple(sorted(set(targets))))


def find_targets(node: Any) -> Iterator[str]:
    """Yields every `_target_` in nested plain data."""
    if isinstance(node, Mapping):
        if isinstance(node.get("_target_"), str):
            yield node["_target_"]
        for value in node.values():
            yield from find_targets(value)
    elif isinstance(node, list | tuple):
        for value in node:
            yield from find_targets(value)


def reach(targets: Iterable[str]) -> tuple[dict[tuple[str, str], str], set[str]]:
    """Follows definitions by name.

    Args:
        targets: dotted names.

    Returns:
        `(syntax of every definition of ours by module and name, names of other packages)`.
    """
    found: dict[tuple[str, str], str] = {}
    others: set[str] = set()
    queue = list(targets)
    while queue:
        dotted = queue.pop()
        package = dotted.partition(".")[0]
        if package != _OWN:
            queue += [] if package in others else _imports_of_files(package)
            others.add(package)
            continue
        module, name = _split(dotted)
        if (module, name) in found or not module:
            continue
        source = _parse(module)
        if name in source.imports and name not in source.definitions:
            queue.append(source.imports[name])
            continue
        found[module, name], mentioned = _read_definition(module, name)
        queue += mentioned
    return found, others


@cache
def _read_definition(module: str, name: str) -> tuple[str, tuple[str, ...]]:
    """Returns the syntax of a definition, and the dotted names that it mentions."""
    source = _parse(module)
    wanted = list(source.definitions) if name == _WHOLE else [name]
    statements = [statement for one in wanted for statement in _counting(module, one)]
    mentioned = [dotted for statement in statements for dotted in _mentioned(statement, module, source)]
    return "\n".join(ast.dump(statement) for statement in statements), tuple(mentioned)


@cache
def _digest(targets: tuple[str, ...]) -> str:
    found, others = reach(targets)
    parts = [f"{module}.{name}\n{syntax}" for (module, name), syntax in sorted(found.items())]
    parts += [f"{name}=={version}" for name, version in sorted(_versions(others))]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _versions(packages: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yields what identifies other packages: versions, or the source of files that belong to none."""
    for package in set(packages) - set(sys.stdlib_module_names):
        for name in _distributions_of(package):
            yield name, importlib.metadata.version(name)
        for path in _user_files(package):
            yield f"{package}/{path.name}", hashlib.sha256(path.read_bytes()).hexdigest()


def _imports_of_files(package: str) -> list[str]:
    """Returns the dotted names that the files of a user's own package import."""
    nodes = [node for path in _user_files(package) for node in ast.walk(ast.parse(path.read_bytes()))]
    modules = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    from_modules = [node for node in nodes if isinstance(node, ast.ImportFrom) and not node.level]
    return modules + [f"{node.module}.{alias.name}" for node in from_modules for alias in node.names]


def _user_files(package: str) -> list[Path]:
    """Returns the files of a package that belongs to no distribution: a user's folder, or a single file."""
    known = package in sys.stdlib_module_names or _distributions_of(package)
    spec = None if known else importlib.util.find_spec(package)
    if spec is None:
        return []
    if spec.submodule_search_locations is not None:
        return sorted(path for folder in spec.submodule_search_locations for path in Path(folder).rglob("*.py"))
    return [Path(spec.origin)] if spec.origin else []


def _distributions_of(package: str) -> list[str]:
    return sorted(set(_WITH.get(package) or _distributions().get(package, [])))


@cache
def _distributions() -> Mapping[str, list[str]]:
    return importlib.metadata.packages_distributions()


def _split(dotted: str) -> tuple[str, str]:
    """Splits a dotted name into its module and the first name in it; `_WHOLE` for a module."""
    parts = dotted.split(".")
    for end in range(len(parts), 0, -1):
        if _file(".".join(parts[:end])) is not None:
            return ".".join(parts[:end]), parts[end] if end < len(parts) else _WHOLE
    return "", ""


@cache
def _file(module: str) -> Any:
    place = _ROOT.joinpath(*module.split(".")[1:])
    files = [place / "__init__.py", place.with_suffix(".py")] if module != _OWN else [_ROOT / "__init__.py"]
    return next((path for path in files if path.is_file()), None)


@cache
def _parse(module: str) -> _Module:
    tree = _Stripped().visit(ast.parse(_file(module).read_text(encoding="utf-8")))
    definitions: dict[str, tuple[ast.stmt, ...]] = {}
    imports: dict[str, str] = {}
    queue = list(tree.body)
    while queue:
        statement = queue.pop(0)
        imports |= _imported(statement)
        if isinstance(statement, ast.If | ast.Try | ast.With):
            queue += [inner for inner in ast.iter_child_nodes(statement) if isinstance(inner, ast.stmt)]
        for name in _defined(statement):
            definitions[name] = (*definitions.get(name, ()), statement)
    return _Module(definitions, imports)


def _defined(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [statement.name]
    if isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        return [node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)]
    return []


def _imported(statement: ast.AST) -> dict[str, str]:
    """Returns what an import statement names, by the name that it has in the file."""
    if isinstance(statement, ast.Import):
        return {
            alias.asname or alias.name.partition(".")[0]: alias.name if alias.asname else alias.name.partition(".")[0]
            for alias in statement.names
        }
    if isinstance(statement, ast.ImportFrom):
        return {alias.asname or alias.name: f"{statement.module}.{alias.name}" for alias in statement.names}
    return {}


def _counting(module: str, name: str) -> tuple[ast.stmt, ...]:
    """Returns the statements that define a name, without what only refuses."""
    statements = _parse(module).definitions.get(name, ())
    return tuple(
        _WithoutRefusals(_callable_names(statement, module)).visit(copy.deepcopy(statement)) for statement in statements
    )


def _only_refuses(dotted: str, within: tuple[str, ...] = ()) -> bool:
    """Returns whether a name is that of a function that returns nothing and changes nothing, but may raise.

    It assigns to names of its own alone, and what it calls without using a value only refuses, too.
    """
    module, name = _split(dotted) if dotted.partition(".")[0] == _OWN and dotted not in within else ("", "")
    if not module or dotted != f"{module}.{name}":
        return False
    source, within = _parse(module), (*within, dotted)
    if name in source.imports and name not in source.definitions:
        return _only_refuses(source.imports[name], within)
    function, *others = source.definitions.get(name, (None,))
    if others or not isinstance(function, ast.FunctionDef) or function.decorator_list:
        return False
    names = _callable_names(function, module)
    inner = [node for node in ast.walk(function) if node is not function]
    if any(isinstance(node, _EFFECTS) or getattr(node, "attr", None) in _CHANGING for node in inner):
        return False
    return all(_is_harmless(node, names, within) for node in inner if isinstance(node, ast.stmt))


def _is_harmless(statement: ast.stmt, names: Mapping[str, str], within: tuple[str, ...]) -> bool:
    """Returns whether a statement of a function, those inside of it aside, does nothing beyond it but raise."""
    match statement:
        case ast.Return(value=value):
            return value is None
        case ast.Assign(targets=targets):
            return all(_is_name(target) for target in targets)
        case ast.AnnAssign(target=target) | ast.For(target=target):
            return _is_name(target)
        case ast.Expr(value=ast.Call(func=function)):
            return _only_refuses(_dotted(_chain(function), names), within)
    return isinstance(statement, _BRANCHES)


def _is_name(target: ast.expr) -> bool:
    return isinstance(target, ast.Name) or isinstance(target, ast.Tuple) and all(map(_is_name, target.elts))


def _names(statement: ast.stmt, module: str, source: _Module) -> dict[str, str]:
    """Returns the dotted name behind every name that a statement can mention: of imports and of the module's own."""
    inner = {name: dotted for node in _walk(statement) for name, dotted in _imported(node).items()}
    return {**{name: f"{module}.{name}" for name in source.definitions}, **source.imports, **inner}


def _callable_names(statement: ast.stmt, module: str) -> dict[str, str]:
    """Returns `_names` without those that the statement gives a value of its own."""
    own = {node.arg for node in ast.walk(statement) if isinstance(node, ast.arg)}
    own |= {node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return {name: dotted for name, dotted in _names(statement, module, _parse(module)).items() if name not in own}


def _dotted(chain: list[str], names: Mapping[str, str]) -> str:
    """Returns the dotted name of `a.b.c`; "" where `a` is none that the module has or imports."""
    return ".".join([names[chain[0]], *chain[1:]]) if chain and chain[0] in names else ""


def _mentioned(statement: ast.stmt, module: str, source: _Module) -> list[str]:
    """Returns the dotted names of definitions and packages that a statement mentions."""
    nodes = list(_walk(statement))
    names = _names(statement, module, source)
    found = []
    chains = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    for node in nodes:
        chain = _chain(node)
        if not chain or id(node) in chains:  # The longest chain alone: `a.b.c`, not `a.b` and `a`.
            continue
        if dotted := _dotted(chain, names):
            found.append(dotted)
    return found


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """Walks a tree without the annotations of variables."""
    yield node
    for name, value in ast.iter_fields(node):
        if name == "annotation":
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _walk(child)


def _chain(node: Any) -> list[str]:
    """Returns the names of `a.b.c`; nothing of other expressions."""
    if isinstance(node, ast.Name):
        return [node.id]
    chain = _chain(node.value) if isinstance(node, ast.Attribute) else []
    return [*chain, node.attr] if chain else []


class _WithoutRefusals(ast.NodeTransformer):
    """Removes what only refuses, see `_only_refuses`, and the words of errors; not where an error may be caught."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        if isinstance(node.exc, ast.Call):
            node.exc = ast.Call(node.exc.func, [], [])
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        called = _chain(node.value.func) if isinstance(node.value, ast.Call) else []
        return None if _only_refuses(_dotted(called, self._names)) else node

    def visit_Try(self, node: ast.Try) -> ast.AST:
        return node

    def visit_With(self, node: ast.With) -> ast.AST:
        return node


class _Stripped(ast.NodeTransformer):
    """Removes docstrings, and annotations of functions."""

    def visit(self, node: Any) -> Any:
        super().generic_visit(node)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.returns = None
        if isinstance(node, ast.arg):
            node.annotation = None
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            said = body[0].value
            if isinstance(said, ast.Constant) and isinstance(said.value, str):
                node.body = body[1:] or [ast.Pass()]
        return node
