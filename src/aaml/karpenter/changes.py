"""What is changed in Karpenter's source before it is compiled, text by text.

Its ports are bound to 127.0.0.1; upstream they take every address of the machine. For a program that goes faster, its
constants are divided: those of an hour's rhythm, which no flag sets. Timeouts of the solver and of claims stay, because
what they bound goes no faster.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from aaml.errors import UserError, bad_value

SPEEDS = (1, 5)
"""How many times faster its constants can go."""


@dataclass(frozen=True)
class SourceChange:
    """A text of a source file, what takes its place, and how often it is there."""

    file: str
    text: str
    instead: str
    times: int = 1


_LOOPBACK = tuple(
    SourceChange("pkg/operator/operator.go", f'fmt.Sprintf(":%d", options.FromContext(ctx).{port})',
           f'fmt.Sprintf("127.0.0.1:%d", options.FromContext(ctx).{port})')
    for port in ("MetricsPort", "HealthProbePort")
)  # fmt: skip
# Each text ends with a duration.
_DURATIONS = (
    ("pkg/controllers/provisioning/controller.go", "RequeueAfter: 10 * time.Second", 2),  # a waiting pod counts again
    ("pkg/controllers/disruption/controller.go", "const pollingPeriod = 10 * time.Second", 1),
    ("pkg/controllers/disruption/consolidation.go", "const commandValidationDelay = 15 * time.Second", 1),
    ("pkg/controllers/disruption/queue.go", "queueBaseDelay          = 1 * time.Second", 1),  # a replacement is ready?
    ("pkg/controllers/disruption/queue.go", "queueMaxDelay           = 10 * time.Second", 1),
    ("pkg/controllers/state/statenode.go", "max(2*options.FromContext(ctx).BatchMaxDuration, 10*time.Second", 1),
    ("pkg/controllers/state/cluster.go", "c.clock.Since(state) < time.Minute*5", 1),  # consolidated, look no more
    ("pkg/controllers/nodeclaim/podevents/controller.go", "const dedupeTimeout = 10 * time.Second", 1),
    ("pkg/controllers/nodeclaim/lifecycle/controller.go", "c.clock.Sleep(time.Second", 1),
    ("pkg/controllers/node/termination/controller.go", "MinDrainTime  = 5 * time.Second", 1),
    ("pkg/controllers/node/termination/controller.go", "RequeueAfter: 1 * time.Second", 3),  # is it drained?
    ("pkg/controllers/node/termination/terminator/eviction.go", "evictionQueueMaxDelay  = 10 * time.Second", 1),
)


def changes(speed: int) -> Sequence[SourceChange]:
    """Return what is changed for a program whose constants go `speed` times faster. Raises `UserError` for others."""
    if speed not in SPEEDS:
        raise bad_value("speed", speed, f"one of {', '.join(map(str, SPEEDS))}")
    if speed == 1:
        return _LOOPBACK
    faster = [SourceChange(file, text, f"{text} / {speed}", times) for file, text, times in _DURATIONS]
    return (*_LOOPBACK, *faster)


def changed(file: str, content: bytes, wanted: Sequence[SourceChange]) -> bytes:
    """Return a source file with its changes. Raises `UserError` where a text is not there as often as it should be."""
    for change in wanted:
        if change.file == file:
            text = change.text.encode()
            if (found := content.count(text)) != change.times:
                raise UserError(
                    f"Karpenter's {file}: {change.text!r} is there {found} times; expected {change.times}: another "
                    f"version than the one that the changes are for"
                )
            content = content.replace(text, change.instead.encode())
    return content
