"""Imports go one way, as docs/architecture.md draws it, without cycles.

Lazy and type-only imports count, too.
"""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"


def modules():
    """Every module of the package by its dotted name, with its file."""
    found = {}
    for file in sorted((SOURCE / "flashgatr").rglob("*.py")):
        parts = file.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


MODULES = modules()


def imports(module):
    """The package's modules that a module imports, at any place in its file."""
    file = MODULES[module]
    package = module.split(".") if file.name == "__init__.py" else module.split(".")[:-1]
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            wanted = [(alias.name, None) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*start, *([node.module] if node.module else [])])
            wanted = [(source, alias.name) for alias in node.names]
        else:
            continue
        for source, name in wanted:
            submodule = f"{source}.{name}"
            found = submodule if name and submodule in MODULES else source
            if found in MODULES and found != module:
                yield found


GRAPH = {module: set(imports(module)) for module in MODULES}


def drawing():
    """Names of each row, from the top of the drawing to its end."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    (block,) = re.findall(r"^## Imports go one way$.*?^```text\n(.*?)^```$", text, re.M | re.S)
    rows = [re.findall(r"\w+", line.split("  ")[0]) for line in block.splitlines() if line.strip()]
    return {name: place for place, names in enumerate(rows) for name in names}


def row_of(module, rows):
    parts = module.split(".")
    return rows["__init__" if len(parts) == 1 else parts[1]]


def test_the_drawing_has_every_module_of_the_package_and_no_other():
    own = {module.split(".")[1] for module in MODULES if "." in module}
    assert drawing().keys() == {*own, "__init__"}


def test_no_module_imports_from_a_later_row():
    rows = drawing()
    wrong = [
        f"{module} imports {other}"
        for module, others in GRAPH.items()
        for other in others
        if row_of(other, rows) > row_of(module, rows)
    ]
    assert not wrong


def cycles(graph):
    """Groups of modules that import each other (strongly connected components of more than one)."""
    order, low, on_stack, stack, found = {}, {}, set(), [], []

    def visit(module):
        order[module] = low[module] = len(order)
        stack.append(module)
        on_stack.add(module)
        for other in sorted(graph[module]):
            if other not in order:
                visit(other)
                low[module] = min(low[module], low[other])
            elif other in on_stack:
                low[module] = min(low[module], order[other])
        if low[module] == order[module]:
            group = set()
            while module not in group:
                group.add(stack.pop())
                on_stack.discard(max(group, key=lambda x: order[x]))
            on_stack.difference_update(group)
            if len(group) > 1:
                found.append(sorted(group))

    for module in graph:
        if module not in order:
            visit(module)
    return found


def test_no_modules_import_each_other():
    assert cycles(GRAPH) == []


def test_a_cycle_would_be_found():
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set()}) == [["a", "b", "c"]]


def test_lazy_and_type_only_imports_are_seen():
    assert "flashgatr.io.original" in GRAPH["flashgatr.model"]  # within from_original


def test_only_the_command_line_imports_benchmarks():
    benchmarks = "flashgatr.experiments.bench"
    users = {module for module, others in GRAPH.items() for x in others if x.startswith(benchmarks)}
    users = {module for module in users if not module.startswith(benchmarks)}
    assert users == {"flashgatr.experiments.cli.commands"}


@pytest.mark.parametrize("module", [m for m in MODULES if m.startswith("flashgatr.kernels")])
def test_kernels_know_no_module_of_torch_nn(module):
    tree = ast.parse(MODULES[module].read_text())
    names = [
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "torch"
        for alias in node.names
    ]
    assert "nn" not in names
    assert not [other for other in GRAPH[module] if other.startswith("flashgatr.nn")]
