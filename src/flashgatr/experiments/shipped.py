"""Recipes and trained runs that come with the package: `recipe:NAME` and `pretrained:NAME`.

The repository has them in `recipes/` and `pretrained/`; a wheel has the same folders beside this
file, where `hatch_build.py` puts them. A path that exists is taken as it is.
"""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent
RECIPE, TRAINED = "recipe", "pretrained"
_FILES = {RECIPE: "recipes/*.toml", TRAINED: "pretrained/*/config.toml"}
"""Where recipes and the settings of trained runs are, below this folder or the repository."""


def known(kind: str) -> dict[str, Path]:
    """Recipes (files) or trained runs (folders) by name."""
    found = sorted(HERE.glob(_FILES[kind]))
    if not found and HERE.parents[1].name == "src":
        found = sorted(HERE.parents[2].glob(_FILES[kind]))
    if kind == RECIPE:
        return {file.stem: file for file in found}
    return {file.parent.name: file.parent for file in found}


def find(path: Path) -> Path:
    """The file or folder that `recipe:NAME` or `pretrained:NAME` means; other paths as given."""
    kind, colon, name = str(path).partition(":")
    if not colon or kind not in _FILES or path.exists():
        return path
    there = known(kind)
    if name not in there:
        names = ", ".join(f"{kind}:{each}" for each in there) or "nothing of that kind"
        raise ValueError(f"there is no {path}; flashgatr comes with {names}")
    return there[name]
