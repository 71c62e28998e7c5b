"""Guess the language of a sentence from its function words, well enough to know when two texts do not compare."""

from __future__ import annotations

import re

_WORD = re.compile(r"[^\W\d_]+")
_FUNCTION_WORDS = {
    "en": "the and of is are was to in for with not that this it on be by from as at has have or which they must may",
    "de": "der die das und ist nicht ein eine mit für auf wird sind von dem den des im zu zur zum sie es auch bei nach "
    "bis wurde werden soll kann ich mir mein meine unser",
    "fr": "le la les de l d des est et une un du dans pour pas que qui sur avec sont au aux ce cette il elle ne se par",
    "es": "el la los las de es y una un del en para no que con por se al son más lo su como este esta",
    "it": "il lo la gli è e una un del della di che per non con sono dei delle nel nella si al alla come le",
    "nl": "de het een en is van niet dat op te voor met zijn aan er die door wordt naar ook bij uit",
    "pt": "o a os as é e uma um do da de que para não com em no na por são dos das ao se mais",
    "sv": "och är att det som en ett på av för inte med den till kan har från de om ska",
    "da": "og er at det som en et på af for ikke med den til kan har fra de om skal der",
    "pl": "i jest nie na się do to że z w o jak po za od przez są dla oraz który",
}
_QUESTION_WORDS = {
    "en": "what when where who whom whose which why how does did do much many long i am me my you your we our he she "
    "they their but if can could will would should may might been were had there here yes any all more about than",
    "de": "was wann wo wer wen wem wie wieviel viel viele warum wieso welche welcher welches welchen woher wohin hat",
    "fr": "que quoi quand où comment combien pourquoi quel quelle quels quelles c était a fait",
    "es": "qué cuándo dónde quién quiénes cómo cuánto cuánta cuántos cuál cuáles fue tiene",
    "it": "cosa quando dove chi come quanto quanta quanti perché quale quali ha era",
    "nl": "wat wanneer waar wie hoe hoeveel waarom welke welk heeft was",
    "pt": "quê quando onde quem como quanto quanta quantos qual quais porque foi tem",
    "sv": "vad när var vem vilka hur mycket många varför vilken vilket har",
    "da": "hvad hvornår hvor hvem hvordan meget mange hvorfor hvilken hvilket har",
    "pl": "co kiedy gdzie kto ile dlaczego jaki jaka jakie który ma był",
}
"""Words that questions begin with or turn on; 'where' alone tells little, so they only add to the others."""
ENGLISH_NAMES = {
    "de": "German", "fr": "French", "es": "Spanish", "it": "Italian", "nl": "Dutch", "pt": "Portuguese",
    "sv": "Swedish", "da": "Danish", "pl": "Polish",
}  # fmt: skip
_OTHER_SCRIPT = re.compile(
    r"(?P<Cyrillic>[\u0400-\u04ff])|(?P<Greek>[\u0370-\u03ff])|(?P<Arabic>[\u0600-\u06ff])|(?P<Hebrew>[\u0590-\u05ff])|"
    r"(?P<Devanagari>[\u0900-\u097f])|(?P<Thai>[\u0e00-\u0e7f])|(?P<Korean>[\uac00-\ud7af])|(?P<Japanese>[\u3040-\u30ff])|"
    r"(?P<Chinese>[\u4e00-\u9fff])"
)
_LANGUAGES = {language: frozenset(words.split()) for language, words in _FUNCTION_WORDS.items()}
_LEAST_HITS = 2
_FEW_WORDS = 7
"""Words of a question below which one word that two languages share says too little."""


def language_of(text: str) -> str | None:
    """ISO code of the language; None if the text is too short or has no clear one."""
    words = [word.casefold() for word in _WORD.findall(text)]
    hits = sorted(
        ((sum(word in known for word in words), language) for language, known in _LANGUAGES.items()), reverse=True
    )
    (most, language), (second, _) = hits[0], hits[1]
    return language if most >= _LEAST_HITS and most > second else None


def foreign_language(question: str) -> str:
    """Return the English name of a question's language or script if it is clearly not English, else ''."""
    letters = [match.lastgroup or "" for match in _OTHER_SCRIPT.finditer(question)]
    if letters and 3 * len(letters) > sum(character.isalpha() for character in question):
        return f"{max(dict.fromkeys(reversed(letters)), key=letters.count)} script"
    words = [word.casefold() for word in _WORD.findall(question)]
    hits = {
        language: sum(word in known or word in _QUESTION_WORDS[language].split() for word in words)
        for language, known in _LANGUAGES.items()
    }
    language = max(hits, key=lambda name: (hits[name], name != "en"))
    ahead = hits[language] - hits["en"]
    clear = hits[language] >= _LEAST_HITS and ahead > (len(words) < _FEW_WORDS) and 3 * hits[language] >= len(words)
    return ENGLISH_NAMES.get(language, "") if clear else ""


def differ(one: str, other: str) -> bool:
    """True if both texts have a clear language, and not the same one."""
    first, second = language_of(one), language_of(other)
    return first is not None and second is not None and first != second
