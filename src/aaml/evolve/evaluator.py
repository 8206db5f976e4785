"""Evaluate a program file: the contract of searches that let a language model write programs. No model is called here.

A program is a Python file. Where it assigns a text to `FORMULA`, that is the formula, and the file is read but not run:

    FORMULA = "-(pair.cpu_growth_scaled + pair.memory_growth_scaled)"

Otherwise it is run, and its function `score(context)` returns float [N], as in a file of one's own
(docs/your-own.md). Such a program is played in the simulator, some fifty times slower than a formula.
"""

import ast
import math
import traceback
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from aaml.errors import UserError, bad_value
from aaml.evaluation.statistics import mean_interval
from aaml.evolve.cases import training
from aaml.evolve.settings import EvolveConfig
from aaml.policies.formulas.expression import parts, terms
from aaml.policies.formulas.program import assemble
from aaml.policies.formulas.text import parse, to_latex
from aaml.policies.registry import make_policy

_SLOW_EPISODES = 8


class Evaluator:
    """Evaluates programs on the training episodes of a search, which are made once.

    A call returns a dictionary:

    ==================  ========================================================================================
    combined_score      exp(-loss), higher is better: 1 is as good as the reference, 1.1 a tenth better; 0 where
                        the program does not work
    metrics             numbers: `loss`, its interval `loss_low` and `loss_high`, `episodes`, a formula's `size`
                        and `terms`
    artifacts           texts: what a model may be told of the result, or why the program does not work
    ==================  ========================================================================================
    """

    def __init__(self, config: EvolveConfig) -> None:
        self._config = config
        self._races = training(config)

    def __call__(self, program_path: str | Path) -> dict[str, Any]:
        """Evaluate a program file. What is wrong with it is told, never raised."""
        path = Path(program_path)
        try:
            text = formula_in(path)
            result = self._of_formula(text) if text is not None else self._of_function(path)
        except UserError as error:
            return _failure(str(error))
        except Exception:  # noqa: BLE001  (a program of somebody else's may raise anything: its author is told)
            return _failure(traceback.format_exc(limit=-3))
        return result

    def _of_formula(self, text: str) -> dict[str, Any]:
        expression = parse(text, field="FORMULA")
        losses = self._races.play(assemble(expression), range(self._races.count))
        more = {"size": float(parts(expression)), "terms": float(terms(expression))}
        return self._result(losses, more, {"latex": to_latex(expression)})

    def _of_function(self, path: Path) -> dict[str, Any]:
        policy = make_policy(f"{path}:score")
        losses = self._races.play_policy(policy, range(min(_SLOW_EPISODES, self._races.count)))
        return self._result(losses, {}, {})

    def _result(
        self, losses: np.typing.NDArray[np.float64], more: Mapping[str, float], told: Mapping[str, str]
    ) -> dict[str, Any]:
        interval, config = mean_interval(losses), self._config
        worst = int(np.argmax(losses))
        feedback = (
            f"Mean loss {interval:+.4f} relative to {config.reference_policy} over {len(losses)} episodes (0 is level, "
            f"less is better). The worst was {losses[worst]:+.4f}, on {self._races.described(worst)}."
        )
        metrics = {"loss": interval.mean, "loss_low": interval.low, "loss_high": interval.high}
        return {
            "combined_score": math.exp(-interval.mean),
            "metrics": {**metrics, "episodes": float(len(losses)), **more},
            "artifacts": {"feedback": feedback, **told},
        }


def formula_in(path: Path) -> str | None:
    """Return the text that a program assigns to FORMULA, None where it does not; the file is not run.

    Raises `UserError` for a file that cannot be read, and for a FORMULA that is no text.
    """
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"program {path}: cannot be read: {error.strerror or error}") from error
    except (SyntaxError, ValueError) as error:
        raise UserError(f"program {path}: is not Python: {error}") from error
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id="FORMULA")], value=value):
                try:
                    text = ast.literal_eval(value)
                except (ValueError, TypeError, SyntaxError) as error:
                    raise bad_value("FORMULA", ast.unparse(value)[:80], "a text in quotes") from error
                if not isinstance(text, str):
                    raise bad_value("FORMULA", text, "a text in quotes")
                return text
    return None


def evaluator(**settings: Any) -> Evaluator:
    """Return an evaluator for settings of `aaml search formula`, such as task=("balance",) and nodes=(10,)."""
    return Evaluator(replace(EvolveConfig(), **settings))


def _failure(why: str) -> dict[str, Any]:
    return {"combined_score": 0.0, "metrics": {"loss": math.inf}, "artifacts": {"error": why}}
