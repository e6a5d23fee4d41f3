"""Registered plans: `<results>/registrations.json`, written before the first run of verdict seeds."""

import datetime
import hashlib
import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxagents.data.files import write_whole
from jaxagents.papers.leases import leased
from jaxagents.papers.study import Paper
from jaxagents.reporting.reports import versions

REGISTRATIONS_FILE = "registrations.json"
_CHANGED = "+changes"
_COUNTS = {  # What is registered of the files; titles and notes may change.
    "paper": ("headline", "secondary", "arms", "mechanism", "looks", "start_seed"),
    "study": (
        *("metric", "higher_is_better", "checks", "arms", "experiment", "overrides", "arguments"),
        *("start", "start_seed", "deterministic"),
    ),
}


class Registration(NamedTuple):
    """What was registered about a paper before its runs.

    Attributes:
        hash: hash of the content.
        commit: commit of the repository; "+changes" is added if files differed from it; None outside a repository.
        time: time of the registration, UTC.
        content: headline, secondary, checks, seeds and arms as in the files, and the hashes of the resolved arms, which
            include option files that an arm takes.
    """

    hash: str
    commit: str | None
    time: str
    content: Mapping[str, Any]


def registered_content(paper: Paper, settings: Mapping[str, str]) -> dict[str, Any]:
    """Returns what is registered about a paper: everything its runs and verdict depend on, except versions.

    Args:
        paper: paper as in its files.
        settings: hashes of the resolved arms by name, see `arms.Composed.settings`.
    """
    source = paper.source or {}
    content: dict[str, Any] = {
        part: {name: source.get(part, {})[name] for name in names if name in source.get(part, {})}
        for part, names in _COUNTS.items()
    }
    baselines = content["study"].get("arms", {})  # Baselines of other papers do not count.
    content["study"]["arms"] = {arm.name: baselines[arm.name] for arm in paper.arms if arm.name in baselines}
    for part in content.values():
        if "arms" in part:
            part["arms"] = {name: _without_version(arm) for name, arm in part["arms"].items()}
    content["seeds"] = list(paper.seeds)
    content["resolved"] = dict(settings)
    return _without_quick(json.loads(json.dumps(content, sort_keys=True, default=str)))


def _without_version(arm: Any) -> Any:
    """Returns an arm in the form that it has without a version: a list if no other key is needed."""
    if not isinstance(arm, Mapping) or "version" not in arm:
        return arm
    others = {key: value for key, value in arm.items() if key != "version"}
    return others["overrides"] if [*others] == ["overrides"] else others


def _without_quick(content: Any) -> Any:
    """Leaves out what changes only trials, such as "when_quick.collector.group_size=1", because no verdict uses it."""
    if isinstance(content, Mapping):
        return {key: _without_quick(value) for key, value in content.items()}
    if not isinstance(content, list):
        return content
    return [_without_quick(one) for one in content if not str(one).lstrip("+~").startswith("when_quick.")]


