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
    "search": "types ops policies values environments language rollouts",
    "data": "types ops",
    "learners": "types ops losses networks policies values",
    "reporting": "types ops data environments rollouts",
    "training": f"types {LIBRARY} reporting",
    "play": f"types {LIBRARY} reporting training",
    "papers": f"types {LIBRARY} reporting training",
    "studies": f"types {LIBRARY} reporting training",
    "benchmarks": f"types {LIBRARY} reporting training",
    "documentation": "",
}
# What `experiments/` may import.
MAINS = ("training", "reporting", "play", "papers", "studies", "benchmarks", "documentation")
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
    "mctx": ("jaxagents/search/",),
    "h5py": ("jaxagents/data/",),
    **dict.fromkeys(("pyspiel", "open_spiel"), ("jaxagents/games/openspiel.py",)),
    **dict.fromkeys(("pickle", "cloudpickle", "dill", "shelve", "rlax"), ()),
}
TOP_LEVEL = {
    *("setup.cfg", "jaxagents", "experiments", "configs", "notebooks", "tests", "tpu_scripts"),
    *("README.md", "CONTRIBUTING.md", "SECURITY.md", "CITATION.cff", "Makefile", "LICENSE", "pyproject.toml"),
    *(".ci", ".git", ".github", ".gitignore", ".pre-commit-config.yaml", ".ruff.toml"),
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
    if path.name == "__init__.py" and rest == ["modules_of"]:
        return True
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


def commented_keys(text):
    """Returns `(number, key, value, comment)` of the lines of a YAML file that have a key.

    The comment is the one on the line or on the line above, "" without. Keys of Hydra's own and of `defaults` do not
    count, nor do those that only say how something is built (`_target_` and its like).
    """
    found, above, section = [], "", None
    for number, line in enumerate(text.splitlines(), start=1):
        alone = re.fullmatch(r"\s*#\s*(\S.*)", line)
        keyed = re.fullmatch(r"(\s*)([A-Za-z]\w*):(.*)", line)
        if keyed:
            indent, key, rest = keyed.groups()
            value, _, comment = rest.partition(" #")
            section = section if indent else key
            if section not in ("hydra", "defaults"):
                found.append((number, key, value.strip(), comment.strip() or above))
        above = alone.group(1) if alone else ""
    return found


def undocumented(texts):
    """Returns the keys with a value of the files of one group of options that no file of the group documents."""
    lines = [line for text in texts for line in commented_keys(re.sub(r"(?ms)^when_quick:.*?(?=^\S|\Z)", "", text))]
    return sorted({key for _, key, value, _ in lines if value} - {key for _, key, _, comment in lines if comment})


def needless_comments(text):
    """Returns the numbers of the lines of a YAML file whose comment says no more than their key and value."""
    return [
        number
        for number, key, value, comment in commented_keys(text)
        if comment and not _words(comment) - _words(f"{key} {value}") - _FILLERS or comment.lower() in _NOISE
    ]


_FILLERS = {
    *("a", "an", "and", "are", "as", "for", "in", "is", "it", "of", "on", "one", "or", "that", "the", "to", "what")
}
_NOISE = ("names the run directory", "file name", "what differs from train.yaml", "see above", "as above")


def _words(text):
    return {word.removesuffix("s") for word in re.findall(r"[a-z]+|[0-9.]+", text.lower())}


def missing_of_header(name, text):
    """Returns what the header of an experiment lacks of what it shows, its command, the expected result, the time."""
    header = re.match(r"# @package _global_\n((?:#.*\n)*)", text).group(1)
    wanted = {
        "what it shows": r"\A# (?!Run:)\S",
        "the command": rf"^# Run: python experiments/train.py experiment={name}(\s|$)",
        "the expected result": r"^# Expect: \S",
        "the time": r"\b(seconds?|minutes?|hours?)\b",
    }
    return [what for what, pattern in wanted.items() if not re.search(pattern, header, re.MULTILINE)]


def _relative(path):
    return path.relative_to(ROOT).as_posix()


def test_every_folder_is_in_the_table():
    # Links to `configs` and `experiments` put these into the wheel.
    paths = [path for path in (ROOT / "jaxagents").iterdir() if not path.is_symlink()]
    entries = {path.name.removesuffix(".py") for path in paths} - {"__pycache__", "py.typed"}
    assert entries <= set(MAY_IMPORT)
    linked = {path.name: path.resolve() for path in (ROOT / "jaxagents").iterdir() if path.is_symlink()}
    assert linked == {name: ROOT / name for name in ("configs", "experiments")}


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


CONFIG_TEXTS = {
    path: path.read_text()
    for folder in ("configs", "experiments/papers", "experiments/studies")
    for path in sorted((ROOT / folder).rglob("*.yaml"))
}
# Files that choose and set what others offer; all other files offer options.
CHOOSE = ("experiment", "world", "algorithm", "method", "base", "papers", "studies")


def test_configs_are_short():
    assert CONFIG_TEXTS
    long = {_relative(path): len(text.splitlines()) for path, text in CONFIG_TEXTS.items()}
    assert {path: length for path, length in long.items() if length > MAX_YAML} == {}


def test_every_option_is_documented_in_its_group():
    groups = {}
    for path, text in CONFIG_TEXTS.items():
        folder = path.relative_to(ROOT).parts[1]
        if folder not in CHOOSE:
            groups.setdefault(folder, []).append(text)
    assert {group: keys for group, texts in groups.items() if (keys := undocumented(texts))} == {}


def test_no_comment_repeats_its_line():
    assert {_relative(p): lines for p, text in CONFIG_TEXTS.items() if (lines := needless_comments(text))} == {}


def test_every_experiment_says_what_it_shows_and_what_to_expect():
    experiments = {path.stem: text for path, text in CONFIG_TEXTS.items() if path.parent.name == "experiment"}
    assert experiments
    assert {name: lacks for name, text in experiments.items() if (lacks := missing_of_header(name, text))} == {}


def test_options_without_a_comment_are_found():
    first = "# About all.\n_target_: a.b\nrate: 1 # per second\nsize: 2\n# In metres.\nlength: 3\nnested:\n  deep: 1\n"
    assert undocumented([first]) == ["deep", "size"]
    assert undocumented([first, "size: 5 # of a side\nnested: # both\n  deep: 2 # in a row\n"]) == []
    assert undocumented(["hydra:\n  run:\n    dir: .\nwhen_quick: # seconds\n  rate: 1\nseed: 0\n"]) == ["seed"]


def test_comments_that_say_nothing_are_found():
    text = "seeds: 5 # the seeds\nname: x # names the run directory\nnum_envs: 4 # side by side\nsize: 3 # size 3\n"
    assert needless_comments(text) == [1, 2, 4]


def test_headers_that_lack_something_are_found():
    header = (
        "# @package _global_\n# Shows x.\n# Run: python experiments/train.py experiment=x\n# Expect: 5, in a minute.\n"
    )
    assert missing_of_header("x", header + "defaults:\n") == []
    assert missing_of_header("y", header) == ["the command"]
    assert missing_of_header("x", header.replace("minute", "moment").replace("Expect", "Hope")) == [
        "the expected result",
        "the time",
    ]
    nothing = missing_of_header("x", "# @package _global_\na: 1 # 2 minutes\n")
    assert nothing == ["what it shows", "the command", "the expected result", "the time"]


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


def test_the_guide_has_the_table_of_imports():
    text = (ROOT / "experiments/docs/architecture.md").read_text().partition("| folder | holds | may import |")[2]
    found, above = {}, set()
    for folder, cell in re.findall(r"^\| `(\w+)` \| .* \| ([\w, ]+) \|$", text.partition("\n\n")[0], re.MULTILINE):
        every, _, without = cell.partition(" but ")
        named = above - set(without.split(", ")) if every == "all above" else set(every.split(", ")) - {"nothing"}
        found[folder] = named
        above = above | {folder}
    assert found == {folder: set(names.split()) for folder, names in MAY_IMPORT.items() if folder != "__init__"}
