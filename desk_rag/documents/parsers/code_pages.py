"""Guess which old code page a text was written in, from the letters and common words of languages.

Bytes above 127 mean different letters in every page, and nearly any page decodes nearly any text; but the wrong page
shows letters that no single language uses. A decoded text scores for the share of its non-ASCII letters that one
language has, and for that language's common words; symbols inside words, capitals after small letters and foreign
letters count against it. Equal scores go to cp1252, by far the most common page. Chinese pages are not covered.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

_ENOUGH = 0.7
"""Below this no listed language explains the letters."""
_MOST_BYTES = 16 * 1024
_FEW = 8
"""Fewer bytes beyond ASCII speak for a page of the years before Windows only if no other explains them."""
_RECENT, _OLD_COST = 0.03, 0.35
_WORD = re.compile(r"[^\W\d_]+")
_HIGH = re.compile(rb"[^\x00-\x7f]")
_CONTROLS = re.compile(r"[\x80-\x9f]")
_IN_WORD = re.compile(r"(?<=[^\W\d_])(?:[^\w\s\x00-\x7f’‘·\xad–—…]|[¹²³¼½¾ªº])+(?=[^\W\d_])")
_PUNCTUATION = frozenset("„“”‘’‚«»‹›–—…•·°§©®™€£¥¢¡¿ªº²³½¼¾×÷±†‡‰¶´¨µ\xa0\xad№")
_HIRAGANA = re.compile(r"[\u3041-\u3096]")
_HALF_WIDTH = re.compile(r"[\uff61-\uff9f]")


@dataclass(frozen=True, slots=True)
class _Language:
    """Letters and words by which a language is recognised in one of its pages."""

    letters: frozenset[str]
    """Beyond ASCII, small."""
    words: frozenset[str]
    foreign: frozenset[str]
    """ASCII letters that hardly occur in it."""
    apart: bool
    """Has a script of its own: no word of it holds an ASCII letter."""


def _language(letters: str, words: str, foreign: str = "", *, apart: bool = False) -> _Language:
    return _Language(frozenset(letters), frozenset(words.split()), frozenset(foreign), apart)


_WESTERN = (
    _language("àâæçèéêëîïôœùûüÿ", "le la les de des du et un une est en que qui dans pour sur pas au il ne ce", "kw"),
    _language("áéíñóúü", "el la los las de del y un una es en que por con para no se su al lo como más", "kw"),
    _language("äöüß", "der die das und ist in den von zu mit für auf ein eine nicht sich des dem im an bei", "q"),
    _language("àáâãçéêíóôõúü", "o a os as de do da e um uma que em no na para com não se por mais ao", "kwy"),
    _language("àèéìòù", "il lo la i gli le di del della e un una è che in per non con si al da", "jkwxy"),
    _language("æøåéö", "og i at det er en et den til på som de med for der ikke af jeg har var", "qwxz"),
    _language("åäöé", "och i att det är en ett som på av för den med till inte om har de ja on ei se että oli", "qw"),
    _language("äëïöüéèêàóá", "de het een van en in is dat op te die met voor niet zijn aan er", "qx"),
    _language("áðéíóúýþæö", "og að í er á sem það til við ekki um en hann var með því", "cqwz"),
    _language("àçèéíïòóúü", "el la els les de del i un una és que en per amb no es al", "kw"),
    _language("äöõüšž", "ja on ei et see ta oma kui ka mis oli", "cqwxy"),
    _language("éèêëïöüçñâàä", "the of and to in is that for on with as was it by at be this from or", ""),
)
_CENTRAL = (
    _language("ąćęłńóśźż", "i w na z do nie się że to jest o po od za jak przez oraz dla ale co", "qvx"),
    _language("áčďéěíňóřšťúůýž", "a v na se je že to s z do i o jako za po by pro ve si který ale", "qwx"),
    _language("áéíóöőúüű", "a az és hogy nem is egy ez meg már volt csak de ha mint még el", "qwx"),
    _language("áäčďéíĺľňóôŕšťúýž", "a v na sa je že to s z do aj o ako za po by pre vo si ktorý ale", "qwx"),
    _language("ăâîşţ", "şi de la în a cu pe un o nu că este din care mai pentru să se au", "qwy"),
    _language("čćđšž", "i u je na se da za su od s o kao ne što a to iz po koji in v za so pa ki", "qwxy"),
)
_TURKISH = (_language("çğıöşüâîû", "ve bir bu da de için ile çok daha gibi olan ne var o mi en ama", "qwx"),)
_BALTIC = (
    _language("ąčęėįšųūž", "ir yra į kad su iš buvo tai ne o kaip bet po nuo ar", "qwx"),
    _language("āčēģīķļņšūž", "un ir ar uz no par ka kas to bet vai ne pie arī", "qwxy"),
)
_CYRILLIC = (
    _language("абвгдежзийклмнопрстуфхцчшщъыьэюяё", "и в не на что с по как это из к за от для а о у же", apart=True),
    _language("абвгґдеєжзиіїйклмнопрстуфхцчшщьюя", "і в на не що з до та як це у за від для а", apart=True),
    _language("абвгдежзийклмнопрстуфхцчшщъьюя", "и на да се в за от не с е са по като", apart=True),
)
_GREEK = (
    _language("αβγδεζηθικλμνξοπρστυφχψωςάέήίόύώϊϋΐΰ", "και το να του η της με που από για την τα σε είναι", apart=True),
)
_HEBREW = (_language("אבגדהוזחטיךכלםמןנסעףפץצקרשת", "של את על לא הוא כי גם עם אני זה היא יש או", apart=True),)
_FREQUENT = frozenset("оеаинтсрвлкмдпуяαοιετσνηυρπκςμλיוהלארתבמשנ")
"""Frequent letters of Cyrillic, Greek and Hebrew, whose pages all show some of them for each other's bytes."""
_PAGES = (
    ("cp1252", _WESTERN, 0.0),
    ("cp1250", _CENTRAL, 0.02),
    ("cp1251", _CYRILLIC, 0.02),
    ("cp1253", _GREEK, 0.02),
    ("cp1254", _TURKISH, 0.02),
    ("cp1255", _HEBREW, 0.02),
    ("cp1257", _BALTIC, 0.02),
    ("iso8859_2", _CENTRAL, 0.03),
    ("koi8_r", _CYRILLIC[:1], 0.03),
    ("koi8_u", _CYRILLIC[1:2], 0.04),
    ("iso8859_7", _GREEK, 0.04),
    ("iso8859_5", _CYRILLIC, 0.05),
    ("cp866", _CYRILLIC, 0.05),
    ("cp850", _WESTERN, 0.08),
    ("cp852", _CENTRAL, 0.08),
    ("mac_roman", _WESTERN, 0.08),
)
"""Page, who writes in it, and what it must be better by than cp1252."""
LATIN = frozenset({"cp1250", "cp1252", "cp1254", "cp1257", "iso8859_2", "cp850", "cp852", "mac_roman"})
OTHERS = (
    "cp932", "euc_jp", "gb18030", "big5", "cp949", "cp1255", "cp1256", "cp874", "cp1251", "koi8_r", "cp1253", "cp1250",
    "cp1252", "cp1254", "cp1257", "iso8859_2", "cp850",
)  # fmt: skip
"""Code pages that a text file may still be written in: no page of mainframes, nor of computers before 1985."""


