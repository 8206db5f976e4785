"""Decisions a second of `aaml train` as it learns by group rollouts: acting and learning together.

On the CPU networks use one thread, the simulator one a core; with `--device cuda` networks act and learn on the GPU.

    python benchmarks/bench_training.py                         # the four agents at 10 and 40 nodes
    python benchmarks/bench_training.py --agents acdqn --nodes 10 100 --rounds 5
    python benchmarks/bench_training.py --device cuda --envs 1024 --batch_size 16384 --nodes 10 --rounds 1

A round plays whole episodes and learns from them. The first round of each size compiles and is left out, validations
too. Rates count the CPU seconds of the process, so that other work on the machine disturbs less; the clock's are beside
them.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path

from aaml.learning.config import AGENTS
from aaml.settings import changed
from aaml.training.group_learner import GroupLearner
from aaml.training.rollouts import EnvFactory
from aaml.training.run import open_run
from aaml.training.runfolder import RunFolder
from aaml.training.settings import TrainConfig


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", nargs="+", default=["acdqn", "dqn", "acgnn", "gnn"])
    parser.add_argument("--nodes", type=int, nargs="+", default=[10, 40])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--envs", type=int, default=16)
    parser.add_argument("--batch_size", type=int, default=None)
    parser.add_argument("--reward", default="", help="a reward by name, or FILE.py:NAME")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    args = parser.parse_args()
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; decisions a second of balance:")
    print(f"{'agent':>6} {'nodes':>6} {'a CPU second':>13} {'a second':>10}")
    for name in args.agents:
        for nodes in args.nodes:
            with tempfile.TemporaryDirectory() as folder:
                told = {"nodes": (nodes,), "envs": args.envs, "steps": 1_000_000_000, "device": args.device}
                told["reward"] = args.reward
                told |= {} if args.batch_size is None else {"batch_size": args.batch_size, "max_batch_rows": 1 << 30}
                config = changed(TrainConfig(agent=AGENTS[name]), told)
                config, run = open_run(config, Path(folder) / "run", resume=False)
                measure(name, nodes, args.rounds, config, run)
                run.close()


def measure(name: str, nodes: int, rounds: int, config: TrainConfig, run: RunFolder) -> None:
    """Print one row."""
    learner = GroupLearner(config, EnvFactory(config.env_config), run.writer)
    learner.round(0, lambda: False)
    decisions, cpu_s, started = 0, time.process_time(), time.perf_counter()
    for _ in range(rounds):
        decisions += learner.round(decisions, lambda: False)
    cpu_s, seconds = time.process_time() - cpu_s, time.perf_counter() - started
    print(f"{name:>6} {nodes:>6} {decisions / cpu_s:>13,.0f} {decisions / seconds:>10,.0f}", flush=True)


if __name__ == "__main__":
    main()
