"""Building the site with MkDocs: pages by hand and generated ones, nothing loaded from elsewhere."""

import logging
import os
import re
import shutil
from pathlib import Path

import yaml

from jaxagents.documentation.pages import generated_pages

# What links of the guides, which lead through the repository, lead to on the site.
_PLACES = {
    "../../configs": "slots.md",
    "../../configs/experiment": "experiments/index.md",
    "../../experiments": "commands.md",
    "../../jaxagents": "api/index.md",
    "../../notebooks": "notebooks/index.md",
    "../../CONTRIBUTING.md": "contributing.md",
    "../../SECURITY.md": "security.md",
}
_NAVIGATION = {
    "Start": ["index.md", "install.md", "how_to.md", "choices.md", "glossary.md", "errors.md"],
    "Run": ["run.md", "sweep.md", "reports.md", "devices.md"],
    "Choose": [
        "algorithms.md",
        "language_agents.md",
        "tools.md",
        "teams_and_games.md",
        "data.md",
        "interoperability.md",
    ],
    "Coming from": ["from_trl.md", "from_verl.md", "from_stoix.md"],
    "Notebooks": ["notebooks/"],
    "Add": ["add_a_world.md", "add_an_algorithm.md", "add_a_network.md", "papers.md", "contributing.md", "security.md"],
    "Results": ["results.md", "gallery.md", "speed.md", "verdicts/README.md", "experiments/"],
    "Reference": ["commands.md", "slots.md", "slots/", "architecture.md", "changelog.md"],
    "API": ["api/"],
}
_SWITCH = {"icon": "material/brightness-6"}


def build_site(root: Path, folder: Path) -> Path:
    """Builds the documentation.

    Args:
        root: of the repository.
        folder: for the sources, `pages`, and what is built, `site`; both are made anew.

    Returns:
        The front page.

    Raises:
        ValueError: MkDocs is not installed, or a link leads nowhere.
    """
    try:
        from mkdocs.commands.build import build
        from mkdocs.config import load_config
        from mkdocs.exceptions import MkDocsException
    except ImportError as error:
        raise ValueError(
            "The documentation must be built with MkDocs, which is missing; try pip install -e '.[docs]'."
        ) from error
    pages = write_sources(root, folder)
    config = folder / "mkdocs.yml"
    config.write_text(yaml.safe_dump(_settings(pages), sort_keys=False), encoding="utf-8")
    os.environ.setdefault("NO_MKDOCS_2_WARNING", "1")
    logging.getLogger("mkdocs").addHandler(logging.StreamHandler())
    try:
        build(load_config(str(config)))
    except MkDocsException as error:
        raise ValueError(f"The documentation must have pages that link to each other, got: {error}") from error
    site = folder / "site"
    # Opened as files, pages may load scripts and nothing else.
    index = (site / "search" / "search_index.json").read_text(encoding="utf-8")
    (site / "search" / "search_index.js").write_text(f"var __index = {index}", encoding="utf-8")
    return site / "index.html"


def write_sources(root: Path, folder: Path) -> Path:
    """Writes all pages, by hand and generated, and returns their folder."""
    pages = folder / "pages"
    shutil.rmtree(pages, ignore_errors=True)
    shutil.copytree(root / "experiments" / "docs", pages)
    for path in pages.rglob("*.md"):
        path.write_text(lead_to_pages(path.read_text(encoding="utf-8")), encoding="utf-8")
    for name in ("CONTRIBUTING.md", "SECURITY.md"):
        text = (root / name).read_text(encoding="utf-8").replace("(experiments/docs/", "(")
        (pages / name.lower()).write_text(text.replace("(SECURITY.md)", "(security.md)"), encoding="utf-8")
    results = root / "experiments" / "results"
    for path in (path for kind in ("*.md", "*.png", "*.svg") for path in results.rglob(kind)):
        copied = pages / "verdicts" / path.relative_to(results)
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copied)
        if path.suffix == ".md":
            text = re.sub(r"\]\(((?:\.\./)+)docs/", r"](\1", path.read_text(encoding="utf-8"))
            copied.write_text(
                re.sub(r"\[([^]]*)\]\((?:\.\./)+(?:configs|studies)/[^)]*\)", r"\1", text), encoding="utf-8"
            )
    for name, text in generated_pages(root).items():
        path = pages / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return pages


def lead_to_pages(markdown: str) -> str:
    """Replaces links into the repository by links to the pages that are made of it."""
    markdown = re.sub(r"\]\(\.\./\.\./(notebooks/\w+)\.ipynb\)", r"](\1.md)", markdown)
    markdown = markdown.replace("](../results/", "](verdicts/")
    return re.sub(r"\]\(([^)\s]+)\)", lambda match: f"]({_PLACES.get(match.group(1), match.group(1))})", markdown)


def _settings(pages: Path) -> dict:
    schemes = [("(prefers-color-scheme: light)", "default", "Dark"), ("(prefers-color-scheme: dark)", "slate", "Light")]
    return {
        "site_name": "jaxagents",
        "docs_dir": "pages",
        "site_dir": "site",
        "strict": True,
        "use_directory_urls": False,
        "nav": [{title: _entries(names, pages)} for title, names in _NAVIGATION.items()],
        "theme": {
            "name": "material",
            "font": False,
            "palette": [
                {"media": media, "scheme": scheme, "primary": "indigo", "toggle": {**_SWITCH, "name": other}}
                for media, scheme, other in schemes
            ],
            "features": ["navigation.tabs", "navigation.top", "content.code.copy", "search.highlight"],
        },
        "extra": {"generator": False},
        "extra_css": ["tables.css"],
        "plugins": ["material/search"],
        "markdown_extensions": ["tables", "attr_list", "toc", "pymdownx.superfences", "pymdownx.highlight"],
        "validation": {"anchors": "warn", "nav": {"omitted_files": "ignore"}},
    }


def _entries(names: list[str], pages: Path) -> list[str]:
    entries = []
    for name in names:
        inside = (
            sorted(path.relative_to(pages).as_posix() for path in (pages / name).glob("*.md"))
            if name.endswith("/")
            else [name]
        )
        entries += sorted(inside, key=lambda path: not path.endswith("index.md"))
    return entries
