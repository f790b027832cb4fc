"""Sphinx: pages in Markdown, the reference from docstrings."""

import re

from flashgatr import __version__

project = "flashgatr"
author = "The flashgatr authors"
copyright = author
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"flashgatr {__version__}"
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False
autodoc_typehints = "signature"
python_maximum_signature_line_length = 80
default_role = "code"

_ARGUMENT = re.compile(r"^(\w[\w/, ]*): (.*)")


def _arguments_as_list(app, what, name, obj, options, lines):
    """Show arguments as a list: our docstrings explain each of them as `name: text`.

    Module docstrings are for readers of the source and are left out; the pages introduce the
    modules. The star of a shape such as (*shape, 16) is escaped: it does not begin emphasis.
    """
    if what == "module":
        lines.clear()
        return
    out, inside = [], False
    for line in (line.replace("(*", r"(\*") for line in lines):
        match = _ARGUMENT.match(line)
        if match:
            if not inside:
                out.append("")
            out.append(f"- ``{match[1]}``: {match[2]}")
        elif inside and line.startswith(" "):
            out.append("  " + line.strip())
        else:
            if inside and line:
                out.append("")
            out.append(line)
        inside = bool(match) or (inside and line.startswith(" "))
    lines[:] = out


def setup(app):
    app.connect("autodoc-process-docstring", _arguments_as_list)
