"""Hooks of the build: recipes and trained runs go into the wheel, and PyPI's page gets full links.

The repository keeps `recipes/` and `pretrained/` at its root and relative links in README.md.
"""

import re
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

SHIPPED = {name: f"flashgatr/experiments/{name}" for name in ("recipes", "pretrained")}
"""Folders of the repository, and where `flashgatr/experiments/shipped.py` looks for them."""
LINK = re.compile(r"(?P<image>!?)(?P<text>\[[^\]]*\])\((?!\w+:|#)(?P<target>[^)\s]+)\)")


def absolute_links(text: str, repository: str) -> str:
    """Markdown with relative links replaced by links to the repository's main branch."""

    def link(found: re.Match[str]) -> str:
        kind = "raw" if found["image"] else "blob"
        return f"{found['image']}{found['text']}({repository}/{kind}/main/{found['target']})"

    return LINK.sub(link, text)


class ShippedFolders(BuildHookInterface):
    def initialize(self, version, build_data):
        if self.target_name == "wheel" and version == "standard":  # not in an editable install
            build_data["force_include"].update(SHIPPED)


class Readme(MetadataHookInterface):
    def update(self, metadata):
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        text = absolute_links(text, metadata["urls"]["Repository"])
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
