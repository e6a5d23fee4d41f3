"""The generated pages: slots with their options, experiments, what there is to choose, commands, and the API."""

import re
from collections.abc import Mapping
from pathlib import Path

from jaxagents.documentation.markdown import cell, code, docstring_text, escape, function_text, settings_table, table
from jaxagents.documentation.notebooks import notebook_pages
from jaxagents.documentation.sources import Setting, read_header, read_module, read_settings, read_target

Pages = dict[str, str]  # path of a page -> its Markdown
# Folders of configs/ that choose and set what the others offer.
_CHOOSE = ("experiment", "world", "algorithm", "method", "base", "benchmark")
# Slots whose options are functions, and the module that holds them.
_FUNCTIONS = {
    "learner.rewards": "ops/reward_shaping",
    "learner.group_filter, collector.dynamic_sampling": "ops/group_filters",
    "learner.credits": "ops/credit_shaping",
    "learner.regularizers": "losses/regularizers",
    "a number that follows a schedule": "ops/schedules",
}
_CHOICES = {
    "world": ("Worlds", "`world=<name>`, with an algorithm that fits it"),
    "algorithm": ("Algorithms", "`algorithm=<name>`, with a world that it fits"),
    "experiment": ("Experiments", "`experiment=<name>`"),
    "method": ("Methods of papers", "`+method=<id>`, with a world and an algorithm; see [Methods](methods.md)"),
}


def slot_pages(root: Path) -> Pages:
    """Makes a page for every folder of options, and an overview.

    Args:
        root: of the repository.

    Returns:
        The pages.
    """
    pages, rows = {}, []
    for folder in sorted(path for path in (root / "configs").iterdir() if path.is_dir() and path.name not in _CHOOSE):
        files = sorted(folder.glob("*.yaml"))
        every = [setting for file in files for setting in read_settings(file)]
        pages[f"slots/{folder.name}.md"] = f"# {folder.name}\n\n" + "\n".join(_option(file, every) for file in files)
        names = " ".join(f"[`{file.stem}`](slots/{folder.name}.md#{file.stem})" for file in files)
        rows.append((f"[`{folder.name}`](slots/{folder.name}.md)", names))
    functions = []
    for slot, module in _FUNCTIONS.items():
        _, found = read_module(root / "jaxagents" / f"{module}.py", f"jaxagents.{module.replace('/', '.')}")
        functions.append(f"### {slot}\n\nFunctions of `jaxagents/{module}.py`, named by `_target_`:\n")
        about = [(_api_link(f"{one.module}.{one.name}"), cell(_first_sentence(one.docstring))) for one in found]
        functions.append(table(("function", "what it does"), about))
    pages["slots.md"] = "\n\n".join(
        [
            "# Slots and their options",
            "A *slot* is a place in a run for a choice. An option file of `configs/<slot>` fills it: "
            "`advantage=rloo` takes `configs/advantage/rloo.yaml`, and its settings are changed by their dotted names.",
            table(("slot", "options"), rows),
            "## Slots whose options are functions",
            *functions,
        ]
    )
    return pages


def experiment_pages(root: Path) -> Pages:
    """Makes a page for every experiment: what it shows, its command, what to expect, and what was measured."""
    files = sorted((root / "configs" / "experiment").glob("*.yaml"))
    measured = read_measured(root / "experiments" / "docs" / "results.md")
    pages, rows = {}, []
    for file in files:
        header = " ".join(read_header(file))
        about, _, rest = header.partition(" Run: ")
        usage, _, expected = rest.partition(" Expect: ")
        command, _, aside = usage.partition("  ")
        parts = [f"# {file.stem}", escape(about), "## Run it", f"```\n{command}\n```"]
        parts += [f"With another setting: {escape(aside.strip(' ()'))}."] if aside else []
        parts += ["## What to expect", escape(expected[:1].upper() + expected[1:])]
        if file.stem in measured:
            parts += ["## Measured", table(("run", "world", "expected", "measured"), measured[file.stem])]
        if (root / "experiments" / "docs" / "pictures" / "curves" / f"{file.stem}.png").exists():
            parts += [f"![The evaluations of one run of seed 0](../pictures/curves/{file.stem}.png)"]
        parts += ["## Its file", "What differs from `configs/train.yaml`:", f"```yaml\n{file.read_text()}```"]
        pages[f"experiments/{file.stem}.md"] = "\n\n".join(parts) + "\n"
        rows.append((f"[{file.stem}]({file.stem}.md)", cell(about)))
    pages["experiments/index.md"] = "# Experiments\n\n" + table(("experiment", "what it shows"), rows)
    return pages