def code_page(data: bytes) -> str | None:
    """Return the page's name, or None if no listed language explains the bytes; `data` is neither UTF-8 nor ASCII."""
    sample = _telling(data)
    if japanese := _japanese(sample):
        return japanese
    few = len(_HIGH.findall(sample)) < _FEW
    best, chosen = _ENOUGH, None
    for page, languages, cost in _PAGES:
        score = _score(sample, page, languages) - (_OLD_COST if few and cost > _RECENT else cost)
        if score > best:
            best, chosen = score, page
    return chosen


def _telling(data: bytes) -> bytes:
    """Those lines that hold bytes beyond ASCII, up to `_MOST_BYTES` of them."""
    kept, size = [], 0
    for line in data.splitlines(keepends=True):
        non_ascii = _HIGH.search(line)
        if non_ascii is None:
            continue
        start = max(0, non_ascii.start() - 1024) if len(line) > _MOST_BYTES else 0
        kept.append(line[start : start + _MOST_BYTES - size])
        size += len(kept[-1])
        if size >= _MOST_BYTES:
            break
    return b"".join(kept)


def _japanese(sample: bytes) -> str | None:
    """No other page shows a fifth of hiragana, which every Japanese sentence has."""
    for page in ("cp932", "euc_jp"):
        text = sample.decode(page, "replace")
        high = sum(char > "\x7f" for char in text)
        wrong = text.count("\ufffd") + len(_HALF_WIDTH.findall(text))
        if 5 * len(_HIRAGANA.findall(text)) >= high and 50 * wrong <= high:
            return page
    return None


def _score(sample: bytes, page: str, languages: tuple[_Language, ...]) -> float:
    """Score of the language that explains the reading best: about one for a sound one."""
    try:
        text = sample.decode(page)
    except UnicodeDecodeError:
        return 0.0
    if _CONTROLS.search(text):
        return 0.0
    words = _WORD.findall(text)
    high = Counter(char for char in text if char > "\x7f" and char not in _PUNCTUATION)
    strange = sum(map(len, _IN_WORD.findall(text))) + sum(map(_odd_capitals, words))
    total = sum(high.values())
    if not total:
        return 1.0 if not strange else 0.0  # quotes and dashes alone
    ascii_letters = Counter(char for char in text.lower() if "a" <= char <= "z")
    lower = Counter(word.lower() for word in words)
    return max(_by_language(one, high, words, lower, ascii_letters) for one in languages) - 2 * strange / total


def _by_language(
    language: _Language, high: Counter[str], words: list[str], lower: Counter[str], ascii_letters: Counter[str]
) -> float:
    total = sum(high.values())
    covered = 0.0
    for char, count in high.items():
        if char.lower().replace("i̇", "ı") in language.letters:
            usual = not language.apart or char.lower() in _FREQUENT
            covered += count * (1.0 if usual else 0.85) * (0.97 if language.apart and char.isupper() else 1.0)
    common = sum(count for word, count in lower.items() if word in language.words) / max(1, len(words))
    letters = max(1, total + sum(ascii_letters.values()))
    foreign = sum(ascii_letters[char] for char in language.foreign) / letters
    odd = sum(map(_mixed if language.apart else _bare, words))
    return covered / total + common - foreign - 2 * odd / total


def _mixed(word: str) -> bool:
    return not word.isascii() and any("a" <= char <= "z" for char in word.lower())


def _bare(word: str) -> bool:
    """Three letters or more, all of them beyond ASCII: no Latin script makes such words."""
    return len(word) > 2 and not any(char < "\x80" for char in word)


def _odd_capitals(word: str) -> int:
    """Capitals beyond ASCII that stand behind a small letter."""
    return sum(two > "\x7f" and two.isupper() and one.islower() for one, two in zip(word, word[1:], strict=False))
