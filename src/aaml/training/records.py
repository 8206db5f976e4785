"""What a run's folder says of a training: its settings and its curves, read without what trains."""

import json
from pathlib import Path
from typing import Any

from aaml.errors import UserError, bad_value
from aaml.files import whole_lines
from aaml.schema import of_json, read_bytes

CONFIG, METRICS, RESUME = "config.json", "metrics.jsonl", "resume.pt"


def read_config(path: Path) -> dict[str, Any] | None:
    """Return config.json, None when there is none. Raises `UserError` when it cannot be read."""
    file = path / CONFIG
    if not file.exists():
        return None
    content: Any = of_json(read_bytes(file, "config"), str(file), any_number=True)
    if not isinstance(content, dict) or not isinstance(content.get("training"), dict) or "stem" not in content:
        raise UserError(f"{file}: is not the config of a training run")
    return content


def read_curve(folder: Path, name: str) -> tuple[list[float], list[float]]:
    """Return the steps and values of one of a run's curves. Raises `UserError` when there is none of that name."""
    steps, values, names = [], [], set()
    for point in read_metrics(folder):
        if point.get("kind") == "scalar":
            names.add(point["name"])
            if point["name"] == name:
                steps.append(float(point["step"]))
                values.append(float(point["value"]))
    if not steps:
        raise bad_value("metric", name, f"one of {', '.join(sorted(names))} in {folder / METRICS}")
    return steps, values


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's metrics.jsonl. Raises `UserError` when it is missing or not readable."""
    path = folder / METRICS
    try:
        return [json.loads(line) for line in whole_lines(path).splitlines()]
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from error