def read_measured(path: Path) -> dict[str, list[list[str]]]:
    """Returns the rows of the table of results by the names of experiments in their first cell."""
    found: dict[str, list[list[str]]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        cells = [part.strip() for part in line.strip("|").split("|")]
        if line.startswith("| ") and len(cells) == 4:
            for name in re.findall(r"`(\w+)[ `]", cells[0]):
                found.setdefault(name, []).append(cells)
    return found


def choice_pages(root: Path) -> Pages:
    """Makes the page of what there is to choose: worlds, algorithms, experiments, papers, a line each."""
    parts = ["# What there is", "As `python experiments/train.py --list` prints it."]
    for folder, (title, usage) in _CHOICES.items():
        files = sorted((root / "configs" / folder).glob("*.yaml"))
        rows = [(code(file.stem), cell(" ".join(read_header(file)[:1]))) for file in files if read_header(file)]
        parts += [f"## {title}", usage, table(("name", "about"), rows)]
    papers = sorted((root / "experiments" / "papers").glob("*/*.yaml"), key=lambda path: path.stem)
    rows = [(code(file.stem), cell(" ".join(read_header(file)[:1]))) for file in papers]
    parts += ["## Papers", "`python experiments/reproduce.py paper=<name>`", table(("name", "about"), rows)]
    return {"choices.md": "\n\n".join(parts)}


def command_pages(root: Path) -> Pages:
    """Makes the page of all commands with their settings, from the mains and the configs that they name."""
    parts = ["# Commands", "Every main of `experiments/` takes `key=value` arguments; `--help` prints them all."]
    for file in sorted((root / "experiments").glob("[!_]*.py")):
        named = re.search(r'@command\(\s*"(\w+)"', file.read_text(encoding="utf-8"))
        if named:
            about, _ = read_module(file, "")
            config = root / "configs" / f"{named.group(1)}.yaml"
            parts += [
                f"## {file.name}",
                escape(about.partition("\n\n")[0]),
                settings_table(read_settings(config) if config.exists() else ()),
            ]
    return {"commands.md": "\n\n".join(parts)}


def api_pages(root: Path) -> Pages:
    """Makes a page for every folder of the package: its modules, functions and classes with their docstrings."""
    pages, rows = {}, []
    folders = [path.parent for path in (root / "jaxagents").glob("*/__init__.py")]
    for folder in sorted(folder for folder in folders if not folder.is_symlink()):
        about, _ = read_module(folder / "__init__.py", "")
        parts = [f"# jaxagents.{folder.name}", docstring_text(about)]
        for file in sorted(folder.rglob("*.py")):
            module = ".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
            module_doc, functions = read_module(file, module)
            if functions:
                own = "" if file.name == "__init__.py" and file.parent == folder else docstring_text(module_doc)
                parts += [f"## {module}", own, *map(function_text, functions)]
        pages[f"api/{folder.name}.md"] = "\n\n".join(parts)
        rows.append((f"[jaxagents.{folder.name}]({folder.name}.md)", cell(about.partition("\n\n")[0])))
    pages["api/index.md"] = "# API\n\nMade from the docstrings.\n\n" + table(("folder", "holds"), rows)
    return pages


def generated_pages(root: Path) -> Mapping[str, str]:
    """Makes all generated pages."""
    makers = (slot_pages, experiment_pages, choice_pages, command_pages, notebook_pages, api_pages)
    return {name: text for make in makers for name, text in make(root).items()}


def _option(file: Path, every: list[Setting]) -> str:
    target = read_target(file)
    parts = [f"## {file.stem}", escape(" ".join(read_header(file)))]
    parts += [f"Calls {_api_link(target, '../')}."] if target else []
    return "\n\n".join([*parts, settings_table(read_settings(file), every)])


def _api_link(target: str, up: str = "") -> str:
    own = re.fullmatch(r"jaxagents\.(\w+)\..+", target)
    return f"[`{target}`]({up}api/{own.group(1)}.md#{target})" if own else f"`{target}`"


def _first_sentence(docstring: str) -> str:
    return docstring.partition("\n\n")[0]