def read_registrations(results: str | Path) -> dict[str, list[Registration]]:
    """Reads all registrations by paper, the earliest first.

    Raises:
        ValueError: the file is damaged.
    """
    path = Path(results) / REGISTRATIONS_FILE
    if not path.exists():
        return {}
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        return {paper: [Registration(**one) for one in of_paper] for paper, of_paper in stored.items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(
            f"`{path}` must hold registrations, got a damaged file ({error}); try the one in git."
        ) from error


def changes_since(paper: Paper, settings: Mapping[str, str], registrations: list[Registration]) -> list[str]:
    """Returns what has changed since the first registration of a paper, such as "headline" and "seeds"; [] if nothing.

    Registrations in between count, too, even if the files were changed back: results may have been seen by then.
    """
    if not registrations:
        return []
    first, *later = [_without_quick(one.content) for one in registrations]
    return sorted(
        {name for content in (*later, registered_content(paper, settings)) for name in _differences(first, content)}
    )


def register(
    results: str | Path,
    paper: Paper,
    settings: Mapping[str, str],
    *,
    again: bool = False,
    files: Sequence[Path] = (),
    say: Callable[[str], Any] = lambda message: None,
) -> Registration:
    """Registers what a paper expects, or finds an equal registration; reverting the files needs no new one.

    Args:
        results: folder of results.
        paper: paper to register.
        settings: hashes of the resolved arms by name.
        again: whether to register changes beside the first registration; pages flag the paper from then on.
        files: files of the paper and its study; if they are not committed, "+changes" is added to the commit.
        say: function that reports uncommitted files.

    Returns:
        The registration.

    Raises:
        ValueError: the content differs from all registrations, and `again` is false.
    """
    content = registered_content(paper, settings)
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
    with leased(results, "registrations"):
        found, is_new = _register(Path(results), paper.id, Registration(digest, *_now(files), content), again)
    if is_new and (uncommitted := _uncommitted(files)):
        say(
            f"{paper.id}: registered from what is not committed ({', '.join(uncommitted)}); commit it before the runs, "
            "so that others can see that it came first."
        )
    return found


def rename_resolved(results: str | Path, paper: Paper, hashes: Mapping[str, tuple[str, str]]) -> None:
    """Replaces old hashes by current ones in registrations, if only names in the settings of arms have changed.

    Args:
        results: folder of results.
        paper: paper whose registrations are changed.
        hashes: old and current hash of each resolved arm, by name.
    """
    with leased(results, "registrations"):
        registrations, of_paper = read_registrations(results), []  # type: Any, list[Registration]
        for one in registrations.get(paper.id, []):
            known = one.content["resolved"]
            moved = {name: of_arm[1] for name, of_arm in hashes.items() if known.get(name) == of_arm[0]}
            of_paper.append(one._replace(content={**one.content, "resolved": {**known, **moved}}))
        if of_paper:
            _write(results, {**registrations, paper.id: of_paper})


def _register(results: Path, paper_id: str, new: Registration, again: bool) -> tuple[Registration, bool]:
    registrations = read_registrations(results)
    earlier = registrations.get(paper_id, [])
    changes = [_differences(_without_quick(one.content), new.content) for one in earlier]
    if [] in changes:
        return earlier[changes.index([])], False
    if earlier and not again:
        raise ValueError(
            f"`{paper_id}` must be what was registered on {earlier[-1].time[:10]}, got changes of "
            f"{', '.join(changes[-1])}; set them back, or try register=true, "
            "which pages flag."
        )
    registrations[paper_id] = [*earlier, new]
    _write(results, registrations)
    return new, True


def _write(results: str | Path, registrations: Mapping[str, Sequence[Registration]]) -> None:
    record = {paper: [one._asdict() for one in of_paper] for paper, of_paper in sorted(registrations.items())}
    write_whole(Path(results) / REGISTRATIONS_FILE, json.dumps(record, indent=1) + "\n")


def _now(files: Sequence[Path]) -> tuple[str | None, str]:
    commit = versions().get("commit")
    if commit is not None and not commit.endswith(_CHANGED) and _uncommitted(files):  # Such as untracked files.
        commit += _CHANGED
    return commit, datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _uncommitted(files: Sequence[Path]) -> list[str]:
    """Returns the names of files that differ from their commit, or are untracked; [] outside a repository."""
    names = []
    for path in files:
        command = ["git", "-C", str(path.parent), "status", "--porcelain", "--", path.name]
        try:
            found = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
        except (OSError, subprocess.SubprocessError):
            continue
        names += [path.name] if found.strip() else []
    return names


def _differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Returns the names of what differs between two registrations; equivalent notations of an arm do not differ.

    How an arm is written, such as the name of a method instead of its settings, counts unless it resolves to the same.
    """
    known, resolved = before.get("resolved", {}), after.get("resolved", {})
    same = [name for name, settings in resolved.items() if known.get(name) == settings]
    texts = tuple(f"{part}.arms.{name}." for part in ("paper", "study") for name in same)
    return [name for name in _changes(before, after) if not f"{name}.".startswith(texts)]


def _changes(before: Mapping[str, Any], after: Mapping[str, Any], prefix: str = "") -> list[str]:
    found = []
    for key in sorted({*before, *after}):
        old, new = before.get(key), after.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            found += _changes(old, new, f"{prefix}{key}.")
        elif old != new:
            found.append(f"{prefix}{key}")
    return found
