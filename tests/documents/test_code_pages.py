"""Old code pages are told apart by what is written in them: whole sentences always, single words where they can be."""

from __future__ import annotations

import pytest

from desk_rag.documents.parsers.encoding import decode

SENTENCES = {
    "French": (
        ("cp1252", "latin-1"),
        "Le café coûte deux euros.",
        "À la fin de la journée, la société a publié ses résultats : le bénéfice s'élève à vingt millions, grâce à une"
        " forte activité à l'étranger. Les employés espèrent que la prime sera versée avant Noël.",
    ),
    "Spanish": (
        ("cp1252", "latin-1"),
        "El niño come una manzana.",
        "La reunión será el miércoles a las diez. El señor Muñoz traerá las fotografías de la excursión y explicará"
        " cómo llegamos a la montaña. ¿Dónde está la estación?",
    ),
    "Portuguese": (
        ("cp1252", "latin-1"),
        "O pão não está fresco.",
        "As eleições serão realizadas amanhã em todo o país. As crianças não têm aulas à tarde, então vão à praça"
        " comprar pão e maçãs com os avós.",
    ),
    "Danish": (
        ("cp1252", "latin-1"),
        "Blåbærgrød er en god ret.",
        "Jeg går en tur i skoven hver søndag, og bagefter drikker vi kaffe på en lille café ved søen. Børnene løber"
        " altid foran og råber højt, når de ser en and på vandet.",
    ),
    "German": (
        ("cp1252", "latin-1"),
        "Die Größe der Mühle beträgt fünf Fuß.",
        "Für die Übergabe der Wohnung müssen alle Schlüssel zurückgegeben werden. Die Küche ist zu säubern, und"
        " größere Schäden an den Wänden werden natürlich in Rechnung gestellt.",
    ),
    "Italian": (
        ("cp1252", "latin-1"),
        "La città è bella.",
        "La libertà di stampa è garantita dalla legge. Però il comitato ha già deciso che la novità sarà discussa"
        " lunedì, poiché venerdì l'università resterà chiusa.",
    ),
    "Finnish": (
        ("cp1252", "latin-1"),
        "Tämä on hyvä päivä.",
        "Kesällä lämpötila nousee yli kahdenkymmenen asteen, ja silloin perheet lähtevät mökille. Iltaisin käydään"
        " saunassa, syödään makkaraa ja istutaan järven rannalla pitkään yöhön.",
    ),
    "Icelandic": (
        ("cp1252", "latin-1"),
        "Hún sagði að það væri ekki rétt.",
        "Það er gott að búa á Íslandi, þar sem fjöllin eru há og loftið er hreint.",
    ),
    "Polish": (
        ("cp1250", "iso8859_2"),
        "Zażółć gęślą jaźń.",
        "W przyszłym miesiącu spółka ogłosi wyniki. Prezes powiedział, że mimo trudności udało się osiągnąć więcej, niż"
        " zakładano, choć część pracowników odeszła z powodu niskich płac.",
    ),
    "Czech": (
        ("cp1250", "iso8859_2"),
        "Děti si hrály na zahradě, když začalo pršet.",
        "Ředitel školy oznámil, že příští týden bude výuka zkrácena. Důvodem je oprava střechy, kterou bylo třeba"
        " odložit kvůli špatnému počasí v průběhu března.",
    ),
    "Hungarian": (
        ("cp1250", "iso8859_2"),
        "Árvíztűrő tükörfúrógép.",
        "Az erdő mélyén élt egy öreg medve, aki minden reggel lement a folyóhoz, hogy halat fogjon. Később az őrök is"
        " észrevették, és etetni kezdték, ezért ősszel már nem félt tőlük.",
    ),
    "Russian": (
        ("cp1251", "koi8-r", "cp866"),
        "Договор вступает в силу с момента подписания.",
        "В следующем месяце компания опубликует отчёт о прибыли. Директор сообщил, что несмотря на трудности, удалось"
        " выполнить план, хотя часть сотрудников уволилась.",
    ),
    "Greek": (
        ("cp1253", "iso8859_7"),
        "Καλημέρα κόσμε, η συνάντηση θα γίνει την Τετάρτη.",
        "Το νέο βιβλίο του συγγραφέα κυκλοφορεί από την επόμενη εβδομάδα σε όλα τα βιβλιοπωλεία της χώρας, ενώ η"
        " παρουσίασή του θα γίνει στην Αθήνα.",
    ),
    "Turkish": (
        ("cp1254", "iso8859_9"),
        "Yarın sabah İstanbul'a gideceğiz.",
        "Şirket gelecek ay sonuçlarını açıklayacak. Müdür, zorluklara rağmen planın gerçekleştiğini, ancak bazı"
        " çalışanların ayrıldığını söyledi ve herkese teşekkür etti.",
    ),
    "Lithuanian": (("cp1257",), "Močiutė labai laukia mūsų visų.", "Rytoj važiuosime į kaimą, nes ji iškepė šakotį."),
    "Hebrew": (("cp1255",), "האחריות על המוצר היא לשנתיים.", "יש לשמור את הקבלה לצורך תיקון ללא תשלום."),
    "Japanese": (
        ("shift_jis", "euc_jp"),
        "こんにちは世界。",
        "来月の会議は水曜日の午前十時に開かれます。資料は前日までに送ってください。東京は日本の首都であり、政治の中心である。",
    ),
}
CASES = [
    pytest.param(text, page, id=f"{language}-{page}-{length}")
    for language, (pages, short, long) in SENTENCES.items()
    for page in pages
    for length, text in (("short", short), ("long", long), ("repeated", f"Plain words.\n\n{short}\n{long}\n" * 20))
]


