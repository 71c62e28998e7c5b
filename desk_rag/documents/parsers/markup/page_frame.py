"""Remove what surrounds the text of a saved web page: menus, banners, side bars, link lists.

Only elements without running text are removed, because losing a sentence costs an answer and keeping a menu costs
little. A page without any running text is kept whole. Extraction libraries remove more and lose more sentences
(bench/LOG.md, "Saved web pages").
"""

from __future__ import annotations

import re
from collections.abc import Generator
from dataclasses import dataclass

from selectolax.lexbor import LexborNode

_INLINE_TAGS = """
    a abbr acronym b bdi bdo big cite code data del dfn em font i img input ins kbd label mark q rp rt ruby s samp
    small span strike strong sub sup time tt u var wbr
"""
INLINE_TAGS = frozenset(_INLINE_TAGS.split())
_FRAME_ROLES = frozenset({"navigation", "search", "dialog", "alertdialog", "menu", "menubar"})
_EDGE_ROLES = frozenset({"banner", "contentinfo", "complementary"})
_EDGE_TAGS = frozenset({"aside", "footer", "header", "form"})
_CONTAINERS = frozenset({"div", "section", "ul", "ol"})
_FRAME_NAMES = re.compile(
    r"(?:^|[\s_-])(?:nav(?:bar|igation)?|menu|sub-?menu|side-?bar|bread-?crumbs?|cookies?|consent|gdpr|share|sharing|"
    r"social|sharedaddy|related|recommend(?:ed|ations?)|newsletter|subscribe|footer|colophon|pagination|pager|"
    r"advert\w*|ads?|banner|promo|popup|modal|overlay|widgets?|toolbar|skip|login|masthead|top-?bar|respond|"
    r"printfooter|catlinks|toc|teasers?)(?=$|[\s_-])",
    re.IGNORECASE,
)
"""Words in an element's class or id by which sites name what is not the text."""
_CONSENT_NAMES = re.compile(r"(?:^|[\s_-])(?:cookies?|consent|gdpr)(?=$|[\s_-])", re.IGNORECASE)
_FEWEST_LETTERS = 80
"""Letters outside links from which a run of text counts as running text."""
_FEWEST_LINKS = 3
_LEAST_LINK_SHARE = 5
"""An element named like a side bar is removed only if at least a fifth of its text is links."""
_LARGEST_SHARE = 10
"""A dialog or menu with running text is removed if that is at most a tenth of the page's."""


@dataclass(slots=True)
class _Weight:
    """Counts of what stands inside an open element."""

    drops_before: int
    text: int = 0
    link_text: int = 0
    links: int = 0
    running_text: int = 0
    beside_text: bool = False
    """True if running text stands directly in it or in one of its paragraphs."""
    holds_main: bool = False
    """True if a main heading, an article, a table or code stands in it."""


def remove_page_frame(body: LexborNode) -> None:
    """Remove the menus, banners and link lists below `body`."""
    frame = _Frame()
    for entering, node in nodes_below(body):
        if entering:
            frame.enter(node)
        else:
            frame.leave(node)
    for node in frame.removable():
        node.decompose()


def nodes_below(root: LexborNode) -> Generator[tuple[bool, LexborNode], bool | None]:
    """Yield each node twice: (True, node) going in, (False, node) coming out; send True to skip the inside."""
    node: LexborNode | None = root
    while node is not None:
        skip = yield True, node
        inside = None if skip else node.child
        if inside is not None:
            node = inside
            continue
        while node is not None:
            yield False, node
            if node.mem_id == root.mem_id:
                return
            if node.next is not None:
                node = node.next
                break
            node = node.parent


class _Frame:
    """Weighs the elements of a page in one pass and collects those that surround its text."""

    def __init__(self) -> None:
        self._open: list[_Weight] = []
        self._drops: list[tuple[LexborNode, int]] = []
        """Outermost elements to be removed, with their running text."""
        self._link_lists: dict[int, list[LexborNode]] = {}
        """Lists of links by the depth of the element that holds them."""
        self._run = 0
        self._link_depth = 0
        self._page_text = 0

    def removable(self) -> list[LexborNode]:
        """Return the elements to remove; none if the page has no running text."""
        if not self._page_text:
            return []
        return [node for node, text in self._drops if text * _LARGEST_SHARE <= self._page_text]

    def enter(self, node: LexborNode) -> None:
        """Count a text node, or open an element."""
        if node.is_text_node:
            letters = len("".join((node.text_content or "").split()))
            if self._open:
                self._open[-1].text += letters
                self._open[-1].link_text += letters if self._link_depth else 0
            self._run += 0 if self._link_depth else letters
            return
        self._end_run(node)
        self._open.append(_Weight(len(self._drops)))
        self._link_depth += node.tag == "a"

    def leave(self, node: LexborNode) -> None:
        """Close an element: decide whether it is removed, and add its counts to the element around it."""
        if node.is_text_node:
            return
        self._end_run(node)
        self._link_depth -= node.tag == "a"
        weight = self._open.pop()
        link_lists = self._link_lists.pop(len(self._open), [])
        if not weight.beside_text:
            self._drops += [(inner, 0) for inner in link_lists]
        if self._surrounds(node, weight):
            del self._drops[weight.drops_before :]
            self._drops.append((node, weight.running_text))
        elif _lists_links(node, weight):
            del self._drops[weight.drops_before :]
            self._link_lists.setdefault(len(self._open) - 1, []).append(node)
        if self._open:
            self._add(node, weight)

    def _add(self, node: LexborNode, weight: _Weight) -> None:
        outer = self._open[-1]
        outer.text += weight.text
        outer.link_text += weight.link_text
        outer.links += weight.links + (node.tag == "a")
        outer.running_text += weight.running_text
        outer.beside_text |= weight.beside_text and (node.tag == "p" or node.tag in INLINE_TAGS)
        outer.holds_main |= weight.holds_main or node.tag in ("h1", "main", "article", "table", "pre")

    def _end_run(self, node: LexborNode) -> None:
        """End a run of text where a block begins or ends."""
        if node.tag in INLINE_TAGS or node.is_comment_node:
            return
        if self._run >= _FEWEST_LETTERS and self._open:
            self._open[-1].running_text += self._run
            self._open[-1].beside_text = True
            self._page_text += self._run
        self._run = 0

    def _surrounds(self, node: LexborNode, weight: _Weight) -> bool:
        """Return whether an element is a menu, a banner or the like by its tag, role or name."""
        if weight.holds_main:
            return False
        role = node.attributes.get("role") or ""
        names = f"{node.attributes.get('class') or ''} {node.attributes.get('id') or ''}"
        if node.tag == "dialog" or role in _FRAME_ROLES or (node.tag == "div" and _CONSENT_NAMES.search(names)):
            return True
        if weight.running_text or weight.link_text * _LEAST_LINK_SHARE < weight.text:
            return False
        if node.tag in _EDGE_TAGS or role in _EDGE_ROLES:
            return True
        return node.tag in _CONTAINERS and bool(_FRAME_NAMES.search(names))


def _lists_links(node: LexborNode, weight: _Weight) -> bool:
    """Return whether an element is a list of links and hardly anything else."""
    if node.tag not in ("ul", "ol") or weight.running_text or weight.links < _FEWEST_LINKS:
        return False
    return (weight.text - weight.link_text) * 5 < weight.text
