"""The real Karpenter, asked what it would do: a program above its own packages, built like the KWOK programs."""

import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any, Self

from aaml.karpenter.build import compile_changed
from aaml.karpenter.changes import SourceChange
from aaml.kube.provision.binaries import recipe_dir
from aaml.kube.provision.paths import cache_dir, exclusive, private_dir

_FLAGS = "-s -w"
_GROUPS = "pkg/controllers/provisioning/scheduling/topologygroup.go"
BY_NAME = (
    SourceChange(_GROUPS, '"math"\n', '"maps"\n\t"math"\n\t"slices"\n'),
    SourceChange(_GROUPS, "range nodeDomains.Values()", "range slices.Sorted(slices.Values(nodeDomains.Values()))", 3),
    SourceChange(
        _GROUPS, "for domain := range t.domains", "for _, domain := range slices.Sorted(maps.Keys(t.domains))", 5
    ),
)  # fmt: skip
"""Karpenter goes through the domains of a group in random order, and takes the first of those that are as good.

So that answers can be compared, it goes through them by name here, as ours does.
"""


def module() -> Path:
    """Return the folder of the Go module that pins Karpenter."""
    return recipe_dir() / "karpenter"


def program() -> Path:
    """Return the program, built if need be: seconds once `aaml cluster build --autoscaler` has compiled Karpenter."""
    files = [module() / "go.mod", module() / "go.sum", *sorted((module() / "decide").glob("*.go"))]
    read = b"".join(file.read_bytes() for file in files) + repr(BY_NAME).encode()
    digest = hashlib.sha256(read).hexdigest()[:12]
    target = cache_dir() / "karpenter-decide" / digest / "decide"
    if not target.is_file():
        with exclusive(target.parent.with_suffix(".lock"), "builds the program that asks Karpenter"):
            if not target.is_file():
                output = private_dir(target.parent) / target.name
                compile_changed(output, "./decide", _FLAGS, BY_NAME, progress=False)
    return target


class RealKarpenter:
    """A running program that answers one question after the other."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [str(program())], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """Return what Karpenter would do. Raises RuntimeError where it ends with an error."""
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
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait(timeout=30)
        if self._process.stdout is not None:
            self._process.stdout.close()
