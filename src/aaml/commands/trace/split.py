"""Split a trace into windows, the last of which are for evaluation alone."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from aaml.settings import Positive, Settings, Share


@dataclass(frozen=True)
class Args(Settings):
    """`aaml trace split`."""

    trace: tyro.conf.Positional[str]
    """folder of the trace"""
    window_s: Positive | None = None
    """seconds of a window; a twentieth of the trace when not given"""
    holdout: Share = 0.3
    """the share of the windows, at the end, that is for evaluation alone"""


def run(args: Args) -> int:
    """Split it, and say how many windows are for what."""
    from aaml.workload.trace.trace import Trace
    from aaml.workload.trace.windows import Windows, make_split, read_split, usual_split, write_split

    trace, folder = Trace.read(args.trace), Path(args.trace)
    split = make_split(trace, args.window_s or usual_split(trace).window_s, args.holdout)
    if read_split(folder) not in (None, split):
        print("the trace had another split: what was trained on it so far may have seen what is for evaluation now")
    write_split(folder, split)
    windows = Windows(trace, split)
    early = sum(number * split.window_s < split.holdout_from_s for number in windows.numbers)
    print(
        f"{folder}: windows of {split.window_s:g} s, {early} for training and validation, "
        f"{len(windows.numbers) - early} from {split.holdout_from_s:g} s on for evaluation"
    )
    for each in windows.cautions(windows.part("holdout")):
        print(f"Caution: {each}.")
    return 0
