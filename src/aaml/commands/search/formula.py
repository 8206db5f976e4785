"""Search for formulas that schedule well: genetic programming over features, short ones and good ones.

`aaml search formula --out FOLDER --resume` goes on where a search was interrupted, to the same result.
"""

from dataclasses import dataclass
from pathlib import Path

from aaml.commands.kinds import Flag
from aaml.commands.search import stoppable
from aaml.errors import bad_value
from aaml.evolve.settings import OPENB, EvolveConfig
from aaml.settings import Natural, Settings, SettingsFile


@dataclass(frozen=True)
class Args(Settings):
    """`aaml search formula`."""

    evolve: EvolveConfig = EvolveConfig()
    config: SettingsFile = None
    """YAML file with any of these settings; a flag counts more than the file"""
    out: Path | None = None
    """folder of the search; runs/search-formula-TASK-sSEED when not given"""
    resume: Flag = False
    """go on with the search in the folder"""
    look: Natural = 0
    """do not search: evaluate the chosen formula of the folder on so many of the leaderboard's episodes of each task
    and size (--nodes), and count the looks"""


def run(args: Args) -> int:
    """Search, and say what was found."""
    from aaml.evolve.front import chosen, look, not_better, read_front, shown
    from aaml.evolve.search import evolve, read_config
    from aaml.policies.formulas.text import parse, to_text
    from aaml.study.study import looked

    config = args.evolve
    out = args.out or Path("runs") / f"search-formula-{config.label}-s{config.seed}"
    if args.look:
        if args.resume:
            raise bad_value("resume", "True", "nothing with --look, which does not search")
        searched = read_config(out)
        if searched.is_openb:
            accepted = (
                f"0 for task {OPENB}: aaml bench openb --policy fgd --model {out} --traces published, which counts"
            )
            raise bad_value("look", args.look, accepted)
        config = searched.looked_at(config, args.said)
        best = chosen(read_front(out))
        seen, count = look(config, out, best.text, args.look)
        print(f"{to_text(parse(best.text), 4)}\n{config.measure}:")
        for one in seen:
            print(f"{one.task}, {one.nodes} nodes: {shown(one.loss, ratio=config.is_ratio)}")
        print(f"looks at the leaderboard's episodes in {out}: {count}; intervals are Bonferroni's for all of them")
        return 0
    front, interruption = stoppable(
        lambda stopped: evolve(config, out, resume=args.resume, said=args.said, stop=stopped), out
    )
    if front is None:
        return interruption.status
    config = read_config(out)
    if warning := not_better(front, config.reference_policy):
        print(warning)
    print(f"on validation episodes, {config.measure} (all intervals together at 95%):")
    print("size  mean [95% interval]     formula")
    for each in front:
        row = each.row(ratio=config.is_ratio)
        print(f"{row['size']:>4}  {row['validation [95% interval]']:<23}  {to_text(parse(each.text), 4)}")
    print(looked(out).at("validation"))
    if interruption.status:
        print(f"stopped; go on with: aaml search formula --out {out} --resume --generations {config.generations}")
        return interruption.status
    print(f"page: {out}/report.html")
    if config.is_openb:
        print(f"next: aaml bench openb --policy {config.reference_policy} --model {out} --traces published")
    else:
        print(f"next: aaml evaluate --policies {config.reference_policy} {out} --task {config.task[0]}")
    return 0
