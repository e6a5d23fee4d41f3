"""Tests of the shape of the code: who imports whom, how long things are, what lies where."""

import ast
import fnmatch
import pathlib
import re
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIBRARY = "ops losses networks policies values environments language rollouts games search data learners"
# Folder (or module) of jaxagents -> what it may import of the others.
MAY_IMPORT = {
    "__init__": "",
    "types": "",
    "ops": "types",
    "losses": "types ops",
    "networks": "types",
    "policies": "types ops networks",
    "values": "types ops networks",
    "environments": "types ops",
    "language": "types ops networks policies environments",
    "rollouts": "types ops policies values environments",
    "games": "types ops",
    "search": "types ops policies values environments language",
    "data": "types ops",
    "learners": "types ops losses networks policies values",
    "reporting": "types ops data environments rollouts",
    "training": f"types {LIBRARY} reporting",
    "play": f"types {LIBRARY} reporting training",
    "papers": f"types {LIBRARY} reporting training",
    "studies": f"types {LIBRARY} reporting training",
    "benchmarks": f"types {LIBRARY} reporting training",
}
# What `experiments/` may import.
MAINS = ("training", "reporting", "play", "papers", "studies", "benchmarks")
# Third-party package -> the only folders (or modules) that may import it.
CONFINED = {
    **dict.fromkeys(
        ("hydra", "omegaconf", "orbax"),
        ("jaxagents/training/", "jaxagents/papers/", "jaxagents/benchmarks/", "experiments/"),
    ),
    **dict.fromkeys(
        ("gymnax", "gymnasium", "jaxmarl", "jumanji", "pgx", "brax", "craftax", "xminigrid"),
        ("jaxagents/environments/adapters/", "jaxagents/benchmarks/"),
    ),
    **dict.fromkeys(("pyspiel", "open_spiel"), ("jaxagents/games/openspiel.py",)),
    **dict.fromkeys(("pickle", "cloudpickle", "dill", "shelve", "rlax"), ()),
}
TOP_LEVEL = {
    *("setup.cfg", "jaxagents", "experiments", "configs", "notebooks", "tests", "tpu_scripts"),
    *("README.md", "Makefile", "LICENSE", "pyproject.toml", ".ci", ".git", ".gitignore", ".ruff.toml"),
}
# Lines. A function's own are those without its docstring and without nested functions, which count for themselves: a
# `make_x` that returns a record of functions is as long as they are. MAX_MAKER bounds all of it.
MAX_MODULE, MAX_FUNCTION, MAX_MAKER, MAX_MAIN, MAX_YAML = 400, 60, 120, 80, 60

SOURCES = sorted([*(ROOT / "jaxagents").rglob("*.py"), *(ROOT / "experiments").rglob("*.py")])


def imported_modules(source):
    """Returns the dotted names that a module imports anywhere; `from a import b` gives `a.b`."""
    names = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [f"{'.' * node.level}{node.module or ''}.{alias.name}" for alias in node.names]
    return names


def forbidden_imports(path, source):
    """Returns the imports of the file `path` (relative to the root) that the tables above do not allow."""
    path = pathlib.PurePosixPath(path)
    return [name for name in imported_modules(source) if not _allowed(path, name)]


def _allowed(path, name):
    root, *rest = name.split(".")
    if root == "":  # Relative.
        return False
    if root in CONFINED and not str(path).startswith(CONFINED[root]):
        return False
    if path.parts[0] == "experiments":
        return root in {*sys.stdlib_module_names, "hydra", "omegaconf"} or name.startswith(
            tuple(f"jaxagents.{folder}." for folder in MAINS)
        )
    if root != "jaxagents":
        return root != "experiments"
    own = path.parts[1].removesuffix(".py")
    return bool(rest) and rest[0] in {own, *MAY_IMPORT[own].split()}


def long_functions(source):
    """Returns `name: lines` of the functions that are too long, by their own lines or by all."""
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, _FUNCTION)]
    return [
        f"{node.name}: {_own_lines(node)} of {_lines(node)}"
        for node in functions
        if _own_lines(node) > MAX_FUNCTION or _lines(node) > MAX_MAKER
    ]


_FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef


def _lines(node):
    return node.end_lineno - node.lineno + 1


def _own_lines(function):
    """Returns the number of lines of a function without its docstring and the functions in it."""
    nested, queue = [], list(ast.iter_child_nodes(function))
    while queue:
        node = queue.pop()
        if isinstance(node, _FUNCTION):
            nested.append(node)
        else:
            queue += ast.iter_child_nodes(node)
    docstring = function.body[:1] if ast.get_docstring(function) is not None else []
    return _lines(function) - sum(_lines(node) for node in [*nested, *docstring])


def uncommented_lines(text):
    """Returns the numbers of the lines of a YAML file that have no comment on them or on the line above."""
    missing, above = [], False
    for number, line in enumerate(text.splitlines(), start=1):
        alone = re.match(r"\s*#\s*(?!@package)\S", line) is not None
        content = line.strip() and not line.lstrip().startswith("#")
        if content and not above and not re.search(r"\s#\s*\S", line):
            missing.append(number)
        above = alone
    return missing


