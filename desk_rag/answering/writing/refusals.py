"""Recognise a refusal in a model's own words, in the languages that answers come in.

Models that were not taught the sentence for 'not found' say it in many ways. Such a sentence is no answer: the nearest
passages are shown beside it. A sentence counts only if it speaks of the documents or of not being able to answer, so
that 'The policy does not cover floods' remains an answer.
"""

from __future__ import annotations

import re

from desk_rag.answering.evidence.quote_matching import same_words
from desk_rag.model.prompt import NO_ANSWER

_PATTERNS = (
    # English
    r"\b(?:documents?|passages?|texts?|context|sources?|excerpts?|files?|information(?: provided| given)?|materials?|"
    r"records?|notes)\b[^.!?\n]{0,40}\b(?:do(?:es)?n['’]t|do(?:es)? not|did not|didn['’]t|cannot|can['’]t|"
    r"never|nowhere)\s+"
    r"(?:\w+\s+){0,2}(?:contain|mention|include|provide|say|state|specify|give|hold|cover|answer|indicate|address|"
    r"discuss|have|offer|reveal|describe|list)",
    r"\b(?:is|are|was|were) (?:not|n['’]t|nowhere) (?:\w+\s+)?(?:mentioned|stated|specified|provided|given|contained|"
    r"found|included|listed|covered|available|described|discussed)\b[^.!?\n]{0,30}\b(?:in|by|from) (?:the|"
    r"these|any|your|"
    r"my|this)(?: \w+)? (?:documents?|passages?|texts?|context|sources?|excerpts?|files?|information|materials?)",
    r"\b(?:i|we)(?:['’]m| am| was| were|['’]re| are)? ?(?:could|can|do|did|was|were|am|are)? ?(?:not|n['’]t|"
    r"unable to|"
    r"un(?:able)? to|cannot|can['’]t|couldn['’]t|don['’]t|didn['’]t)\s+(?:\w+\s+)?(?:find|locate|determine|answer|"
    r"know|have (?:enough |any |sufficient |that )?(?:information|access|data)|see any|tell)\b",
    r"\bthere (?:is|was|are) (?:no|not any|not enough|insufficient) (?:\w+\s+)?(?:information|mention|"
    r"reference|details?|"
    r"data|indication|answer|evidence|statement)\b",
    r"\b(?:no|insufficient|not enough) (?:\w+\s+)?(?:information|mention|details?|data) (?:is|was|are|about|on|"
    r"regarding|concerning|of)?[^.!?\n]{0,60}\b(?:documents?|passages?|texts?|context|sources?|provided|given|"
    r"available)",
    r"\b(?:cannot|can['’]t|could not|couldn['’]t) be (?:determined|answered|found|inferred|derived)\b",
    r"^(?:sorry|i['’]?m sorry|i am sorry|i apologi[sz]e|unfortunately)\b[^.!?\n]{0,80}\b(?:not|no|unable|"
    r"cannot|can['’]t|"
    r"n['’]t)\b",
    r"^(?:insufficient information|not (?:found|stated|mentioned|specified)|unknown|n/?a|no answer(?: found)?|"
    r"no information(?: found| available)?)\W*$",
    # German
    r"\b(?:dokument\w*|text\w*|quelle\w*|unterlage\w*|passage\w*|auszüge\w*|kontext\w*|datei\w*|information\w*)\b"
    r"[^.!?\n]{0,60}\b(?:nicht|kein\w*|nichts|nirgends)\b[^.!?\n]{0,60}(?:erwähn\w*|enthalten|genannt|"
    r"angegeben|hervor|"
    r"gefunden|beantwort\w*|angaben?|auskunft|information\w*|hinweis\w*|steht|$)",
    r"\b(?:nicht|kein\w*|nichts|keinerlei)\b[^.!?\n]{0,60}\b(?:in|aus) (?:den|dem|diesen|ihren|deinen)(?: \w+)? "
    r"(?:dokument\w*|text\w*|quelle\w*|unterlage\w*|passage\w*|auszüge\w*|kontext\w*|datei\w*)",
    r"\b(?:konnte|kann|könnte|konnten|können|habe|haben)\b[^.!?\n]{0,60}\b(?:nicht|keine?\w*|nichts)\b[^.!?\n]{0,60}"
    r"\b(?:finden|gefunden|beantworten|sagen|feststellen|ermitteln|entnehmen)\b",
    r"\bes (?:gibt|gab|liegen?|finde[nt]\w*) (?:sich )?(?:hier |dort |dazu |darin )?(?:keine?\w*|keinerlei) "
    r"(?:\w+\s+)?(?:information\w*|angaben?|"
    r"hinweis\w*|erwähnung\w*|daten|antwort)",
    # French
    r"\b(?:documents?|textes?|sources?|passages?|extraits?|contexte|fichiers?|"
    r"informations?)\b[^.!?\n]{0,50}\bn(?:e |['’])"
    r"[^.!?\n]{0,40}\b(?:pas|aucun\w*|rien|nulle part)\b",
    r"\bje n(?:e |['’])(?:\w+\s+){0,3}(?:pas|aucun\w*|rien)[^.!?\n]{0,60}(?:trouv\w*|répon\w*|savoir|sais|déterminer|"
    r"information\w*)",
    r"\bje ne (?:trouve|sais|peux|dispose|parviens)\b[^.!?\n]{0,20}\b(?:pas|aucun\w*|rien)\b",
    r"\b(?:il n['’]y a|il n['’]existe|on ne trouve) (?:pas |aucun\w* )(?:d['’]|de "
    r")?(?:\w+\s+)?(?:information\w*|mention|réponse|indication\w*|donnée\w*)",
    r"\baucun\w* (?:information|mention|réponse|indication|donnée|passage|document)\w*\b",
    # Spanish
    r"\b(?:documentos?|textos?|fuentes?|pasajes?|contexto|archivos?|información)\b[^.!?\n]{0,40}\b(?:no|"
    r"ni)\s+(?:se\s+)?"
    r"(?:\w+\s+)?(?:contien\w*|mencion\w*|incluy\w*|proporcion\w*|dic\w*|indic\w*|especific\w*|encuentr\w*|"
    r"figur\w*|ofrec\w*|aparec\w*)",
    r"\bno (?:he podido|pude|puedo|se ha|he|logro|logré|consigo|dispongo|hay|existe|tengo|sé|encuentro|"
    r"encontré)\b[^.!?\n]{0,60}"
    r"(?:encontr\w*|respond\w*|determin\w*|información|menci\w*|datos|respuesta|documentos|textos)",
    r"\bno (?:se )?(?:menciona|especifica|indica|encuentra|aparece|figura)\w*\b[^.!?\n]{0,50}\b(?:documentos?|"
    r"textos?|fuentes?|pasajes?|contexto)",
    # Italian
    r"\b(?:documenti?|testi?|testo|fonti|passaggi|brani|contesto|file|"
    r"informazioni)\b[^.!?\n]{0,40}\bnon\s+(?:\w+\s+){0,2}"
    r"(?:conten\w*|menzion\w*|includ\w*|forni\w*|dic\w*|indic\w*|specific\w*|riport\w*|parl\w*)",
    r"\bnon (?:ho|sono|posso|riesco|è|c['’]è|ci sono|dispongo|so|trovo)\b[^.!?\n]{0,60}(?:trov\w*|rispond\w*|"
    r"determin\w*|"
    r"informazion\w*|menzion\w*|risposta|indicazion\w*)",
    # Dutch
    r"\b(?:documenten|document|teksten|tekst|bronnen|passages?|context|bestanden|"
    r"informatie)\b[^.!?\n]{0,50}\b(?:niet|geen|"
    r"niets|nergens)\b",
    r"\b(?:kan|kon|heb|konden|kunnen)\b[^.!?\n]{0,50}\b(?:niet|geen|niets)\b[^.!?\n]{0,60}\b(?:vinden|gevonden|"
    r"beantwoorden|terugvinden|bepalen)\b",
    r"\ber (?:is|staat|zijn|wordt) (?:geen|niets) (?:\w+\s+)?(?:informatie|vermelding|antwoord|gegevens|over)\b",
    r"\b(?:niet|niets|geen)\b[^.!?\n]{0,50}\bin de (?:\w+\s+)?(?:documenten|teksten|bronnen|passages|context|"
    r"bestanden)\b",
    # Portuguese
    r"\b(?:documentos?|textos?|fontes|trechos|contexto|arquivos?|ficheiros?|"
    r"informações)\b[^.!?\n]{0,40}\bnão\s+(?:\w+\s+){0,2}"
    r"(?:cont[êe]\w*|mencion\w*|inclu\w*|forne\w*|diz\w*|indic\w*|especific\w*|refer\w*|respond\w*)",
    r"\bnão (?:consegui|encontrei|foi|há|posso|sei|existe|existem|tenho|é|pude|"
    r"consigo)\b[^.!?\n]{0,60}(?:encontr\w*|respond\w*|"
    r"determin\w*|informaç\w*|menç\w*|resposta|dados|documentos|textos)",
    # Swedish
    r"\b(?:dokument\w*|text\w*|käll\w*|källorna|avsnitt\w*|sammanhang\w*|filer\w*|"
    r"information\w*)\b[^.!?\n]{0,50}\b(?:inte|ingen|inget|inga|"
    r"ingenting)\b",
    r"\b(?:kan|kunde|har|hittar|hittade)\b[^.!?\n]{0,30}\b(?:inte|ingen|inget|inga|"
    r"ingenting)\b[^.!?\n]{0,60}(?:hitta\w*|svara\w*|avgöra|"
    r"information\w*|svar\w*|dokument\w*|texte\w*|i dem|$)",
    r"\bdet (?:finns|står|framgår|nämns) (?:inte|inget|ingen|inga|ingenting)\b",
    # Danish
    r"\b(?:dokument\w*|tekst\w*|kilde\w*|afsnit\w*|filer\w*|oplysning\w*)\b[^.!?\n]{0,50}\b(?:ikke|ingen|intet)\b",
    r"\b(?:kan|kunne|har|finder|fandt)\b[^.!?\n]{0,30}\b(?:ikke|ingen|intet)\b[^.!?\n]{0,60}(?:find\w*|"
    r"fund\w*|svar\w*|afgøre|oplysning\w*|"
    r"information\w*|dokument\w*|tekst\w*|$)",
    r"\bder (?:er|findes|står) (?:ikke|ingen|intet)\b",
    r"\b(?:ikke|intet)\b[^.!?\n]{0,40}\bi (?:\w+ )?(?:dokument|tekst|kild|fil)\w*",
    # Polish
    r"\b(?:dokument\w*|tekst\w*|źród\w*|fragment\w*|kontek\w*|plik\w*|"
    r"informac\w*)\b[^.!?\n]{0,40}\bnie\s+(?:\w+\s+){0,2}"
    r"(?:zawier\w*|wspomin\w*|podaj\w*|mówi\w*|okre\w*|odpowiad\w*|ma\b|znalaz\w*|znalez\w*|wynika)",
    r"\bnie (?:\w+\s+)?(?:znalaz\w*|mog\w*|mogę|udało|jestem w stanie|ma|wiem|znajd\w*|"
    r"potrafi\w*)\b[^.!?\n]{0,60}(?:znale\w*|odpowie\w*|"
    r"informac\w*|wzmian\w*|określ\w*|ustal\w*|dokument\w*|tekst\w*|tego|$)",
    r"\bbrak (?:\w+\s+)?(?:informacji|wzmianki|danych|odpowiedzi)\b",
)  # fmt: skip
_REFUSAL = re.compile("|".join(f"(?:{pattern})" for pattern in _PATTERNS), re.IGNORECASE)
_LONGEST = 400
"""Characters of a sentence that are looked at: a refusal says so early."""


def is_refusal(sentence: str) -> bool:
    """True if a sentence says that the documents do not hold the answer, or that it cannot be given."""
    words = " ".join(sentence.split())[:_LONGEST]
    return same_words(NO_ANSWER, words[: len(NO_ANSWER) + 8]) or _REFUSAL.search(words) is not None
