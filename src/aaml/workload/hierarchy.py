"""Rack and server labels on node lists (CSV or YAML), so that schedulers and graphs can read a topology.

With k servers to a rack, node i of a file is server i % k of rack i // k. Labels that are there already stay. The
labelled copy stands beside its original with `-hier` before the ending, and a second run reads originals only.
"""

import csv
import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from aaml.cluster.objects import RACK_LABEL, SERVER_LABEL
from aaml.errors import UserError, bad_value
from aaml.files import write_text
from aaml.schema import FastLoader, check_numbers, json_stream
from aaml.settings import Count, take
from aaml.yaml_text import yaml_stream

SUFFIX = "-hier"
_YAML = frozenset({".yaml", ".yml"})
_AMOUNTS = frozenset({"requests", "limits", "overhead", "allocatable", "capacity", "allocatedResources", "sizeLimit"})
"""Fields of quantities, which may be larger than whole numbers of 64 bits."""
_OF_A_LIST = ("apiVersion", "kind", "metadata", "items")


def rack_and_server(position: int, servers_per_rack: int) -> dict[str, str]:
    """Return the two labels of the node at `position` (from 0) in its list."""
    return {
        RACK_LABEL: f"rack-{position // servers_per_rack}",
        SERVER_LABEL: f"srv-{position % servers_per_rack}",
    }


def read_documents(path: Path) -> list[dict[str, Any]]:
    """Read the objects of a YAML file, and the items of a list in place of the list.

    Raises `UserError` naming the file, also for a key that stands twice in a mapping.
    """
    try:
        documents = _documents(path.read_bytes().decode("utf-8-sig"))
        check_numbers(documents, str(path), _AMOUNTS)
    except (OSError, ValueError, OverflowError, RecursionError, yaml.YAMLError) as error:
        where = getattr(error, "problem_mark", None)
        line = f" line {where.line + 1}" if where is not None else ""
        reason = getattr(error, "problem", None) or getattr(error, "strerror", None) or error
        raise UserError(f"{path}{line}: not readable as YAML: {' '.join(str(reason).split())}") from error
    objects: list[dict[str, Any]] = []
    for position, document in enumerate(documents):
        if document is None:
            continue
        if not isinstance(document, dict):
            raise UserError(f"{path}, document {position}: {type(document).__name__}; expected a Kubernetes object")
        kind = document.get("kind")
        if isinstance(kind, str) and kind.endswith("List") and (kind == "List" or "items" in document):
            default = {"kind": kind.removesuffix("List")} if kind != "List" else {}
            objects += [default | item for item in _items(document, f"{path}, document {position}")]
        else:
            objects.append(document)
    return objects


def _documents(text: str) -> list[Any]:
    """Return what a text holds, as YAML or else as JSON, one object after the other.

    JSON escapes letters beyond 16 bits by two of them, which is no YAML.
    """
    try:
        return list(yaml.load_all(text, Loader=FastLoader))
    except yaml.YAMLError:
        try:
            return json_stream(text)
        except (ValueError, RecursionError):
            pass
        raise


def _items(document: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    unknown = [str(name) for name in document if name not in _OF_A_LIST]
    if unknown:
        raise UserError(f"{where}: unknown field {unknown[0]!r}; expected {', '.join(_OF_A_LIST)}")
    items = document.get("items") or []
    if not isinstance(items, list):
        raise bad_value(f"{where}: items", items, "a list of objects")
    for number, item in enumerate(items):
        if not isinstance(item, dict):
            raise UserError(f"{where}: items[{number}]: {type(item).__name__}; expected a Kubernetes object")
    return items


def write_documents(path: Path, documents: Iterable[Mapping[str, Any]]) -> None:
    """Write objects as a YAML stream, whole or not at all."""
    write_text(path, yaml_stream(documents))


def label_node_objects(documents: Iterable[dict[str, Any]], servers_per_rack: int) -> list[dict[str, Any]]:
    """Return the objects with rack and server labels on the nodes."""
    result, position = [], 0
    for document in documents:
        if document.get("kind") != "Node":
            result.append(document)
            continue
        metadata = dict(document.get("metadata") or {})
        metadata["labels"] = rack_and_server(position, servers_per_rack) | dict(metadata.get("labels") or {})
        result.append(document | {"metadata": metadata})
        position += 1
    return result


def name_scheduler(documents: Iterable[dict[str, Any]], scheduler_name: str) -> list[dict[str, Any]]:
    """Return the objects with `spec.schedulerName` set on pods and pod templates."""
    result = []
    for document in documents:
        spec = dict(document.get("spec") or {})
        if document.get("kind") == "Pod":
            spec["schedulerName"] = scheduler_name
        elif isinstance(spec.get("template"), dict):
            template = dict(spec["template"])
            template["spec"] = dict(template.get("spec") or {}) | {"schedulerName": scheduler_name}
            spec["template"] = template
        result.append(document | {"spec": spec} if spec else document)
    return result


def label_csv(text: str, servers_per_rack: int, what: str = "node list") -> str:
    """Return a node list (CSV, with a node on each row) with the columns rack and server.

    What stands in these columns already stays. Raises `UserError` when the text is no node list.
    """
    reader = csv.DictReader(io.StringIO(text))
    if not reader.fieldnames or "sn" not in reader.fieldnames:
        raise UserError(
            f"{what}: column sn is missing; expected a node list with sn, cpu_milli, memory_mib, gpu, model"
        )
    columns = [*reader.fieldnames, *(c for c in (RACK_LABEL, SERVER_LABEL) if c not in reader.fieldnames)]
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    for position, row in enumerate(reader):
        kept = {column: value for column, value in row.items() if value or column not in (RACK_LABEL, SERVER_LABEL)}
        writer.writerow(rack_and_server(position, servers_per_rack) | kept)
    return out.getvalue()


def originals(folder: Path) -> list[Path]:
    """Return the YAML and node-list CSV files of a folder that are not this module's own output, sorted."""
    return sorted(
        path
        for path in folder.iterdir()
        if path.is_file()
        and not path.stem.endswith(SUFFIX)
        and (path.suffix in _YAML or (path.suffix == ".csv" and "node_list" in path.stem))
    )


def make_hierarchical(data_dir: Path, servers_per_rack: int, scheduler_name: str = "") -> list[Path]:
    """Write the labelled copies of every `openb_pod_list_*` folder in `data_dir`, or of itself where it has none.

    Returns the paths written. Raises `UserError` when there is nothing to label.
    """
    take("servers-per-rack", servers_per_rack, Count)
    if not data_dir.is_dir():
        raise bad_value("data-dir", str(data_dir), "a folder")
    folders = sorted(path for path in data_dir.glob("openb_pod_list_*") if path.is_dir()) or [data_dir]
    written = []
    for folder in folders:
        for path in originals(folder):
            target = path.with_name(path.stem + SUFFIX + path.suffix)
            if path.suffix == ".csv":
                write_text(target, label_csv(path.read_text(encoding="utf-8"), servers_per_rack, str(path)))
            else:
                documents = label_node_objects(read_documents(path), servers_per_rack)
                write_documents(target, name_scheduler(documents, scheduler_name) if scheduler_name else documents)
            written.append(target)
    if not written:
        raise UserError(f"data-dir: {data_dir} holds no YAML files and no node list (*node_list*.csv)")
    return written