def _relative(path):
    return path.relative_to(ROOT).as_posix()


def test_every_folder_is_in_the_table():
    entries = {path.name.removesuffix(".py") for path in (ROOT / "jaxagents").iterdir()} - {"__pycache__"}
    assert entries <= set(MAY_IMPORT)


def test_imports_follow_the_arrows():
    wrong = {_relative(path): forbidden_imports(_relative(path), path.read_text()) for path in SOURCES}
    assert {path: names for path, names in wrong.items() if names} == {}


@pytest.mark.parametrize(
    ("path", "line", "allowed"),
    [
        ("jaxagents/ops/returns.py", "from jaxagents.types import Array", True),
        ("jaxagents/ops/returns.py", "from jaxagents.ops import masking", True),
        ("jaxagents/ops/returns.py", "from jaxagents.losses.value import td", False),
        ("jaxagents/ops/returns.py", "from jaxagents import losses", False),
        ("jaxagents/ops/returns.py", "import jaxagents", False),
        ("jaxagents/ops/returns.py", "def f():\n    import jaxagents.training.loop", False),
        ("jaxagents/ops/returns.py", "from .masking import x", False),
        ("jaxagents/ops/returns.py", "from . import masking", False),
        ("jaxagents/types.py", "from jaxagents.ops import masking", False),
        ("jaxagents/types.py", "import pickle", False),
        ("jaxagents/learners/ppo.py", "from jaxagents.data import buffers", False),
        ("jaxagents/learners/ppo.py", "import orbax.checkpoint as ocp", False),
        ("jaxagents/learners/ppo.py", "from experiments import train", False),
        ("jaxagents/training/loop.py", "from omegaconf import OmegaConf", True),
        ("jaxagents/training/loop.py", "from jaxagents.learners import ppo", True),
        ("jaxagents/training/loop.py", "from jaxagents.benchmarks import timing", False),
        ("jaxagents/reporting/reports.py", "from jaxagents.training import loop", False),
        ("jaxagents/environments/cartpole.py", "import gymnax", False),
        ("jaxagents/environments/adapters/gymnax.py", "import gymnax", True),
        ("experiments/train.py", "import hydra", True),
        ("experiments/train.py", "import os", True),
        ("experiments/train.py", "from jaxagents.training import loop", True),
        ("experiments/train.py", "from jaxagents.learners import ppo", False),
        ("experiments/train.py", "import jax", False),
    ],
)
def test_the_arrows_themselves(path, line, allowed):
    assert (forbidden_imports(path, line) == []) == allowed


def test_modules_and_functions_are_short():
    texts = {_relative(path): path.read_text() for path in SOURCES}
    lengths = {path: len(text.splitlines()) for path, text in texts.items()}
    limits = {path: MAX_MAIN if path.startswith("experiments/") else MAX_MODULE for path in texts}
    assert {path: length for path, length in lengths.items() if length > limits[path]} == {}
    assert {path: long for path, text in texts.items() if (long := long_functions(text))} == {}


def test_long_functions_are_found():
    line, docstring = "    x = 1\n", '    """A.\n\n    B.\n    """\n'
    assert long_functions("def f():\n" + line * 59) == []
    assert long_functions("class A:\n  def f():\n" + line * 60) == ["f: 61 of 61"]
    # Neither a docstring nor a nested function counts for the outer one, but everything counts for the whole.
    nested = docstring + "    def g():\n" + "        y = 2\n" * 59
    assert long_functions("def f():\n" + nested + line * 50) == []
    assert long_functions("def f():\n" + nested + line * 56) == ["f: 57 of 121"]


def test_configs_are_short_and_every_line_has_a_comment():
    files = sorted((ROOT / "configs").rglob("*.yaml"))
    assert files
    texts = {_relative(path): path.read_text() for path in files}
    assert {path: long for path, text in texts.items() if (long := len(text.splitlines())) > MAX_YAML} == {}
    assert {path: lines for path, text in texts.items() if (lines := uncommented_lines(text))} == {}


def test_uncommented_lines_are_found():
    text = "# @package _global_\na: 1\n# Two.\nb: 2\nc: 3\nd: 4  # Four.\n\n#\ne: '#5'\nf:  #\n"
    assert uncommented_lines(text) == [2, 5, 9, 10]


def test_nothing_is_called_utils():
    names = {path.stem for folder in ("jaxagents", "experiments", "tests") for path in (ROOT / folder).rglob("*")}
    assert not names & {"utils", "util", "helpers", "misc", "common"}


def test_the_top_level_is_fixed():
    ignored = [line.rstrip("/") for line in (ROOT / ".gitignore").read_text().split()]
    names = {path.name for path in ROOT.iterdir()}
    extra = {name for name in names if not any(fnmatch.fnmatch(name, pattern) for pattern in ignored)}
    assert extra <= TOP_LEVEL


def test_tests_mirror_the_package():
    folders = {path.parent.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("test_*.py")}
    others = {str(folder) for folder in folders if not (ROOT / "jaxagents" / folder).is_dir()}
    assert others <= {"experiments", "notebooks"}
