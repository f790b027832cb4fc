"""Saved networks on the Hugging Face hub, named `hf://owner/name` or `hf://owner/name@revision`.

Only the two files of a saved network are downloaded, into the hub's own cache. Like local ones they
cannot run code.
"""

from __future__ import annotations

import os
import re

from .networks import CONFIG, WEIGHTS, LoadError

PREFIX = "hf://"
_PART = r"\w+(?:[.-]\w+)*"  # no dots in a row: nothing leads out of the cache
_NAME = re.compile(
    rf"(?P<repository>{_PART}/{_PART})(?:@(?P<revision>{_PART}(?:/{_PART})*))?", re.ASCII
)


def local_folder(path: str | os.PathLike[str]) -> str | os.PathLike[str]:
    """The folder of a network: downloaded if the hub's name is given, else `path` itself."""
    if not isinstance(path, str) or not path.startswith(PREFIX):
        return path
    found = _NAME.fullmatch(path.removeprefix(PREFIX))
    if found is None:
        raise LoadError(f"expected hf://owner/name or hf://owner/name@revision, got {path!r}")
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise ImportError(
            f'{path} is on the Hugging Face hub: pip install "flashgatr[hub]"'
        ) from error
    try:
        folder: str = snapshot_download(
            found["repository"], revision=found["revision"], allow_patterns=[CONFIG, WEIGHTS]
        )
    except Exception as error:  # its kinds depend on the version of huggingface_hub
        raise LoadError(f"cannot download {path}: {error}") from error
    return folder
