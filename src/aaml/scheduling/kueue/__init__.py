"""Admission as Kueue 0.17 decides on it: ClusterQueues with quotas, cohorts, and topology-aware scheduling.

Rules over plain data, read in Kueue's source (sigs.k8s.io/kueue v0.17.0) and compared with the real one. Not played are
preemption, fair sharing (of cohorts and of admission), partial admission, slices of pod sets and leaders beside their
workers, the replacement of failed nodes, and admission checks: `objects.refuse` says so in one line.
"""
