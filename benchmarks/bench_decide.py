"""How long the plugin takes to decide about a pod by itself, as a curve over the number of nodes; all nodes are scored.

The Go benchmark `BenchmarkDecide` is run: synthetic nodes with pods of nine sizes, one of which changes with each
decision. A row has the median and the least of the decisions of one scorer, in milliseconds.

    .venv/bin/python benchmarks/bench_decide.py --csv docs/results/plugin/decide.csv       # half a minute
"""

import argparse
import os
import re
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from aaml.files import RowWriter
from aaml.kube.provision.binaries import minimum_go
from aaml.kube.provision.toolchain import find_go
from aaml.plugin.source import MODULE

HEADER = ("scorer", "nodes", "decisions", "p50_ms", "min_ms")
_LINE = re.compile(r"BenchmarkDecide/(\w+)/unlike=false/(\d+)\S*\s+(\d+)\s.*?([\d.]+) min-µs\s+([\d.]+) p50-µs")


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--decisions", type=int, default=300, help="of each scorer at each size")
    parser.add_argument("--csv", type=Path, help="a file for the rows")
    given = parser.parse_args()
    go = find_go(minimum_go())
    bench = ["-run", "^$", "-benchtime", f"{given.decisions}x", "-bench", "Decide/(mlp|gnn|linear)/unlike=false"]
    done = subprocess.run(
        [str(go.command), "test", *bench, "./internal/aaml"], cwd=MODULE, env=go.environment(os.environ), text=True,
        capture_output=True, check=False,
    )  # fmt: skip
    rows = []
    for scorer, nodes, decisions, least, median in _LINE.findall(done.stdout):
        rows.append((scorer, int(nodes), int(decisions), float(median) / 1000, float(least) / 1000))
        print(*rows[-1])
    if done.returncode or not rows:
        print(done.stdout + done.stderr, file=sys.stderr)
        return 1
    if given.csv is not None:
        with closing(RowWriter(given.csv, HEADER)) as file:
            for row in rows:
                file.write(dict(zip(HEADER, row, strict=True)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
