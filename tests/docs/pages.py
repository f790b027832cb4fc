"""The pages of the documentation."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [ROOT / "README.md", *DOCS]


def section(page, title):
    """The part of a page below a heading, up to the next one of the same or a higher level."""
    text = (ROOT / "docs" / f"{page}.md").read_text()
    found = re.search(rf"^(#+) {re.escape(title)}$\n", text, re.MULTILINE)
    assert found, f"docs/{page}.md has no section {title!r}"
    rest = text[found.end() :]
    after = re.search(rf"^#{{1,{len(found[1])}}} ", rest, re.MULTILINE)
    return rest[: after.start()] if after else rest
