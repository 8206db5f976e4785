"""List the models that ship, or say all about some: what it was trained on, by which command, its hash."""

from dataclasses import dataclass
from typing import Annotated

import tyro

from aaml.commands.kinds import Flag
from aaml.settings import Settings


@dataclass(frozen=True)
class Args(Settings):
    """`aaml show models`."""

    names: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """models, to see their cards; a line for each that ships when none is given"""
    json: Flag = False
    """print everything about them as JSON"""


def run(args: Args) -> int:
    """Print the models."""
    import json
    import re

    from aaml.errors import bad_value
    from aaml.evaluation.zoo import zoo
    from aaml.sim.tasks import find_task

    models = zoo()
    for name in args.names:
        if name not in models:
            raise bad_value("name", name, f"one of {', '.join(models)}")
    names = {f"models/{model.path.name}": model.name for model in models.values()}
    chosen = [models[name] for name in args.names] or list(models.values())
    cards = {}
    for model in chosen:
        task = find_task(model.task)
        better = "higher" if task.higher_is_better else "lower"
        cards[model.name] = {
            "agent": model.agent, "task": model.task, "metric": f"{task.metric}, {better} is better", "use": model.use,
            "command": re.sub(r"models/[\w.]+", lambda found: names.get(found[0], found[0]), model.command),
            "trained": model.trained, "file": str(model.path), "sha256": model.sha256,
        }  # fmt: skip
    if args.json:
        print(json.dumps(cards, indent=2))
    elif args.names:
        for name, card in cards.items():
            print(name)
            for key, value in card.items():
                print(f"  {key:<8} {value}")
    else:
        width = max(map(len, cards))
        for name, card in cards.items():
            print(f"{name:<{width}}  {card['agent']:<6}  {card['sha256'][:12]}  {card['metric']}: {card['use']}")
        print(
            "`aaml show models NAME` shows one with the command that made it; these names go where a model file goes:"
        )
        print(
            '  aaml evaluate --models varied-acdqn        aaml.load("varied-acdqn")        rundqn --model balance-dqn'
        )
    return 0
