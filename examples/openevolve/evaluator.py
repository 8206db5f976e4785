"""What OpenEvolve calls for each program: `evaluate(program_path)`. Shinka's form of it is a program: see `main`.

openevolve-run initial_program.py evaluator.py --config config.yaml
python evaluator.py --program_path initial_program.py --results_dir results
"""

import argparse
import importlib.util
import json
import math
import os
from functools import cache
from pathlib import Path
from typing import Any

from aaml.evolve.evaluator import Evaluator, evaluator

TASK, NODES = ("balance", "varied"), (10,)


@cache
def on_episodes() -> Evaluator:
    """Make the episodes, once a process; AAML_EPISODES: how many."""
    return evaluator(task=TASK, nodes=NODES, episodes=int(os.environ.get("AAML_EPISODES", "64")))


def evaluate(program_path: str) -> Any:
    """Return OpenEvolve's `EvaluationResult`, or where it is not installed the plain dictionary."""
    result = on_episodes()(program_path)
    finite = {name: value for name, value in result["metrics"].items() if math.isfinite(value)}
    metrics = {"combined_score": result["combined_score"], **finite}
    if importlib.util.find_spec("openevolve") is None:
        return {**metrics, "artifacts": result["artifacts"]}
    made: Any = importlib.import_module("openevolve.evaluation_result")
    return made.EvaluationResult(metrics=metrics, artifacts=result["artifacts"])


def main() -> None:
    """Evaluate one program, and write metrics.json and correct.json as ShinkaEvolve reads them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program_path", required=True)
    parser.add_argument("--results_dir", type=Path, required=True)
    args = parser.parse_args()
    result = on_episodes()(args.program_path)
    error = result["artifacts"].get("error", "")
    metrics = {
        "combined_score": result["combined_score"],
        "public": {name: value for name, value in result["metrics"].items() if math.isfinite(value)},
        "private": {},
        "extra_data": {},
        "text_feedback": error or result["artifacts"]["feedback"],
    }
    args.results_dir.mkdir(parents=True, exist_ok=True)
    (args.results_dir / "metrics.json").write_text(json.dumps(metrics, indent=2), encoding="utf-8")
    correct = {"correct": not error, "error": error}
    (args.results_dir / "correct.json").write_text(json.dumps(correct, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
