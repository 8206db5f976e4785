"""Studies: what every search of ours has in common, by Optuna's names.

A `Study` asks a sampler for trials, has them evaluated, tells the sampler, and keeps them in its journal. A `Problem`
is what trials are evaluated by. A pruner ends those early that are behind. What is reported is of episodes held out.
"""
