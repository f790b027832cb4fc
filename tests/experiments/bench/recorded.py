"""What a benchmark recorded in the current folder."""

import json

from flashgatr.experiments import results


def lines(name):
    text = (results.FOLDER / f"{name}.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def cases(name, *keys):
    """Model and some settings of every line, in order."""
    return [(line["model"], *(line["settings"].get(key) for key in keys)) for line in lines(name)]
