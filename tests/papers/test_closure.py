"""Hashes of code: what a definition reaches, and which changes of a file count."""

import pytest

from jaxagents.papers import closure
from jaxagents.papers.closure import code_digest, find_targets, reach

FILES = {
    "__init__.py": "",
    "ops/__init__.py": "",
    "ops/shared.py": "SCALE = 2.0\n\ndef scaled(x):\n    return SCALE * x\n\ndef unused(x):\n    return x\n",
    "types/__init__.py": "from jaxagents.types.arrays import Array\n",
    "types/arrays.py": "class Array:\n    kind = 1\n",
    "main.py": (
        "import numpy as np\n"
        "from jaxagents.ops import shared\n"
        "from jaxagents.types import Array\n\n"
        "LIMIT = 3\n\n"
        'def make(x: Array) -> Array:\n    """Makes."""\n    return _inner(x)\n\n'
        "def _inner(x):\n    from jaxagents.ops.later import late\n    return late(shared.scaled(x), LIMIT)\n\n"
        "def other(x):\n    return np.sum(x) + Array.kind\n"
    ),
    "ops/later.py": "def late(x, limit):\n    return x\n",
    "ops/checks.py": (
        "WORDS = 'positive'\n\n"
        "def require(name, value):\n"
        "    near = [other for other in value]\n"
        "    for one in value:\n"
        "        if one < 0:\n"
        "            raise ValueError(f'{name} must be {WORDS}, got {one} of {near}')\n\n"
        "def require_all(values):\n    if values:\n        require('values', values)\n        return\n\n"
        "def checked(x):\n    if x < 0:\n        raise ValueError('checked')\n    return x\n\n"
        "def keep(x, seen):\n    if not x:\n        raise ValueError('keep')\n    seen.append(x)\n\n"
        "def take(x):\n    last = x.pop()\n    if not last:\n        raise ValueError('take')\n\n"
        "def mark(x):\n    x.seen = True\n"
    ),
    "passed.py": "from jaxagents.ops.checks import require\n",
    "user.py": (
        "from jaxagents.ops import checks\n"
        "from jaxagents.passed import require as demand\n\n"
        "def make(x):\n"
        "    demand('x', x)\n    checks.require_all(x)\n    checks.checked(x)\n"
        "    checks.keep(x, [])\n    checks.take(x)\n    checks.mark(x)\n"
        "    if x is None:\n        raise TypeError('no x')\n    return x\n\n"
        "def value(x):\n    return map(demand, x)\n\n"
        "def caught(x):\n    try:\n        demand('x', x)\n    except ValueError:\n        x = 0\n    return x\n\n"
        "def shadowed(x, demand):\n    demand('x', x)\n    return x\n"
    ),
}


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Returns `(path, before, after) -> None`, which edits a small package in place of ours."""

    def forget():
        for cached in (closure._digest, closure._parse, closure._file, closure._read_definition):
            cached.cache_clear()

    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(closure, "_ROOT", tmp_path)
    forget()

    def edit(name, before, after):
        text = (tmp_path / name).read_text()
        assert before in text
        (tmp_path / name).write_text(text.replace(before, after))
        forget()

    yield edit
    monkeypatch.undo()
    forget()


def test_definitions_are_followed_by_name(package):
    found, others = reach(["jaxagents.main.make"])
    assert {f"{module.removeprefix('jaxagents.')}.{name}" for module, name in found} == {
        *("main.make", "main._inner", "main.LIMIT", "ops.shared.scaled", "ops.shared.SCALE", "ops.later.late")
    }
    assert others == set()
    found, others = reach(["jaxagents.main.other"])
    assert ("jaxagents.types.arrays", "Array") in found and others == {"numpy"}


@pytest.mark.parametrize(
    ("name", "before", "after", "counts"),
    [
        ("ops/shared.py", "SCALE = 2.0", "SCALE = 3.0", True),
        ("ops/shared.py", "return SCALE * x", "return x * SCALE", True),
        ("ops/later.py", "return x", "return x + limit", True),
        ("main.py", "LIMIT = 3", "LIMIT = 4", True),
        ("ops/shared.py", "def unused(x):\n    return x", "def unused(x):\n    return 5", False),
        ("main.py", "return np.sum(x)", "return np.mean(x)", False),
        ("main.py", "Makes.", "Builds.", False),
        ("main.py", "(x: Array) -> Array", "(x)", False),
        ("main.py", "LIMIT = 3\n", "LIMIT = 3  # At most.\n", False),
    ],
)
def test_changes_count_where_they_are_reached(package, name, before, after, counts):
    earlier = code_digest(["jaxagents.main.make"])
    package(name, before, after)
    assert (code_digest(["jaxagents.main.make"]) != earlier) == counts


@pytest.mark.parametrize(
    ("name", "before", "after", "counts"),
    [
        ("ops/checks.py", "got {one}", "not {one}", False),  # Better words,
        ("ops/checks.py", "WORDS = 'positive'", "WORDS = 'above zero'", False),
        ("ops/checks.py", "if one < 0", "if one <= 0", False),  # and another refusal: the run was not refused.
        ("ops/checks.py", "if values:", "if len(values):", False),
        ("user.py", "    demand('x', x)\n    checks.require_all(x)\n", "    checks.require_all(x)\n", False),
        ("user.py", "'no x'", "'x is missing'", False),
        ("user.py", "if x is None", "if not x", True),  # A condition stands in the function itself.
        ("user.py", "TypeError", "ValueError", True),
        ("ops/checks.py", "'checked'", "'looked at'", False),
        ("ops/checks.py", "    return x\n", "    return -x\n", True),  # It has a value, wanted here or not,
        ("ops/checks.py", "if x < 0", "if x <= 0", True),
        ("ops/checks.py", "if not x", "if x is None", True),  # or changes what it is given,
        ("ops/checks.py", "if not last", "if last is None", True),
        ("ops/checks.py", "x.seen = True", "x.seen = False", True),
        (
            "ops/checks.py",
            "            raise ValueError(f'{name} must be {WORDS}, got {one} of {near}')\n",
            "            return 1\n",
            True,
        ),
    ],
)
def test_what_only_refuses_does_not_count(package, name, before, after, counts):
    earlier = code_digest(["jaxagents.user.make"])
    package(name, before, after)
    assert (code_digest(["jaxagents.user.make"]) != earlier) == counts


@pytest.mark.parametrize("user", ["value", "caught", "shadowed"])
def test_refusals_count_where_they_are_values_or_may_be_caught(package, user):
    found, _ = reach([f"jaxagents.user.{user}"])
    assert ("jaxagents.ops.checks", "require") in found
    assert ("jaxagents.ops.checks", "require") not in reach(["jaxagents.user.make"])[0]


def test_our_own_trainings_are_not_known_by_their_refusals():
    found, _ = reach(["jaxagents.learners.ppo.make_agent", "jaxagents.training.build.build_stage"])
    assert {("jaxagents.training.build", "build_stage"), ("jaxagents.training.config", "make_section")} <= set(found)
    refusals = {"ops.checks.require_positive", "training.config.refuse_keywords", "training.fitting.require_fit"}
    assert not refusals & {f"{module.removeprefix('jaxagents.')}.{name}" for module, name in found}


def test_versions_of_packages_count(package, monkeypatch):
    earlier = code_digest(["jaxagents.main.other"])
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.0.0")
    closure._digest.cache_clear()
    assert code_digest(["jaxagents.main.other"]) != earlier


@pytest.mark.parametrize("name", ["walks.py", "helpers/__init__.py", "helpers/deep/steps.py", "jaxagents"])
def test_files_of_a_user_count_with_what_they_import(package, tmp_path, monkeypatch, name):
    folder = tmp_path / "own"
    (folder / "helpers" / "deep").mkdir(parents=True)
    (folder / "walks.py").write_text(
        "import math\nimport jax\nfrom jaxagents.user import value\nfrom helpers import deep\n"
    )
    for file in ("helpers/__init__.py", "helpers/deep/steps.py", "other.py"):
        (folder / file).write_text("x = 1\n")
    monkeypatch.syspath_prepend(folder)
    earlier = code_digest(["walks.walk"])
    assert {"walks", "helpers", "jax"} <= reach(["walks.walk"])[1]
    (folder / "other.py").write_text("x = 2\n")
    closure._digest.cache_clear()
    assert code_digest(["walks.walk"]) == earlier  # Nobody imports it.
    if name == "jaxagents":
        package("user.py", "map(demand, x)", "map(demand, x + x)")
    else:
        (folder / name).write_text((folder / name).read_text() + "y = 1\n")
        closure._digest.cache_clear()
    assert code_digest(["walks.walk"]) != earlier


def test_targets_are_found_in_nested_data():
    node = {"a": [{"_target_": "x.y"}, {"b": {"_target_": "z", "c": {"_target_": "w"}}}], "_target_": None}
    assert list(find_targets(node)) == ["x.y", "z", "w"]


def test_our_own_trainings_reach_their_learner_and_the_loop():
    found, others = reach(["jaxagents.learners.ppo.make_agent", "jaxagents.papers.seeds.train_seeds"])
    assert {("jaxagents.training.chunks", "run_chunks"), ("jaxagents.learners.ppo", "make_agent")} <= set(found)
    assert not [name for module, name in found if module == "jaxagents.learners.dqn"]
    assert {"jax", "optax"} <= others
