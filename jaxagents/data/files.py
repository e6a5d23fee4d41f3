"""Files that are written whole or not at all."""

import os
import secrets
from pathlib import Path


def write_whole(path: Path, content: str | bytes, *, once: bool = False) -> bool:
    """Writes a file by way of a temporary one, which takes its place when it is complete.

    Args:
        path: of the file.
        content: of the file; text becomes UTF-8.
        once: keeps a file that is there.

    Returns:
        Whether the file was written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        (os.link if once else os.replace)(temporary, path)
    except FileExistsError:
        return False
    finally:
        temporary.unlink(missing_ok=True)
    return True
