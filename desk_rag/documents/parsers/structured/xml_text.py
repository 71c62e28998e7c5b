"""Parse XML: lines that carry their elements' names; elements that repeat become rows, mixed content becomes text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from lxml import etree

from desk_rag.documents.parsers.building import Builder, Parsed
from desk_rag.documents.parsers.markup import code
from desk_rag.documents.parsers.markup.html import add_html
from desk_rag.documents.parsers.structured.nodes import Node, add_nodes

_DECLARATION = re.compile(r"\s*<\?xml[^>]*\?>")
_ESCAPED_HTML = re.compile(
    r"</(?:p|a|b|i|em|strong|div|span|ul|ol|li|h[1-6]|td|table|blockquote)>|<br ?/?>", re.IGNORECASE
)
_NAMESPACE_ATTRIBUTES = ("schemaLocation", "noNamespaceSchemaLocation")


def parse(text: str, note: str = "") -> Parsed:
    """Lines that carry their keys. A text that cannot be followed is read as code."""
    parser = etree.XMLParser(
        resolve_entities=False, no_network=True, huge_tree=False, recover=True, remove_pis=True, encoding="utf-8"
    )
    bare = _DECLARATION.sub(lambda declaration: "\n" * declaration[0].count("\n"), text, count=1)
    begin = len(bare) - len(bare.lstrip())
    try:
        element = etree.fromstring(bare[begin:].encode("utf-8", "replace"), parser)
    except (etree.XMLSyntaxError, ValueError):
        element = None
    if element is None:
        return code.parse(text, note)
    root = _tree(element, bare.count("\n", 0, begin))
    builder = Builder()
    add_nodes(builder, Node("", 1, 1, children=[root]))
    return builder.done(note) if not builder.empty else code.parse(text, note)


def _tree(root: etree._Element, lines_before: int) -> Node:
    top = Node("", 1, 1)
    pending = [(root, False, top, "")]
    while pending:
        element, is_item, parent, key = pending.pop()
        first = (element.sourceline or 1) + lines_before
        if not isinstance(element.tag, str):  # a comment, or an entity, which is not resolved
            if element.tag is not etree.Comment:
                continue
            parent.children.append(
                Node("", first, first + (element.text or "").count("\n"), f"<!-- {element.text} -->")
            )
            continue
        node = Node(key or _name(element.tag), first, first, is_item=is_item)
        parent.children.append(node)
        attributes = [(_name(name), value) for name, value in element.attrib.items()]
        node.children = [
            Node(name, first, first, value) for name, value in attributes if name not in _NAMESPACE_ATTRIBUTES
        ]
        own = (element.text or "").strip()
        if len(element) == 0 or own or any((child.tail or "").strip() for child in element):
            text = _text(element) if own or len(element) or not key else _name(element.tag)
            node.last = first + text.count("\n")
            if node.children and text.strip():
                node.children.append(Node("", first, node.last, text.strip()))
            else:
                node.value = text.strip()
            continue
        if element.tag == "dict" and element[0].tag == "key":
            pending.extend((value, False, node, name) for name, value in reversed(list(_property_list(element))))
            continue
        names = Counter(child.tag for child in element)
        pending.extend((child, names[child.tag] > 1, node, "") for child in reversed(element))
    return top.children[0]


def _text(element: etree._Element) -> str:
    """Return the text of an element without the HTML that feeds put into it as text."""
    text = "".join(element.itertext())
    if not _ESCAPED_HTML.search(text):
        return text
    page = Builder()
    add_html(page, text)
    return " ".join(block.text for block in page.done().blocks)


def _property_list(element: etree._Element) -> Iterator[tuple[str, etree._Element]]:
    """Yield the names and values of a dictionary of Apple's, which stand one after the other."""
    name = ""
    for child in element:
        if child.tag == "key":
            name = " ".join("".join(child.itertext()).split())
        else:
            yield name, child


def _name(tag: str) -> str:
    return tag.rpartition("}")[2]
