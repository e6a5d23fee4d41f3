"""Tests of the metadata in setup.cfg, as installed."""

import ast
import configparser
import hashlib
import importlib.metadata
import json
import shutil
import subprocess
import sys
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests import ROOT

# What `make test` installs.
EXTRAS = (
    *("datasets", "gymnax", "envs", "evolution", "hf", "mcp", "openspiel", "papers", "search", "sweeps"),
    *("docs", "test"),
)


def test_installed_version_is_that_of_setup_cfg():
    config = configparser.ConfigParser(interpolation=None)
    config.read(ROOT / "setup.cfg")
    assert importlib.metadata.version("jaxagents") == config["metadata"]["version"]


def test_metadata():
    metadata = importlib.metadata.metadata("jaxagents")
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License"] == "Apache-2.0"
    extras = {*EXTRAS, "browser", "cuda12", "cuda13", "export", "host", "notebooks", "ray", "rows", "tpu", "tracking"}
    assert set(metadata.get_all("Provides-Extra")) == extras


def test_license_is_the_full_text():
    digest = hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest()
    assert digest == "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"


@pytest.mark.parametrize("extra", ["", *EXTRAS])
def test_requirements_are_bounded_and_hold(extra):
    requirements = [Requirement(line) for line in importlib.metadata.requires("jaxagents")]
    ours = [r for r in requirements if r.marker is None or r.marker.evaluate({"extra": extra})]
    assert ours
    for requirement in ours:
        assert requirement.specifier, f"{requirement.name} has no bounds"
        assert requirement.specifier.contains(importlib.metadata.version(requirement.name), prereleases=True)


def test_envs_hold_the_light_set():
    names = {extra: set() for extra in EXTRAS}
    for line in importlib.metadata.requires("jaxagents"):
        requirement = Requirement(line)
        for extra in EXTRAS:
            if requirement.marker is not None and requirement.marker.evaluate({"extra": extra}):
                names[extra].add(requirement.name)
    assert names["gymnax"] == {"gymnax", "gymnasium", "six"} and names["gymnax"] < names["envs"]


def test_every_folder_of_the_package_is_found():
    folders = {path.parent for path in (ROOT / "jaxagents").rglob("*.py")}
    assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []


def test_pyproject_is_the_build_system_only():
    assert list(tomllib.loads((ROOT / "pyproject.toml").read_text())) == ["build-system"]


def test_modules_that_are_named_for_mypy_exist():
    config = configparser.ConfigParser(interpolation=None)
    config.read(ROOT / "setup.cfg")
    paths = [path.relative_to(ROOT).as_posix() for path in (ROOT / "jaxagents").rglob("*.py")]
    modules = {path.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for path in paths}
    for section in config.sections():
        for name in section.removeprefix("mypy-").split(",") if section.startswith("mypy-") else ():
            assert name.removesuffix(".*") in modules, name


def test_everything_that_is_imported_is_declared():
    config = configparser.ConfigParser(interpolation=None)
    config.read(ROOT / "setup.cfg")
    sections = [config["options"]["install_requires"], *config["options.extras_require"].values()]
    lines = [line for section in sections for line in section.split("\n") if line and line[0] not in "#%"]
    declared = {canonicalize_name(Requirement(line).name) for line in lines}
    providers = importlib.metadata.packages_distributions()
    ours = {*sys.stdlib_module_names, "jaxagents"}
    imported = {}
    for path in [*(ROOT / "jaxagents").rglob("*.py"), *(ROOT / "experiments").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            imported |= {root: path.name for name in names if (root := name.partition(".")[0]) not in ours}
    names_of = {root: {canonicalize_name(name) for name in providers.get(root, [root])} for root in imported}
    assert len(imported) > 10
    assert {root: imported[root] for root, names in names_of.items() if not names & declared} == {}


@pytest.mark.slow
def test_the_wheel_trains_without_the_repository(tmp_path, one_device):
    """Our package alone is installed anew; those that it needs are this environment's."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    settings = {"capture_output": True, "text": True, "timeout": 300}
    build = [
        *pip,
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        str(tmp_path),
        str(copied(tmp_path)),
    ]
    result = subprocess.run(build, **settings)
    assert result.returncode == 0, result.stderr
    (wheel,) = tmp_path.glob("jaxagents-*.whl")
    installed = tmp_path / "installed"
    result = subprocess.run(
        [*pip, "install", "--quiet", "--no-deps", "--target", str(installed), str(wheel)], **settings
    )
    assert result.returncode == 0, result.stderr
    for folder in ("configs", "experiments/papers", "experiments/studies"):
        ours, theirs = ROOT / folder, installed / "jaxagents" / folder
        names = {path.relative_to(ours) for path in ours.rglob("*.yaml")}
        assert names and names == {path.relative_to(theirs) for path in theirs.rglob("*.yaml")}
    shutil.rmtree(tmp_path / "source")
    environment = one_device | {"PYTHONPATH": str(installed)}
    command = [
        installed / "bin/jaxagents-train",
        "world=tmaze",
        "algorithm=ppo",
        "policy=mlp",
        "quick=true",
        "run_dir=run",
    ]
    quiet = ["logging.tensorboard=false", "logging.curves=false", "devices.compilation_cache=null"]
    result = subprocess.run([*command, *quiet], cwd=tmp_path, env=environment, **settings)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout.splitlines()[-1])["run_dir"] == str(tmp_path / "run")
    mistake = subprocess.run([installed / "bin/jaxagents-train", "sed=1"], cwd=tmp_path, env=environment, **settings)
    assert mistake.returncode == 2 and "try seed" in mistake.stderr
    for name in console_scripts():
        assert (installed / "bin" / name).exists()


def copied(folder):
    """Copies what a wheel is made of, so that the build leaves nothing in the repository."""
    ignore = shutil.ignore_patterns("__pycache__", "results", "docs")
    source = folder / "source"
    for name in ("jaxagents", "experiments", "configs"):
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=ignore)
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    return source


def console_scripts():
    config = configparser.ConfigParser(interpolation=None)
    config.read(ROOT / "setup.cfg")
    lines = config["options.entry_points"]["console_scripts"].strip().splitlines()
    return {line.partition("=")[0].strip(): line.partition("=")[2].strip() for line in lines}


def test_console_scripts_are_functions_of_the_mains():
    for name, target in console_scripts().items():
        module, _, function = target.partition(":")
        main = name.removeprefix("jaxagents-")
        assert module == f"jaxagents.experiments.{main}"
        assert f"def {function}(" in (ROOT / f"experiments/{main}.py").read_text()
