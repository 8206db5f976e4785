"""KubeSchedulerConfigurations that the real kube-scheduler and AAML both read, or both refuse."""

HEAD = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
MISTAKES = {
    "percentageOfNodesToScores: 3": "unknown field `percentageOfNodesToScores`",
    "percentageOfNodesToScore: 101": "percentageOfNodesToScore: Expected `int` <= 100",
    "percentageOfNodesToScore: '3'": "percentageOfNodesToScore: Expected `int",
    "parallelism: 0": "parallelism: Expected `int` >= 1",
    "parallelism: 1\nparallelism: 2": "key 'parallelism' stands twice",
    "profiles: [{}, {}]": r"profiles\[0\].schedulerName: '' is not accepted",
    "profiles: [{schedulerName: a}, {schedulerName: a}]": r"profiles\[1\].schedulerName: 'a'",
    "profiles: [{plugins: {scores: {}}}]": r"plugins: unknown field `scores`",
    "profiles: [{plugins: {score: {enabled: [{name: NodePorts}]}}}]": "a plugin that extends score",
    "profiles: [{plugins: {score: {enabled: [{name: ImageLocality}, {name: ImageLocality}]}}}]": "a plugin once",
    "profiles: [{plugins: {multiPoint: {disabled: [{name: '*'}]}}}]": "queueSort: 'none'",
    "profiles: [{pluginConfig: [{name: NodeResourcesFit}, {name: NodeResourcesFit}]}]": "no other arguments",
    "profiles: [{pluginConfig: [{name: NodeResourcesFit, args: {scoringStrategy: {type: Most}}}]}]": "'Most'",
    "profiles: [{pluginConfig: [{name: NodeResourcesFit, args: {strategy: 1}}]}]": "unknown field `strategy`",
    "profiles: [{pluginConfig: [{name: NodeResourcesFit, args: {scoringStrategy: {type: MostAllocated, "
    "resources: [{name: cpu, weight: 101}]}}}]}]": "Expected `int` <= 100",
    "profiles: [{pluginConfig: [{name: NodeResourcesFit, args: {scoringStrategy: {type: MostAllocated, "
    "requestedToCapacityRatio: {shape: [{utilization: 0, score: 1}]}}}}]}]": "requestedToCapacityRatio: 'given'",
    "profiles: [{pluginConfig: [{name: NodeResourcesFit, args: {scoringStrategy: {type: RequestedToCapacityRatio, "
    "requestedToCapacityRatio: {shape: [{utilization: 9, score: 1}, {utilization: 9, score: 2}]}}}}]}]": "rising order",
    "profiles: [{pluginConfig: [{name: InterPodAffinity, args: {hardPodAffinityWeight: -1}}]}]": "Expected `int` >= 0",
    "profiles: [{pluginConfig: [{name: InterPodAffinity, args: {kind: NodeAffinityArgs}}]}]": "InterPodAffinityArgs",
    "profiles: [{pluginConfig: [{name: PodTopologySpread, args: {defaultingType: List, "
    "defaultConstraints: [{maxSkew: 0, topologyKey: a, whenUnsatisfiable: ScheduleAnyway}]}}]}]": "Expected `int` >= 1",
    "extenders: [{urlPrefix: 'http://127.0.0.1:1', prioritizeVerb: p}]": r"extenders\[0\].weight: 0",
    "podInitialBackoffSeconds: 20": "podMaxBackoffSeconds: 10",
}
"""Files that kube-scheduler 1.37 does not start with, and what AAML says of each."""
