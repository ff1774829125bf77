"""Label images: they lie in the group "labels" of the image that they belong to."""

from __future__ import annotations

from rankwise.data.store.meta.ngff.attributes import ome_attributes, take_list
from rankwise.data.store.meta.ngff.images import image_of
from rankwise.data.store.meta.ngff.values import Image
from rankwise.data.store.meta.tree import Nodes
from rankwise.errors import DataError

__all__ = ["label_names", "open_label"]


def label_names(place: str, nodes: Nodes) -> tuple[str, ...]:
    """Return the names of the label images of the image at a place.

    Raises:
        DataError: the list of labels is damaged.
    """
    node = nodes.node(f"{place}/labels")
    if node is None or node.kind == "array":
        return ()
    names = take_list(ome_attributes(node), "labels", f"the group {node.place}", default=[])
    if not all(isinstance(name, str) for name in names):
        raise DataError(f"'labels' of the group {node.place} are {names!r:.80}, wanted a list of names")
    return tuple(name.strip("/") for name in names)


def open_label(place: str, name: str, nodes: Nodes) -> Image:
    """Return a label image of the image at a place.

    Raises:
        DataError: there is no such label image, or it is damaged.
    """
    node = nodes.node(f"{place}/labels/{name}")
    if node is None:
        names = ", ".join(map(repr, label_names(place, nodes))) or "none"
        raise DataError(f"the image {place} has no label image {name!r}; its labels are: {names}")
    return image_of(node, nodes)
