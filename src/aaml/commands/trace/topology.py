"""Write rack- and server-labelled copies (`*-hier`) of node lists, CSV or YAML, and draw the topology.

Finds each `openb_pod_list_*` folder of --data-dir, or takes the folder itself. Node i of a list gets rack i // k and
server i % k; labels that are there stay; a second run changes nothing.
"""

from dataclasses import dataclass
from pathlib import Path

from aaml.outputs import writes
from aaml.settings import Count, Settings


@dataclass(frozen=True)
class Args(Settings):
    """`aaml trace topology`."""

    data_dir: Path = Path("data")
    """Folder with `openb_pod_list_*` folders, or with YAML files or node lists (*node_list*.csv)."""
    servers_per_rack: Count = 4
    """Nodes in a rack."""
    scheduler_name: str = ""
    """Also set spec.schedulerName of pods and pod templates."""
    picture: Path | None = None
    """Draw the (first) labelled node list as a graph, PNG or SVG."""
    picture_nodes: Count = 64
    """Nodes drawn at most."""


@writes(file="picture")
def run(args: Args) -> int:
    """Write the copies and say which."""
    from aaml.errors import bad_value
    from aaml.workload.hierarchy import make_hierarchical

    if args.picture is not None and args.picture.suffix not in {".png", ".svg"}:
        raise bad_value("picture", str(args.picture), "a file that ends in .png or .svg")
    written = make_hierarchical(args.data_dir, args.servers_per_rack, args.scheduler_name)
    for path in written:
        print(path)
    if args.picture is not None:
        from aaml.evaluation.topology_figure import draw_node_list

        print(draw_node_list(written, args.picture, args.picture_nodes))
    return 0