@pytest.mark.parametrize(("text", "page"), CASES)
def test_sentences_are_read_as_they_were_written(text: str, page: str) -> None:
    decoded, note = decode(text.encode(page))
    assert decoded == text
    assert note.startswith("encoding guessed: ")


@pytest.mark.parametrize(
    "word",
    ["Straße", "Müller", "garçon", "Voilà", "façade", "niño", "España", "corazón", "não", "coração", "rødgrød", "più",
     "città", "perché", "päivää", "Räksmörgås", "naïve", "Señor Muñoz", "5 µm ± 2 °C", "“quoted” – dashed…", "© 1998"],
)  # fmt: skip
def test_single_western_words_are_read_as_such(word: str) -> None:
    assert decode(word.encode("cp1252")) == (word, "encoding guessed: cp1252")


@pytest.mark.parametrize(
    ("word", "page"),
    [("książka", "cp1250"), ("źdźbło", "cp1250"), ("příklad", "cp1250"), ("měsíc", "cp1250"), ("Москва", "cp1251"),
     ("договор", "koi8-r"), ("Αθήνα", "cp1253"), ("çalışıyoruz", "cp1254"), ("東京", "shift_jis")],
)  # fmt: skip
def test_single_words_that_no_western_language_has(word: str, page: str) -> None:
    assert decode(word.encode(page))[0] == word


def test_many_western_languages_in_one_text_are_still_western() -> None:
    text = "Authors: J. Müller, C. Núñez, F. Leçon, Å. Sørensen, M. Conceição, P. Città.\nEnglish text around it.\n" * 9
    assert decode(text.encode("cp1252"))[0] == text


def test_never_utf_16_without_its_zeros() -> None:
    for text in ("abc\xe9", "ab\xe9", "caf\xe9s au lait", "\xfcber"):
        assert "utf" not in decode(text.encode("latin-1"))[1]


def test_a_byte_that_the_page_lacks_costs_one_character_only() -> None:
    data = "Größe und Länge der Straße. ".encode("cp1252") * 9000 + b"\x81"
    text, note = decode(data)
    assert text.endswith("Straße. \ufffd") and note == "encoding guessed: cp1252, some characters could not be read"


@pytest.mark.parametrize("text", ["Договор подписан и хранится в сейфе.", "Le contrat est signé près du café."])
@pytest.mark.parametrize("damage", [b"\xc3", b"\xff"])
def test_a_few_bad_bytes_do_not_make_utf_8_another_page(text: str, damage: bytes) -> None:
    data = (text + "\n").encode() * 3
    read, note = decode(data + damage)
    assert read.startswith(text) and read.count("\ufffd") == 1
    assert note == "read as utf-8, some characters could not be read"
