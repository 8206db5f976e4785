"""What the first use of a command costs that compiles its kernels: each command with an empty cache, and again.

    python benchmarks/bench_first_use.py        # three minutes

Each is the shortest run of its kind that compiles all that a long one does. The seconds of its first run, of the
second, and their difference: what compiling cost. openb is left out where its traces are not there (`aaml trace fetch
openb`).
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from aaml.errors import UserError
from aaml.workload.traces import traces_folder

_TRAIN = ("--steps", "64", "--teacher_steps", "100", "--validation_episodes", "1", "--pods", "40", "--nodes", "10")
COMMANDS = {
    "train": ("train", "--agent", "acdqn", "--task", "balance", *_TRAIN),
    "train, a life table": (
        "train",
        "--agent",
        "gnn",
        "--task",
        "waiting",
        "--remaining_lifetimes",
        "learned",
        *_TRAIN,
    ),
    "train, Q-table": ("train", "--agent", "qtable", "--task", "seedc", "--steps", "64", "--validation_episodes", "1"),
    "evaluate": ("evaluate", "--task", "balance", "--nodes", "10", "--pods", "40", "--seeds", "0", "--workers", "1"),
    "bench openb": ("bench", "openb", "--policy", "fgd", "--traces", "default", "--seeds", "42", "--jobs", "1"),
}


def main() -> None:
    """Run every command twice and print the seconds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=COMMANDS, default=list(COMMANDS))
    args = parser.parse_args()
    print(f"{'command':<22} {'first, s':>9} {'again, s':>9} {'compiling':>10}")
    for name in args.only:
        if name == "bench openb" and not _has_openb():
            print(f"{name:<22} no trace")
            continue
        with tempfile.TemporaryDirectory() as folder:
            first, again = (_seconds(COMMANDS[name], Path(folder), turn) for turn in ("first", "again"))
        print(f"{name:<22} {first:>9.1f} {again:>9.1f} {first - again:>10.1f}", flush=True)


def _seconds(command: tuple[str, ...], folder: Path, turn: str) -> float:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder / "kernels")}
    begun = time.monotonic()
    subprocess.run(
        [sys.executable, "-m", "aaml", *command, "--out", str(folder / turn)],
        env=environment,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return time.monotonic() - begun


def _has_openb() -> bool:
    try:
        traces_folder()
    except UserError:
        return False
    return True


if __name__ == "__main__":
    main()
