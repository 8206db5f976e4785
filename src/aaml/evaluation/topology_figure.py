"""A picture of a cluster's topology: control plane, racks and nodes, nodes coloured by use of CPU."""

from collections.abc import Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import networkx as nx
from matplotlib.figure import Figure

from aaml.cluster.state import ClusterState
from aaml.cluster.topology import rack_graph, to_networkx
from aaml.errors import UserError
from aaml.files import write_whole
from aaml.kube.objects.manifests import load
from aaml.workload.traces import load_nodes

if TYPE_CHECKING:
    from aaml.cluster.objects import Node

_COLOURS = {"control-plane": "#1d2329", "rack": "#0b6e4f"}


def topology_figure(state: ClusterState) -> Figure:
    """Draw the graph that `rack_graph` gives the networks, radially."""
    graph = to_networkx(state, rack_graph(state))
    role = nx.get_node_attributes(graph, "role")
    racks = [name for name in graph if role[name] == "rack"]
    by_rack = [name for rack in racks for name in graph.neighbors(rack) if role[name] == "node"]
    place = nx.shell_layout(graph, [["control-plane"], racks, by_rack], rotate=0.0)
    figure = Figure(figsize=(8, 8), layout="constrained")
    axes = figure.subplots()
    nx.draw_networkx_edges(graph, place, ax=axes, edge_color="#adb5bd", width=0.8)
    used = [graph.nodes[name]["cpu_used"] for name in by_rack]
    drawn = nx.draw_networkx_nodes(
        graph, place, by_rack, ax=axes, node_size=60, node_color=used, cmap="viridis_r", vmin=0.0, vmax=1.0
    )
    for kind, colour in _COLOURS.items():
        hubs = [name for name in graph if role[name] == kind]
        nx.draw_networkx_nodes(graph, place, hubs, ax=axes, node_size=180, node_color=colour)
        labels = {name: name.removeprefix("rack:") for name in hubs}
        above = {name: (x, y + 0.05) for name, (x, y) in place.items()}
        box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.5}
        nx.draw_networkx_labels(graph, above, labels, ax=axes, font_size=8, bbox=box)
    figure.colorbar(drawn, ax=axes, label="CPU requested / allocatable", shrink=0.6)
    axes.set_axis_off()
    axes.margins(0.02)
    return figure


def draw_node_list(paths: Sequence[Path], picture: Path, most: int) -> Path:
    """Draw the first labelled list that holds nodes. Raises `UserError` when none does."""
    for path in paths:
        nodes: Sequence[Node] = load_nodes(path) if path.suffix == ".csv" else load([path]).nodes
        if nodes:
            figure = topology_figure(ClusterState(islice(nodes, most)))
            draw = partial(figure.savefig, dpi=130, format=picture.suffix.removeprefix(".") or "png")
            write_whole(picture, draw, field="picture")
            return picture
    raise UserError(f"picture: no nodes in {', '.join(map(str, paths))}")
