"""A saved web page loses its menus and banners, and no sentence."""

from __future__ import annotations

import email.policy
from email.message import EmailMessage

from desk_rag.documents.document import BlockKind
from desk_rag.documents.parsers.building import Parsed
from desk_rag.documents.parsers.markup import html
from desk_rag.documents.parsers.records import mail

_MENU = "".join(f'<li><a href="/{name}">{name}</a></li>' for name in ("Home", "News", "Contact", "Imprint"))
_SENTENCE = (
    "The old ferry at Ribe was taken out of service in the autumn of 1987, after the bridge upstream had been opened "
    "and nobody wanted to wait for it any longer."
)
_ARTICLE = f"""
    <h1>The ferry</h1><p>{_SENTENCE}</p>
    <h2>Fares</h2><table><tr><th>Who</th><th>Fare</th><th>Since</th></tr>
    <tr><td>Adults</td><td>4 crowns</td><td>1981</td></tr></table>
    <ul><li>Dogs travelled free.</li><li>Bicycles paid one crown.</li></ul>
"""
PAGE = f"""<!doctype html><html><head><title>The ferry - Ribe Times</title></head><body>
  <header class="site-header"><ul>{_MENU}</ul></header>
  <div id="cookie-banner"><p>We use cookies. <a href="/c">Accept everything</a> <a href="/d">Choose</a></p></div>
  <main><article>{_ARTICLE}</article></main>
  <div class="sidebar"><h3>Most read</h3><ul>
    <li><a href="/1">Ten mills you must see</a></li><li><a href="/2">Council meets on Monday</a></li>
    <li><a href="/3">Weather for the weekend</a></li></ul></div>
  <footer><a href="/i">Imprint</a> · <a href="/p">Privacy notice</a> · 2024</footer>
</body></html>"""


def text_of(parsed: Parsed) -> str:
    return "\n".join(block.text for block in parsed.blocks)


def test_menus_banners_and_side_bars_are_left_out_and_the_article_keeps_its_shape() -> None:
    parsed = html.parse(PAGE.encode())
    assert [(block.kind, block.text) for block in parsed.blocks] == [
        (BlockKind.HEADING, "The ferry"),
        (BlockKind.PARAGRAPH, _SENTENCE),
        (BlockKind.HEADING, "Fares"),
        (BlockKind.TABLE, "Who: Adults; Fare: 4 crowns; Since: 1981"),
        (BlockKind.LIST, "- Dogs travelled free."),
        (BlockKind.LIST, "- Bicycles paid one crown."),
    ]


def test_a_web_archive_loses_its_menus_too() -> None:
    archive = EmailMessage(policy=email.policy.SMTP)
    archive.make_related()
    page = EmailMessage(policy=email.policy.SMTP)
    page.set_content(PAGE, subtype="html")
    archive.attach(page)
    text = text_of(mail.parse_web_archive(bytes(archive)))
    assert _SENTENCE in text and "Most read" not in text and "Imprint" not in text


def test_a_page_without_running_text_is_kept_whole() -> None:
    bookmarks = "<h1>Bookmarks</h1><ul><li><a>Trains</a></li><li><a>Library</a></li><li><a>Bakery</a></li></ul>"
    card = '<div id="footer"><p>Call <a href="tel:1">555-0142</a></p></div><p>Open daily.</p>'
    for page, word in ((bookmarks, "Library"), (card, "555-0142")):
        assert word in text_of(html.parse(page.encode()))


def test_text_is_kept_whatever_its_element_is_called() -> None:
    """A restaurant's menu is no navigation, and an address in a footer may be what is asked for."""
    page = f"""<p>{_SENTENCE}</p><div class="menu"><p>Soup 4.50</p><p>Roast 12.00</p></div>
        <div class="sidebar"><p>{_SENTENCE.replace("Ribe", "Esbjerg")}</p></div>
        <footer>Ribe Ferries, Quay Street 3, telephone 555-0142</footer>"""
    text = text_of(html.parse(page.encode()))
    assert "Soup 4.50" in text and "ferry at Esbjerg" in text and "555-0142" in text


def test_a_list_of_links_beside_running_text_is_kept() -> None:
    links = "<ul><li><a>One book</a></li><li><a>Two maps</a></li><li><a>Three films</a></li></ul>"
    assert "Two maps" in text_of(html.parse(f"<body><p>{_SENTENCE}</p>{links}</body>".encode()))
    aside = text_of(html.parse(f"<body><div><p>{_SENTENCE}</p></div><div>{links}</div></body>".encode()))
    assert "Two maps" not in aside


def test_links_in_a_mail_are_kept() -> None:
    message = EmailMessage(policy=email.policy.SMTP)
    message["From"], message["Subject"] = "Shop <shop@example.org>", "Your order"
    message.set_content(f"<p>{_SENTENCE}</p><div class='footer'><a href='/t'>Track it</a></div>", subtype="html")
    assert "Track it" in text_of(mail.parse(bytes(message)))
