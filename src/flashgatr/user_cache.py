"""The user's cache folder: ~/.cache/flashgatr, or XDG_CACHE_HOME/flashgatr if that is set."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path | None:
    """A folder that only the user can write to, since some of its files are loaded as code; or
    None.
    """
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))  # the standard: relative ones are ignored
    try:
        folder = (given if given.is_absolute() else Path.home() / ".cache") / "flashgatr"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        about = folder.stat()
    except (OSError, RuntimeError):
        return None
    is_ours = not hasattr(os, "getuid") or about.st_uid == os.getuid()
    return folder if is_ours and not about.st_mode & 0o022 and os.access(folder, os.W_OK) else None
