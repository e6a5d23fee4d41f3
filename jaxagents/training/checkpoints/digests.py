"""Digests of checkpoints: what a step holds, and whether the files still say the same.

Orbax commits a step atomically, but notices neither flipped bytes nor truncation, and casts other dtypes silently. A
digest beside each step, `<step>.digest.json`, holds the sha256 of every file and the shape and dtype of every leaf.
"""

import hashlib
import json
from pathlib import Path

import jax

from jaxagents.data.files import write_whole
from jaxagents.types import PyTree

TreeSpec = dict[str, list]


def describe_tree(tree: PyTree) -> TreeSpec:
    """Computes the tree spec of a pytree of arrays: `{path: [dtype, shape]}`.

    Args:
        tree: pytree of arrays or `jax.ShapeDtypeStruct`; None and empty containers hold no leaf.

    Returns:
        A JSON-serialisable dict; the dtype of a typed PRNG key names its implementation, as in "key<fry>".

    Raises:
        ValueError: a leaf has no shape and dtype.
    """
    spec = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = jax.tree_util.keystr(path)
        if not (hasattr(leaf, "shape") and hasattr(leaf, "dtype")):
            raise ValueError(
                f"`state` must hold arrays only, got {type(leaf).__name__} at {name}; "
                "try jnp.asarray, or put it into `metadata`."
            )
        spec[name] = [str(leaf.dtype), list(leaf.shape)]
    return spec


def compare_trees(saved: TreeSpec, wanted: TreeSpec) -> str | None:
    """Says how the tree spec of a checkpoint differs from the wanted one.

    Args:
        saved: tree spec of the checkpoint.
        wanted: tree spec of the state to restore into.

    Returns:
        The first difference in words, None when the specs are equal.
    """
    for name in sorted(wanted.keys() - saved.keys()):
        return f"it has no leaf {name}"
    for name in sorted(saved.keys() - wanted.keys()):
        return f"it has a leaf {name} that the state lacks"
    for name, expected in wanted.items():
        if saved[name] != expected:
            return f"its leaf {name} is {_show(saved[name])}, the state has {_show(expected)}"
    return None


def write_digest(directory: Path, step: int, items: dict[str, TreeSpec]) -> None:
    """Hashes the files of a committed step and writes its digest atomically.

    Args:
        directory: folder that holds the step's folder, and the digest beside it.
        step: number of the step, the name of its folder.
        items: tree specs of what was saved, by item.
    """
    content = {"files": _hash_files(directory / str(step)), "step": step, "items": items}
    content["self"] = _hash_content(content)
    write_whole(digest_path(directory, step), json.dumps(content))


def check_digest(directory: Path, step: int, unread: str | None = None) -> tuple[str | None, dict[str, TreeSpec]]:
    """Compares the files of a step with its digest.

    Args:
        directory: folder that holds the step and its digest.
        step: number of the step.
        unread: an item of the step, a folder in its folder, whose files are not looked at.

    Returns:
        `(reason, items)`: why the step cannot be trusted, None when it can; and the tree specs of the items it was
        saved with, empty when they cannot be read.
    """
    path = digest_path(directory, step)
    try:
        content = json.loads(path.read_bytes())
        claimed = content.pop("self")
        files, items = content["files"], content["items"]
    except FileNotFoundError:
        return f"`{path.name}` is missing, so the save was cut off before its end", {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"`{path.name}` cannot be read ({type(error).__name__}: {error})", {}
    if claimed != _hash_content(content) or content.get("step") != step:
        return f"`{path.name}` is damaged", {}
    for name, expected in files.items():
        if Path(name).parts[0] == unread:
            continue
        try:
            if _hash_file(directory / str(step) / name) != expected:
                return f"the file `{name}` differs from its digest", items
        except OSError as error:
            return f"the file `{name}` cannot be read ({error.strerror})", items
    return None, items


def digest_path(directory: Path, step: int) -> Path:
    """Returns where the digest of a step lies."""
    return directory / f"{step}.digest.json"


def _show(leaf: list) -> str:
    dtype, shape = leaf
    return f"{dtype}{list(shape)}"


def _hash_files(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): _hash_file(path) for path in files}


def _hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _hash_content(content: dict) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
