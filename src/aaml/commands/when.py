"""Say when a job starts that waits, or that you would submit, and what would let it start sooner.

The cluster as it is now is played on into many futures: running pods end as pods of their kind did, and with --past
others come as they did. The policy that runs decides. Nodes stay as they are and nobody is preempted. Each way to start
sooner is played in the same futures. Nothing is written to the cluster.
"""

from dataclasses import dataclass
from math import isinf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from aaml.commands.kinds import Flag
from aaml.settings import Count, Natural, Positive, Settings

if TYPE_CHECKING:
    from aaml.sim.forecast import Forecast

_UNITS = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"), (1.0, "s"))


@dataclass(frozen=True)
class Args(Settings):
    """`aaml when`."""

    target: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="TARGET")]
    """job/NAME, podgroup/NAME, deployment/NAME, the NAME of a pod, or a file (.yaml) that is not submitted yet"""
    namespace: Annotated[str, tyro.conf.arg(aliases=["-n"])] = "default"
    """where it is"""
    policy: str = "kube-scheduler"
    """what schedules there: a name, FILE.py:NAME, kube-scheduler:FILE.yaml or a model file"""
    past: Path | None = None
    """folder of a trace of this cluster (`aaml record`): how long its pods run, and how many come; without it nobody
    comes, and pods run as long as those that finished and are still listed, or else about as long again as they have"""
    futures: Count = 100
    """how many are played"""
    hours: Positive = 24.0
    """how far they go"""
    sooner: Flag = True
    """say what would let it start sooner, which takes a few times as long; --no-sooner: only when it starts"""
    seed: Natural = 0
    """of what is drawn"""
    json: Flag = False
    """print numbers as JSON"""
    kubeconfig: Path | None = None
    """of the cluster; without it $KUBECONFIG and ~/.kube/config"""


def run(args: Args) -> int:
    """Print the forecast."""
    import json

    import pandas as pd

    from aaml.evaluation.policies import load_policy
    from aaml.evaluation.tables import text_table
    from aaml.live.forecasting import arrivals_like, ask
    from aaml.progress import progress_bar
    from aaml.sim.forecast import Futures, nobody
    from aaml.sim.sooner import changes
    from aaml.workload.trace.trace import Trace

    past = None if args.past is None else Trace.read(args.past)
    policy = load_policy(args.policy)
    asked = ask(args.target, args.namespace, args.kubeconfig)
    arrivals = nobody if past is None else arrivals_like(past)
    futures = Futures(policy, asked.lifetimes(past), arrivals, args.hours * 3600.0, args.futures, args.seed)
    others = list(changes(asked.cluster, asked.pods)) if args.sooner else []
    with progress_bar("play the futures", args.futures * (1 + len(others)), "future") as bar:
        now = futures.forecast(asked.cluster, [pod.uid for pod in asked.pods], asked.needed, bar.update)
        sooner = [(each.what, futures.forecast(each.cluster, each.uids, each.needed, bar.update)) for each in others]
    sooner.sort(key=lambda each: (each[1].quantile(0.5), each[1].quantile(0.9)))
    if args.json:
        changed = [{"change": what, **_numbers(found)} for what, found in sooner]
        print(json.dumps({"target": args.target, "pods": len(asked.pods), **_numbers(now), "sooner": changed}))
        return 0
    print(_sentence(args, now, len(asked.pods), asked.running))
    print(f"{policy.name} decides; " + _known(args, len(asked.finished)))
    if asked.left_out:
        print(f"left out: {asked.left_out} pods that wait for other schedulers")
    if sooner:
        rows = [(what, *map(_words, (found.quantile(0.5), found.quantile(0.9)))) for what, found in sooner]
        print("\n" + text_table(pd.DataFrame(rows, columns=["instead", "median", "90% by"])))
    return 0


def _sentence(args: Args, now: "Forecast", pods: int, running: int) -> str:
    what = f"{args.target}: {pods} pod{'s' if pods > 1 else ''} wait{'' if pods > 1 else 's'}"
    what += f", {running} have nodes" if running else ""
    if isinf(now.quantile(0.5)):
        return f"{what}; not started within {args.hours:g} h in {now.never:.0%} of {args.futures} futures"
    low, middle, high = (now.quantile(share) for share in (0.05, 0.5, 0.95))
    return f"{what}; starts in {_words(middle)} (median), between {_words(low)} and {_words(high)} in 90% of futures"


def _known(args: Args, finished: int) -> str:
    if args.past is not None:
        return f"pods run and come as in {args.past}"
    return f"nobody else comes (--past), and {finished} finished pods say how long pods run"


def _words(seconds: float) -> str:
    """Return a time as people say it, with two figures."""
    if isinf(seconds):
        return "never"
    if seconds < 1.0:
        return "now"
    unit_s, name = next(unit for unit in _UNITS if seconds >= unit[0])
    return f"{seconds / unit_s:.2g} {name}" if seconds < 10 * unit_s else f"{seconds / unit_s:.0f} {name}"


def _numbers(found: "Forecast") -> dict[str, float | None]:
    shares = {"median_s": 0.5, "from_s": 0.05, "to_s": 0.95, "by_90_s": 0.9}
    values = {name: found.quantile(share) for name, share in shares.items()}
    return {name: None if isinf(value) else value for name, value in values.items()} | {"never": found.never}
