"""Which commands there are: their names, what each does in a line, and `aaml --help`."""

import importlib
from collections.abc import Mapping
from types import ModuleType

from aaml.errors import did_you_mean

# Full name -> one-line help. The module of "search training" is aaml.commands.search.training; it is imported when its
# command is asked for, so that `--help` stays fast.
COMMANDS: dict[str, str] = {
    "doctor": "say what is missing on this machine for what, and the command that mends it",
    "demo": "train the four agents briefly, evaluate them, and leave a report",
    "show policies": "list the named policies and rewards",
    "show models": "list the weights that ship: task, metric, the command that made them, hash",
    "show tasks": "list the tasks: what each is about, its metric, its nodes",
    "show formula": "print a formula: as text, as LaTeX, as Python to paste",
    "completion": "print what lets bash, zsh or fish complete commands, flags and names",
    "train": "train an agent in the simulator",
    "evaluate": "run policies and models on a task over seeds, and compare them",
    "search training": "search the settings of a training: pruned trials, resumable, in parallel",
    "search scheduler": "search a configuration of kube-scheduler itself",
    "search bill": "search kube-scheduler's configuration and a NodePool together, for fewer dollars",
    "search nodes": "search a policy that provisions, drains and replaces nodes in Karpenter's place",
    "search gpu": "search the linear scorer of the GPU-sharing benchmark",
    "search spot": "search the numbers of our rule for spot capacity and deadlines",
    "search formula": "search for formulas that schedule well, short ones and good ones",
    "search network": "say what a network has learned: the smallest formulas that choose as it does",
    "explain": "say why a pod went to its node: filters, scores, and what these are made of",
    "when": "say when a job starts that waits, and what would let it start sooner",
    "lab": "serve a page to look at runs, or write it as one file",
    "report compare": "compare policies from folders of `aaml evaluate`",
    "report leaderboard": "show the leaderboard's tables from result files",
    "report shadow": "say how often a policy that was run in the shadow agrees, and who does better",
    "apply": "place workloads from YAML on a cluster from YAML, in the simulator",
    "cluster build": "build the programs into the cache, once",
    "cluster up": "start a cluster on this machine, without Docker",
    "cluster status": "show a cluster: its server, nodes, processes and files",
    "cluster list": "list the clusters of this machine; end those whose owner is gone",
    "cluster down": "stop a cluster and remove its files",
    "cluster kubeconfig": "print the kubeconfig of a cluster",
    "cluster kubectl": "run the kubectl that belongs to a cluster",
    "cluster nodes": "create KWOK nodes on a cluster",
    "cluster simulate": "put a workload on a cluster, or play one back",
    "cluster autoscaler": "run Karpenter in the foreground on a cluster of KWOK nodes",
    "cluster top": "live table of a cluster",
    "cluster clean": "delete the workload: back to zero pods",
    "schedule": "run a scheduler: dqn, gnn, acdqn, acgnn, or any policy",
    "export": "write a policy as a plugin of kube-scheduler, and compile it",
    "learn": "learn from what the plugin inside kube-scheduler decides, and give it weights",
    "serve": "serve a policy over HTTP: kube-scheduler extender, score service",
    "autoscale": "provision and terminate Karpenter's nodes by learned nodes; a dry run first",
    "bill": "say what a cluster costs: by instance type, by owner, what is idle",
    "record": "record a cluster as a trace, or what one scheduler does",
    "replay": "replay a recorded cluster: what would another policy have done",
    "trace convert": "convert public traces, and the files of the seeds",
    "trace summary": "say what is in a trace",
    "trace split": "split a trace for training and evaluation",
    "trace table": "write what one scheduler did as a table",
    "trace fetch": "fetch the public files of a format",
    "trace verify": "check the files of openb that are there",
    "trace topology": "label node lists with racks and servers, and draw them",
    "bench openb": "run the published GPU-sharing benchmark and compare with the paper",
    "bench cant-be-late": "run the published benchmark of spot capacity and deadlines, and never be late",
    "bench perf": "play Kubernetes' own scheduler benchmark beside the real kube-scheduler",
    "bench chaos": "break things on a real cluster while a scheduler works, and see what is lost",
    "bench soak": "let pods come and go for an hour: memory, handles, latency and loss",
    "bench leaderboard": "evaluate policies by the leaderboard's fixed protocol",
}
GROUPS: dict[str, str] = {
    "show": "what there is by name: policies, models, tasks, formulas",
    "search": "search settings, configurations and formulas that do better",
    "report": "tables of results that were written before",
    "cluster": "a Kubernetes cluster on this machine: start it, load it, look at it, stop it",
    "trace": "convert, split and sum up traces, fetch public ones",
    "bench": "benchmarks with a fixed protocol, and trials on real clusters",
}
# What a person wants to do -> the commands and groups for it, in the order in which they are usually needed.
TASKS: dict[str, tuple[str, ...]] = {
    "Begin": ("doctor", "demo", "show", "completion"),
    "Train and compare": ("train", "evaluate", "search", "explain", "lab", "report", "apply"),
    "Schedule for real": ("cluster", "schedule", "when", "export", "learn", "serve", "autoscale", "bill"),
    "Data and benchmarks": ("record", "replay", "trace", "bench"),
}
# What other tools call these -> the command.
_ELSEWHERE = {
    "sweep": "search training", "tune": "search scheduler", "evolve": "search formula", "distil": "search network",
    "bound": "evaluate --bound",
}  # fmt: skip


def overview(group: str = "") -> str:
    """Return the text of `aaml --help`, the commands by what a person wants to do, or that of a group's `--help`."""
    if group:
        rows = {name.removeprefix(f"{group} "): line for name, line in COMMANDS.items() if name.startswith(f"{group} ")}
        summary = GROUPS[group]
        lines = [
            f"usage: aaml {group} COMMAND [OPTIONS]",
            "",
            f"{summary[0].upper()}{summary[1:]}.",
            "",
            *_listed(rows),
        ]
        return "\n".join([*lines, "", f"`aaml {group} COMMAND --help` explains a command."])
    lines = ["usage: aaml COMMAND [OPTIONS]", "", "Research, train, compare and run learned Kubernetes schedulers."]
    for task, names in TASKS.items():
        lines += ["", f"{task}:", *_listed({name: GROUPS.get(name) or COMMANDS[name] for name in names})]
    return "\n".join([*lines, "", "`aaml COMMAND --help` explains a command, and lists those of a group."])


def _listed(rows: Mapping[str, str]) -> list[str]:
    width = max(map(len, (*TASKS["Begin"], *rows)))
    return [f"  {name:<{width}}  {summary}" for name, summary in rows.items()]


def module_of(command: str) -> ModuleType:
    """Return the module of a command by its full name: it has `Args` and `run`."""
    return importlib.import_module(f"aaml.commands.{command.replace(' ', '.').replace('-', '_')}")


def unknown(group: str, word: str) -> str:
    """Return the line for a word that is no command: which one was meant, or which there are."""
    below = [name.removeprefix(f"{group} ") for name in COMMANDS if name.startswith(f"{group} ")]
    names = below if group else [name for listed in TASKS.values() for name in listed]
    meant = [_ELSEWHERE[word]] if word in _ELSEWHERE else [name for name in COMMANDS if name.split()[-1] == word]
    hint = did_you_mean(word, names)
    if meant and not (group and hint):
        hint = f"; did you mean {' or '.join(f'`aaml {name}`' for name in meant)}?"
    return f"command: {word!r} is not known{hint or '; expected one of ' + ', '.join(names)}"
