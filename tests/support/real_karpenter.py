"""The real Karpenter, asked what it would do: a program above its own packages, built like the KWOK programs."""

from pathlib import Path

from aaml.karpenter.build import compile_changed
from aaml.karpenter.changes import SourceChange
from aaml.kube.provision.binaries import recipe_dir
from support.answering import AnsweringProgram, built

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
    return built(
        "karpenter-decide", read, lambda output: compile_changed(output, "./decide", _FLAGS, BY_NAME, progress=False)
    )


class RealKarpenter(AnsweringProgram):
    """What Karpenter would do, question by question."""

    def __init__(self) -> None:
        super().__init__(program())
