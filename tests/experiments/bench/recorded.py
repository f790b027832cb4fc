"""What a benchmark recorded in the current folder, and what it printed."""

import json

from flashgatr.experiments import results


def lines(name):
    text = (results.FOLDER / f"{name}.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def cases(name, *keys):
    """Model and some settings of every line, in order."""
    return [(line["model"], *(line["settings"].get(key) for key in keys)) for line in lines(name)]


def printed(capsys, name):
    """The cases that a benchmark printed, none of which failed, with their results."""
    out = capsys.readouterr().out
    assert "failed" not in out
    head = f"{name}: "
    return [line.removeprefix(head) for line in out.splitlines() if line.startswith(head)]
