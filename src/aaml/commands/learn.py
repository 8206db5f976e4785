"""Learn from what the plugin inside kube-scheduler decides, and give it new weights.

The plugin (`aaml export`) tells each decision over a Unix socket. New weights go to a file that the plugin reads. Start
and stop this at any time: kube-scheduler goes on by the weights that there are. SIGTERM and Ctrl-C end it in good
order. Curves go to tlogs/, the log and every decision to logs/, a model to models/ (now and then, and at the end).
"""

from contextlib import closing
from dataclasses import dataclass
from typing import Annotated, ClassVar

import tyro

from aaml.commands.signals import ends_by
from aaml.learning.config import LIVE, SCRIPT_NAMES
from aaml.plugin.settings import LearnSettings
from aaml.threads import one_thread

LEARNED = {name: LearnSettings(agent=agent) for name, agent in LIVE.items()}
Command = (
    Annotated[LearnSettings, tyro.conf.subcommand("dqn", default=LEARNED["dqn"], description="DQN, MLP encoder")]
    | Annotated[LearnSettings, tyro.conf.subcommand("gnn", default=LEARNED["gnn"], description="DQN, graph encoder")]
    | Annotated[LearnSettings, tyro.conf.subcommand("acdqn", default=LEARNED["acdqn"], description="A2C, MLP encoder")]
    | Annotated[
        LearnSettings, tyro.conf.subcommand("acgnn", default=LEARNED["acgnn"], description="A2C, graph encoder")
    ]
)


@dataclass(frozen=True)
class Args:
    """Which agent, with its own flags."""

    other_names: ClassVar = SCRIPT_NAMES
    agent: tyro.conf.OmitSubcommandPrefixes[tyro.conf.OmitArgPrefixes[Command]]


def run(args: Args) -> int:
    """Learn until the end, and return the exit status."""
    one_thread()
    from aaml.live.learner_process import LOADING_NICENESS, NICENESS, lower_priority
    from aaml.plugin.cluster import PluginCluster
    from aaml.plugin.learn import LearnRun

    settings = args.agent
    with closing(PluginCluster(settings.socket)) as cluster:
        lower_priority(LOADING_NICENESS)  # kube-scheduler comes first; loading is to come to an end all the same
        learner = LearnRun(settings, cluster, begins=lambda: lower_priority(NICENESS))
        with ends_by(learner.stop) as interruption:
            learner.run()
            return interruption.service_status
