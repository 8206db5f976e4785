"""A plugin under test: without weights compiled in, given them as a cluster does, and held to Python's decisions.

A kubelet changes the files of a ConfigMap at once. They are links into `..data`, which is a link to a folder and is
replaced.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from aaml.cluster.filters import feasible
from aaml.cluster.objects import Pod
from aaml.cluster.state import ClusterState
from aaml.plugin.export import export, export_weights
from aaml.plugin.module import PluginModule
from aaml.scheduling.observation import Context
from aaml.scheduling.ports import Ranker
from support.differential import Bench, Tally
from support.scheduling_cases import Cases, Manifest

NEAR = 1e-5
"""How far two scores may be apart that float32 sums in another order may turn round."""


class Mounted:
    """The weights of a plugin as a mounted ConfigMap: `put` changes them as a kubelet does."""

    def __init__(self, module: PluginModule, folder: Path) -> None:
        self.folder, self._count = folder, 0
        folder.mkdir()
        module.weights.unlink()
        module.weights.symlink_to(folder / "weights.json")
        (folder / "weights.json").symlink_to(Path("..data") / "weights.json")

    def put(self, policy: str, expected: Sequence[Pod] = ()) -> None:
        """Mount the weights of a policy."""
        self._renew(lambda path: export_weights(policy, path, expected))

    def put_text(self, text: str) -> None:
        """Mount a file with this text."""
        self._renew(lambda path: path.write_text(text) and None)

    def _renew(self, write: Callable[[Path], None]) -> None:
        self._count += 1
        fresh, link = self.folder / f"..{self._count}", self.folder / "..data_tmp"
        fresh.mkdir()
        write(fresh / "weights.json")
        link.symlink_to(fresh.name)
        link.rename(self.folder / "..data")

    def read(self) -> bytes:
        """Return what is mounted."""
        return (self.folder / "weights.json").read_bytes()


def bare_module(folder: Path) -> PluginModule:
    """Return a plugin without weights compiled in: it decides only by what it is given."""
    module = export("least-allocated", folder)
    module.embedded.unlink()
    return module


class PluginCases(Cases):
    """Larger clusters, with a control plane, and pods that controllers own."""

    def nodes(self) -> list[Manifest]:
        found = [self.node(f"{self.prefix}-n{number}") for number in range(self.rng.choice([6, 12, 24, 40]))]
        if self.chance(0.5):
            found[0]["metadata"]["labels"]["node-role.kubernetes.io/control-plane"] = ""
        return found

    def pod(self, *, demanding: float = 0.35, **spec: Any) -> Manifest:
        made = super().pod(demanding=demanding, **spec)
        if self.chance(0.5):
            name = self.rng.choice(["web", "db", "batch"])
            owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": name, "uid": f"uid-{name}"}
            made["metadata"]["ownerReferences"] = [{**owner, "controller": True}]
        return made


def compare_choice(
    bench: Bench, state: ClusterState, manifest: Manifest, policy: Ranker, tally: Tally, seed: int
) -> None:
    """Let the plugin place a pod and compare node and ranks with what Python makes of the same state.

    Then bring that state to where the cluster is.
    """
    verdict = bench.real.decide(manifest)
    pod = bench.pod(verdict.pod, node_name="", nominated_node="", gates=())
    context = f"{policy.name}, seed {seed}, {manifest['metadata']['name']}"
    mask = feasible(state, pod).mask
    rows = [int(row) for row in np.flatnonzero(mask)]
    names = {state.names[row] for row in rows}
    if bench.real.sees:
        tally.compare("feasible nodes", sorted(names), sorted(verdict.passed), context)
    tally.compare("a feasible node is chosen", verdict.node in names, bool(names), context)
    if verdict.scores and verdict.node in names and (not bench.real.sees or names == verdict.passed):
        scores = policy.scores(Context(state, pod, mask, getattr(policy, "observation_spec", None) or Context.spec))
        gap = float(max(scores[rows]) - scores[state.index[verdict.node]])
        ranks = {row: verdict.scores["AAML"].get(state.names[row], 0) for row in rows}
        ranked = [row for row in sorted(rows, key=lambda row: -ranks[row]) if ranks[row] > 0]
        steps = np.diff(scores[ranked])
        tally.compare("ranks are the scores' order", bool((steps <= NEAR).all()), True, f"{context}: {scores[ranked]}")
        first = rows[int(scores[rows].argmax())]
        if state.names[first] == verdict.node:
            tally.count("the same node")
        elif gap == 0.0:
            tally.count("another node with exactly the same score")
        elif gap <= NEAR:
            tally.count(f"another node, within {NEAR:g} of the best score")
        else:
            tally.compare("chosen node", state.names[first], verdict.node, f"{context}: {gap:g} below the best score")
        tally.count("decisions")
    if verdict.node:
        state.upsert_pod(bench.pod(verdict.pod))
    else:
        bench.delete_pod(pod)
