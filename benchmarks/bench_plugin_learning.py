"""What learning costs inside kube-scheduler: binds a second of one plugin, in turns without and with `aaml learn`.

The workload, and what is measured, are those of `bench_live.py`: all pods are created first, an event a pod, no cap on
requests, all nodes scored. A rate with a learner stands beside the one without in the same round; the ratio is the
median over rounds. `sent` is which share of the choices was sent to the learner by the time the last pod was bound, and
`sent_later` once all had gone, a minute after at most; `learner_s` is how many the learner took in a second in that
time. `learned`: in how many rounds new weights came of them.

    .venv/bin/python benchmarks/bench_plugin_learning.py --csv docs/results/plugin/learning.csv     # about half an hour
    .venv/bin/python benchmarks/bench_plugin_learning.py --nodes 100 --rounds 1 --pods 300          # a look
"""

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import bench_live as live
from aaml.files import RowWriter
from aaml.kube.provision import ClusterOptions, KwokCluster, Owner
from aaml.learning.config import LIVE
from aaml.plugin.build import build
from aaml.plugin.configuration import ProfileOptions
from aaml.plugin.export import ExportOptions, export
from aaml.plugin.module import PluginModule

HEADER = (
    "nodes", "agent", "pods", "rounds", "pods_s_without", "pods_s_with", "ratio", "sent", "sent_later", "learner_s",
    "learned",
)  # fmt: skip
ALL_NODES = 100
TAKES_IN_S = 60.0
READY = "ready: choices are taken in"


def taken_in(ask: Callable[[], str], pods: int) -> tuple[float, float, float]:
    """Return which share of the choices was sent when the last pod was bound, and later; and how many a second then."""

    def sent() -> float:
        return live.metric(ask(), "aaml_plugin_choices_sent_total") / pods

    first = later = sent()
    begun_s = last_s = time.monotonic()
    while later < 1.0 and time.monotonic() < begun_s + TAKES_IN_S:
        time.sleep(0.2)
        later, last_s = sent(), time.monotonic()
    return first, later, (later - first) * pods / max(last_s - begun_s, 1e-9)


@contextmanager
def learner(agent: str, module: PluginModule, socket: Path, folder: Path) -> Iterator[None]:
    """Run `aaml learn` from the shipped model until the block ends."""
    aaml = Path(sys.executable).with_name("aaml")
    flags = ["--model", f"varied-{agent}", "--socket", str(socket), "--weights", str(module.weights)]
    log = folder / "learner.log"
    with log.open("wb") as said:
        command = [aaml, "learn", agent, *flags]
        process = subprocess.Popen(command, cwd=folder, stdout=said, stderr=said, start_new_session=True)
    try:
        while READY not in log.read_text(errors="replace"):
            if process.poll() is not None:
                raise SystemExit(log.read_text(errors="replace"))
            time.sleep(0.2)
        yield
    finally:
        process.terminate()
        process.wait(300.0)  # it leaves a report, and is niced


def measure(nodes: int, agents: list[str], pods: int, rounds: int) -> list[dict[str, object]]:
    """Return a row for each agent on a cluster of so many nodes."""
    found = []
    cluster = KwokCluster(f"bench-learning-{os.getpid()}")
    cluster.up(ClusterOptions(nodes=nodes, scheduler=False, owner=Owner.this_process(), wait_s=600.0))
    try:
        for agent in agents:
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                options = ExportOptions(ProfileOptions(learn=str(folder / "learn.sock")))
                module = export(f"varied-{agent}", folder / "plugin", options)
                build(module)
                rates: dict[bool, list[float]] = {False: [], True: []}
                sent: list[tuple[float, float, float]] = []
                learned = 0
                look = lambda ask, sent=sent: sent.append(taken_in(ask, pods))  # noqa: E731
                for _ in range(rounds):
                    rates[False].append(live.measure(cluster, str(module.folder), True, pods, ALL_NODES).pods_s)
                    with learner(agent, module, folder / "learn.sock", folder):
                        before = module.weights.read_bytes()
                        rate = live.measure(cluster, str(module.folder), True, pods, ALL_NODES, look)
                    rates[True].append(rate.pods_s)
                    learned += module.weights.read_bytes() != before  # the last ones are written as it ends
                ratio = statistics.median(a / b for a, b in zip(rates[True], rates[False], strict=True))
                values = (
                    nodes, agent, pods, rounds, f"{statistics.median(rates[False]):.0f}",
                    f"{statistics.median(rates[True]):.0f}", f"{ratio:.2f}",
                    *(f"{statistics.median(each):.2f}" for each in zip(*sent, strict=True)),
                    learned,
                )  # fmt: skip
                found.append(dict(zip(HEADER, values, strict=True)))
                print(found[-1], file=sys.stderr)
    finally:
        cluster.down()
    return found


def main() -> None:
    """Measure, print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--agents", nargs="+", choices=list(LIVE), default=list(LIVE))
    parser.add_argument("--pods", type=int, default=1500)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--csv", type=Path, help="file for the table")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # so that the cluster is taken down
    table = given.csv and RowWriter(given.csv, HEADER)
    print(*HEADER, sep="\t")
    for nodes in given.nodes:
        for row in measure(nodes, given.agents, given.pods, given.rounds):
            print(*row.values(), sep="\t")
            if table:
                table.write(row)


if __name__ == "__main__":
    main()
