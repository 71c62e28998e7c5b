"""What can be quoted of a text."""

from __future__ import annotations

import pytest

from desk_rag.documents.sentences import quotable


def test_sentences_that_do_not_cross_lines() -> None:
    text = "Trip to Porto\n\nThe train leaves at 6.52. Anna has the tickets.\n  Take a coat\n"
    assert quotable(text) == ["Trip to Porto", "The train leaves at 6.52.", "Anna has the tickets.", "Take a coat"]


def test_what_ends_with_a_title_goes_on() -> None:
    text = "On Monday Mr. Orde comes. Ask Dr. Lund, e.g. about the St. Anne ward. Then leave."
    assert quotable(text) == ["On Monday Mr. Orde comes.", "Ask Dr. Lund, e.g. about the St. Anne ward.", "Then leave."]
    assert quotable("The foreman is Mr.") == ["The foreman is Mr."]  # there is no more of it


def test_every_unit_stands_in_the_text_and_none_twice() -> None:
    text = 'He said "no." Then Mr.  Po left. He said "no." It was late\nIt was late'
    units = quotable(text)
    assert all(unit in text for unit in units) and len(set(units)) == len(units)
    assert "".join(units).replace(" ", "") == 'Hesaid"no."ThenMr.Poleft.Itwaslate'


@pytest.mark.parametrize(
    "line", ["port=8080", "name,city,age", "| total | 546.00 |", "    return retries + 1", "fan: CL-2005"]
)
def test_code_and_tables_come_line_by_line(line: str) -> None:
    assert quotable(f"Contents\n{line}\nx\n---\n42\n") == [line.strip()]


def test_a_row_of_a_table_is_one_quote_from_its_first_cell_on() -> None:
    row = "Month: May; Income Tomas: 2480; Remark: Paid late. Ask Mr Orde; House repairs: 60"
    assert quotable(f"Budget\n{row}\n") == [row]
    assert quotable("Present: Ana, Ben Apologies: Gus") == ["Present: Ana, Ben", "Apologies: Gus"]


def test_what_no_citation_is_made_of_is_no_unit() -> None:
    text = "1 2\na b\nx=1,y=2\n| - | 7 | 8 |\na b c\nport=8080\nx=1, y=2"
    assert quotable(text) == ["a b c", "port=8080", "x=1, y=2"]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("Die Pumpe wird am 12. Mai 2026 eingebaut. Der Handwerker kommt.", 2),
        ("Der Umzug ist am 3. Oktober 2026 um 9 Uhr.", 1),
        ("Der Umsatz stieg im 3. Quartal stark. Das freut alle.", 2),
        ("Die Wohnung liegt im 2. Stock. Sie ist hell.", 2),
        ("Siehe Nr. 7 der Liste und Art. 5 Abs. 2 des Vertrags. Es gilt S. 12 oben.", 2),
        ("Obst, z. B. Birnen, kostet ca. 3 Euro. Brot auch.", 2),
        ("See No. 7 on the list. That is wrong.", 2),
        ("The answer is no. It was late.", 2),
        ("The train leaves at 6.52. Anna has the tickets.", 2),
        ("It costs 14.50 euros. The other is on page 12. The rest is lost.", 3),
        ("We stay until May 12. Afterwards we leave.", 2),
        ("The score was 3. Then it was 4. He left.", 3),
        ("Sie wurde am 3. 5. 1970 in Köln geboren. Er nicht.", 2),
        ("The meeting is on Jan. 5 at noon. Bring tea.", 2),
        ("Der Markt ist am Sa. 14. Juni. Er beginnt um 8.30 Uhr.", 2),
        ("Müller GmbH & Co. KG liefert am Freitag. Das passt.", 2),
        ("Mme. Dupont signe le bail. Sr. García no firma.", 2),
        ("Hausnr. 7 und Abb. 3 zeigen das Tor. Es ist grün.", 2),
        ("See art. 5 and vol. 2 of the rules, min. 10 pages. Read them.", 2),
        ("The mill dates from c. 1850. It burned in 1901.", 2),
        ("He came at 5 p.m. Monday. She came at 6 p.m. The train was late.", 3),
        ("They met Tom Berg jr. The dinner was good.", 2),
        ("We have 3. They have 5. 12 are left.", 3),
        ("Le 12. octobre 2026, il part. Elle reste.", 2),
        ("Der Wagen (Bj. 2016) steht bei Fa. Krüger. Er fährt.", 2),
        ("Die Werte sind lt. Dr. med. Anne Weiß gut. Übrigens fehlt Eisen.", 2),
        ("Es kostet 60 €. Öl ist teurer. „Gut“, sagt sie. Ende gut.", 4),
        ("Le loyer a été payé. Il reste 3 °C. Écrivez au tél. 0612. À bientôt.", 4),
        ("Le vaccin date du 3 févr. 2019. Cuire env. 40 min.", 2),
        ("Die Wohnung in der Lindenstr. 14, 2. Stock, ist frei. Gem. Nr. 7 kostet sie rd. 900 EUR. Sie ist hell.", 3),
        ("Am 3. Werktag sind 1.234,56 EUR fällig. Inkl. Strom sind es ca. 1.300,50 EUR. Brot ist extra.", 3),
        ("Cf. art. 5, al. 2 du contrat. M. Dubois vient le 1er févr. 2024 avec MM. Leroy et Petit. Il paie 60 €.", 3),
        ("El piso de la Avda. Mayor, núm. 14, cuesta 1.234,56 €. Véase la pág. 12. La Dra. Gómez viene sáb. 3.", 3),
        ("De waarborgsom is € 2.400,-. Mevr. Jansen betaalt. Dhr. De Vries niet.", 3),
        ("Il sig. Rossi paga 1.234,56 €. L'avv. Verdi legge l'art. 5, pag. 12. Si va sab. 14. Il 3 genn. 2025 no.", 4),
        ("The set is 3 years old. It was sold a year ago. 12 people came. They sat in the bar. 5 left.", 5),
        ("Tandarts op di. 3 juni bij dr. Bakker. De huisarts is m.i.v. 1 mei verhuisd. Zie blz. 5.", 3),
    ],
)
def test_points_inside_a_sentence_end_no_quote(text: str, parts: int) -> None:
    quotes = quotable(text)
    assert " ".join(quotes) == text and len(quotes) == parts, quotes


def test_labels_that_stand_in_one_line_are_quoted_one_by_one() -> None:
    assert quotable("Present: Ana, Gus (carpenter) Apologies: Ben") == [
        "Present: Ana, Gus (carpenter)",
        "Apologies: Ben",
    ]
    assert quotable("He said it once: Ana and Ben come.") == ["He said it once: Ana and Ben come."]
    assert quotable("Number: 7; Paid on: OPEN") == ["Number: 7; Paid on: OPEN"]  # a row of a table
