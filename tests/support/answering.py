"""Programs in Go that hold what others decide by, and answer questions about it: a line of JSON each way."""

import hashlib
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from aaml.folders import cache_dir, private_dir
from aaml.kube.provision.paths import exclusive


def built(name: str, read: bytes, compile_into: Callable[[Path], object]) -> Path:
    """Return the program `name`, compiled if no program of the same sources (`read`) is kept."""
    target = cache_dir() / name / hashlib.sha256(read).hexdigest()[:12] / name.rpartition("-")[2]
    if not target.is_file():
        with exclusive(target.parent.with_suffix(".lock"), f"builds the program {name}"):
            if not target.is_file():
                compile_into(private_dir(target.parent) / target.name)
    return target


class AnsweringProgram:
    """A running program that answers one question after the other."""

    def __init__(self, program: Path) -> None:
        self._process = subprocess.Popen(
            [str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """Return the answer. Raises RuntimeError where it is an error, and where the program has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": "the program has ended"}
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def close(self) -> None:
        """End the program."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)
        self._process.stdout.close()
