"""Files of studies and papers: `experiments/studies/<family>/<name>.yaml`, `experiments/papers/<family>/<id>.yaml`.

Notes are in a Markdown file of the same name beside each.
"""

import fnmatch
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from jaxagents.papers.study import Paper, Study, make_paper, make_study, nearest

YamlLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # Ten times as fast, if it was built.


def paper_files(folder: str | Path) -> dict[str, Path]:
    """Returns the file of every paper by its id, in sorted order: `<folder>/papers/<family>/<id>.yaml`."""
    return {path.stem: path for path in sorted((Path(folder) / "papers").glob("*/*.yaml"), key=lambda path: path.stem)}


def study_files(folder: str | Path) -> dict[str, Path]:
    """Returns the file of every study by `<family>/<name>`: `<folder>/studies/<family>/<name>.yaml`."""
    return {f"{p.parent.name}/{p.stem}": p for p in sorted((Path(folder) / "studies").glob("*/*.yaml"))}


def select_papers(folder: str | Path, wanted: Sequence[str] = (), studies: Sequence[str] = ()) -> list[str]:
    """Returns the ids of papers.

    Args:
        folder: folder that holds `papers` and `studies`, such as `experiments`.
        wanted: ids of papers, `<family>/*`, or `all`.
        studies: names of studies, with or without their family, whose papers are all included.

    Returns:
        The ids, each once.

    Raises:
        ValueError: a paper, family or study is unknown; the nearest names are offered.
    """
    files, found = paper_files(folder), []
    names = {f"{path.parent.name}/{paper}": paper for paper, path in files.items()}
    for pattern in wanted:
        if pattern in files:
            found.append(pattern)
            continue
        fitting = list(files) if pattern == "all" else [names[name] for name in names if fnmatch.fnmatch(name, pattern)]
        if not fitting:
            raise ValueError(
                f"`paper` must be a file of experiments/papers, got {pattern!r}; try {nearest(pattern, files)}."
            )
        found += fitting
    for study in studies:
        path = _study_path(folder, study)
        found += [paper for paper in files if _study_path(folder, _read(files[paper]).get("study")) == path]
    return list(dict.fromkeys(found))


def load_study(folder: str | Path, name: str) -> Study:
    """Reads a study.

    Args:
        folder: folder that holds `papers` and `studies`, such as `experiments`.
        name: name of the file, with or without its family.

    Raises:
        ValueError: the study does not exist (the nearest ones are offered), or its file is invalid.
    """
    path = _study_path(folder, name)
    return _named(path, lambda: make_study({**_read(path), "id": f"{path.parent.name}/{path.stem}"}))


def load_batch(folder: str | Path, name: str, seeds: Sequence[int]) -> Paper:
    """Reads a study as one batch: its baselines, its methods, and the own arms of all papers that it tests.

    Every seed has a separate start, regardless of the starts with which the study's papers were judged.

    Args:
        folder: folder that holds `papers` and `studies`, such as `experiments`.
        name: name of the study's file, with or without its family.
        seeds: seeds of the batch.

    Returns:
        The arms that `batch.run_batch` runs, without a headline.
    """
    study = load_study(folder, name)
    arms = {arm.name: arm for arm in (*study.arms, *study.methods)}
    for paper_id in select_papers(folder, studies=[study.id]):
        for arm in load_paper(folder, paper_id).arms:
            taken = arms.get(arm.name)
            if taken is None:
                arms[arm.name] = arm
            elif taken != arm:
                arms[f"{paper_id}_{arm.name}"] = arm._replace(name=f"{paper_id}_{arm.name}")
    own_starts: dict[str, Any] = {"start_seed": None}
    study = replace(study, **own_starts)
    family = study.id.partition("/")[0]
    return Paper(study.id, family, study.question, "", study, tuple(arms.values()), (), 0.0, tuple(seeds))


def load_paper(folder: str | Path, paper_id: str) -> Paper:
    """Reads a paper and its study.

    Args:
        folder: folder that holds `papers` and `studies`, such as `experiments`.
        paper_id: name of the file without its family and `.yaml`.

    Returns:
        The paper.

    Raises:
        ValueError: the paper or study does not exist (the nearest ones are offered), or its file is invalid.
    """
    files = paper_files(folder)
    if paper_id not in files:
        raise ValueError(
            f"`paper` must be a file of experiments/papers, got {paper_id!r}; try {nearest(paper_id, files)}."
        )
    path = files[paper_id]

    def read() -> Paper:
        values = _read(path)
        if "study" not in values:
            raise ValueError("`study` must be a file of experiments/studies, which is missing.")
        study = load_study(folder, values["study"])
        study_path = _study_path(folder, values["study"])
        paper = make_paper({**values, "id": paper_id, "family": path.parent.name}, study, _read(study_path))
        return replace(paper, files=(path.resolve(), study_path.resolve()))

    return _named(path, read)


def _study_path(folder: str | Path, name: Any) -> Path:
    files = study_files(folder)
    fitting = [path for study, path in files.items() if name in (study, path.stem)]
    if len(fitting) != 1:
        near = (
            nearest(str(name), [*files, *(path.stem for path in files.values())]) if not fitting else " or ".join(files)
        )
        raise ValueError(f"`study` must be a file of experiments/studies, got {name!r}; try {near}.")
    return fitting[0]


def _read(path: Path) -> dict[str, Any]:
    values = _named(path, lambda: yaml.load(path.read_text(encoding="utf-8"), YamlLoader))
    if not isinstance(values, dict):
        raise ValueError(f"{path.name}: it must hold keys and values, got {values!r}.")
    notes = path.with_suffix(".md")
    return {**values, "notes": notes.read_text(encoding="utf-8")} if notes.is_file() else values


def _named(path: Path, read: Any) -> Any:
    try:
        return read()
    except (ValueError, TypeError, AttributeError, yaml.YAMLError) as error:
        if path.name in str(error):
            raise
        raise ValueError(f"{path.name}: {error}") from error
