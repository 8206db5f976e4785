"""Say what a network has learned: the smallest formulas that choose as it does, on states that it visits."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from aaml.commands.kinds import Flag
from aaml.commands.search import going_on, stoppable
from aaml.evolve.distil_settings import DistilConfig
from aaml.settings import Settings, SettingsFile


@dataclass(frozen=True)
class Args(Settings):
    """`aaml search network`."""

    model: Annotated[Path, tyro.conf.Positional]
    """A model file, the folder of a training, or a name that `aaml show models` lists."""
    distil: DistilConfig = DistilConfig()
    config: SettingsFile = None
    """YAML file with any of these settings; a flag counts more than the file"""
    out: Path | None = None
    """folder for formulas and page; runs/search-network-MODEL-TASK when not given"""
    resume: Flag = False
    """go on with the search in the folder"""


def run(args: Args) -> int:
    """Distil, and print the front."""
    from dataclasses import replace

    from aaml.evaluation.zoo import model_file
    from aaml.evolve.distil import distil
    from aaml.evolve.front import shown
    from aaml.files import in_a_name

    config, path = args.distil, model_file(args.model)
    out = args.out or Path("runs") / f"search-network-{args.model.stem}-{in_a_name(config.task)}"
    config = replace(config, generations=going_on(args, "generations", out))
    result, interruption = stoppable(lambda stopped: distil(path, config, out, resume=args.resume, stop=stopped), out)
    if result is None:
        return interruption.status
    ratio = config.search.is_ratio
    print(f"on validation episodes, {config.search.measure} (all intervals together at 95%):")
    print(f"the network itself: {shown(result.interval, ratio=ratio)}")
    print("size  agreement  mean [95% interval]     formula")
    for each in result.front:
        row = each.row(ratio=ratio)
        print(f"{row['size']:>4}  {row['agreement']:>9}  {row['validation [95% interval]']:<23}  {row['formula']}")
    print(result.look.at("validation"))
    print(f"agreement: on states of the network that the search never saw; page: {out}/report.html")
    return interruption.status
