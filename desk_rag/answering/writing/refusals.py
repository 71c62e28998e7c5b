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
    r"\b(?:i|we)(?: cannot| can['’]t| am unable to|['’]m unable to) (?:assist|help) with (?:that|this)\b",
    r"\boutside of? what i (?:can|was|have)\b",
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
    r"\bliegen (?:mir |uns |hier |dazu |leider )*keine(?:rlei)? (?:\w+\s+)?(?:information\w*|angaben|daten|hinweise)",
    r"\b(?:weiß ich|ich weiß)(?: es| das)?(?: leider)? nicht\b",
    r"\bfinde ich (?:dazu |hierzu |darüber |leider |hier )*nichts\b",
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
    r"\bno lo sé\b",
    # Italian
    r"\b(?:documenti?|testi?|testo|fonti|passaggi|brani|contesto|file|"
    r"informazioni)\b[^.!?\n]{0,40}\bnon\s+(?:\w+\s+){0,2}"
    r"(?:conten\w*|menzion\w*|includ\w*|forni\w*|dic\w*|indic\w*|specific\w*|riport\w*|parl\w*)",
    r"\bnon (?:ho|sono|posso|riesco|è|c['’]è|ci sono|dispongo|so|trovo)\b[^.!?\n]{0,60}(?:trov\w*|rispond\w*|"
    r"determin\w*|"
    r"informazion\w*|menzion\w*|risposta|indicazion\w*)",
    r"\bnon lo so\b",
    # Dutch
    r"\b(?:documenten|document|teksten|tekst|bronnen|passages?|context|bestanden|"
    r"informatie)\b[^.!?\n]{0,50}\b(?:niet|geen|"
    r"niets|nergens)\b",
    r"\b(?:kan|kon|heb|konden|kunnen)\b[^.!?\n]{0,50}\b(?:niet|geen|niets)\b[^.!?\n]{0,60}\b(?:vinden|gevonden|"
    r"beantwoorden|terugvinden|bepalen)\b",
    r"\ber (?:is|staat|zijn|wordt) (?:geen|niets) (?:\w+\s+)?(?:informatie|vermelding|antwoord|gegevens|over)\b",
    r"\b(?:niet|niets|geen)\b[^.!?\n]{0,50}\bin de (?:\w+\s+)?(?:documenten|teksten|bronnen|passages|context|"
    r"bestanden)\b",
    r"\b(?:dat weet ik|ik weet het) (?:helaas )?niet\b",
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
    r"\b(?:det vet jag|jag vet det|jag vet) (?:tyvärr )?inte\b",
    # Danish
    r"\b(?:dokument\w*|tekst\w*|kilde\w*|afsnit\w*|filer\w*|oplysning\w*)\b[^.!?\n]{0,50}\b(?:ikke|ingen|intet)\b",
    r"\b(?:kan|kunne|har|finder|fandt)\b[^.!?\n]{0,30}\b(?:ikke|ingen|intet)\b[^.!?\n]{0,60}(?:find\w*|"
    r"fund\w*|svar\w*|afgøre|oplysning\w*|"
    r"information\w*|dokument\w*|tekst\w*|$)",
    r"\bder (?:er|findes|står) (?:ikke|ingen|intet)\b",
    r"\b(?:ikke|intet)\b[^.!?\n]{0,40}\bi (?:\w+ )?(?:dokument|tekst|kild|fil)\w*",
    r"\b(?:det ved jeg|jeg ved det) (?:desværre )?ikke\b",
    # Polish
    r"\b(?:dokument\w*|tekst\w*|źród\w*|fragment\w*|kontek\w*|plik\w*|"
    r"informac\w*)\b[^.!?\n]{0,40}\bnie\s+(?:\w+\s+){0,2}"
    r"(?:zawier\w*|wspomin\w*|podaj\w*|mówi\w*|okre\w*|odpowiad\w*|ma\b|znalaz\w*|znalez\w*|wynika)",
    r"\bnie (?:\w+\s+)?(?:znalaz\w*|mog\w*|mogę|udało|jestem w stanie|ma|wiem|znajd\w*|"
    r"potrafi\w*)\b[^.!?\n]{0,60}(?:znale\w*|odpowie\w*|"
    r"informac\w*|wzmian\w*|określ\w*|ustal\w*|dokument\w*|tekst\w*|tego|$)",
    r"\bbrak (?:\w+\s+)?(?:informacji|wzmianki|danych|odpowiedzi)\b",
)  # fmt: skip
_SILENT_DOCUMENTS = tuple(
    tuple(re.compile(rf"(?<!\w)(?:{words})(?!\w)", re.IGNORECASE) for words in language)
    for language in (
        (  # English
            r"documents?|passages?|texts?|context|sources?|excerpts?|extracts?|snippets?|sections?|files?|materials?|"
            r"information|notes|records?|what you(?:['’]ve| have)? (?:\w+ )?(?:shared|given|sent|provided|uploaded)",
            r"not|never|nowhere|nothing|none|no|neither|without|\w*n['’]t",
            r"contain\w*|mention\w*|includ\w*|provide[sd]?|sa(?:y|ys|id)|stat(?:e|es|ed)|specif\w+|give[sn]?|covers?|"
            r"covered|answer\w*|indicate\w*|address\w*|discuss\w*|offers?|reveal\w*|describe\w*|tell\w*|about|found",
        ),
        (
            r"dokument\w*|text\w*|quelle\w*|unterlage\w*|passage\w*|aus(?:zü|schni)\w*|abschnitt\w*|kontext\w*|datei\w*",
            r"nicht|kein\w*|nichts|nirgends|nirgendwo|weder",
            r"erwähn\w*|enthal\w*|enthäl\w*|genannt|nenn\w*|angegeben|hervor\w*|gefunden|finde[nt]?|entnehm\w*|"
            r"entnommen|steht|stehen|sag(?:t|en)|gesagt|beantwort\w*|angabe\w*|auskunft|hinweis\w*",
        ),
        (
            r"documents?|textes?|sources?|passages?|extraits?|contexte|fichiers?",
            r"pas|aucun\w*|rien|nulle part|ni",
            r"contien\w*|mention\w*|indiqu\w*|précis\w*|di[ts]\w*|figur\w*|trouv\w*|fourni\w*|répon\w*|parl\w*|évoqu\w*",
        ),
        (
            r"documentos?|textos?|fuentes?|pasajes?|fragmentos?|extractos?|contexto|archivos?",
            r"no|ningun\w*|nada|tampoco|ni",
            r"contien\w*|mencion\w*|indic\w*|especific\w*|dic\w*|figur\w*|aparec\w*|encuentr\w*|ofrec\w*|respond\w*|habl\w*",
        ),
        (
            r"documenti?|test[io]|font[ei]|pass(?:aggi|i)|bran[io]|estratt[io]|contesto|file",
            r"non|nessun\w*|nulla|niente",
            r"conten\w*|conteng\w*|menzion\w*|indic\w*|specific\w*|dic\w*|figur\w*|compar\w*|trov\w*|forni\w*|riport\w*|parl\w*",
        ),
        (
            r"document(?:en)?|tekst(?:en)?|bron(?:nen)?|passages?|fragment(?:en)?|uittreksels?|context|bestand(?:en)?",
            r"niet|geen|niets|nergens",
            r"vermeld\w*|staat|staan|genoemd|noem\w*|bevat\w*|zeg(?:t|gen)|gezegd|gevonden|vind\w*|aangegeven|beantwoord\w*",
        ),
        (
            r"documentos?|textos?|fontes?|trechos?|excertos?|passagens|contexto|arquivos?|ficheiros?",
            r"não|nenhum\w*|nada|nem",
            r"cont[êeé]\w*|mencion\w*|indica\w*|especific\w*|diz\w*|inform\w*|consta\w*|aparec\w*|encontr\w*|refer\w*|fala\w*",
        ),
        (
            r"dokument\w*|text(?:en|er|erna)?|käll\w*|utdrag\w*|avsnitt\w*|sammanhang\w*|filer\w*",
            r"inte|ingen|inget|inga|ingenting|ingenstans",
            r"nämn\w*|framgå\w*|stå(?:r|tt)|säg(?:er|s)|innehåll\w*|ange[rs]?|hitta\w*|finns|svara\w*",
        ),
        (
            r"dokument\w*|tekst\w*|kilde\w*|uddrag\w*|afsnit\w*|sammenhæng\w*|filer\w*",
            r"ikke|ingen|intet|ingenting|ingen steder",
            r"nævn\w*|fremgå\w*|stå(?:r|et)|siger|indehold\w*|angive\w*|find\w*|oplys\w*|svar\w*",
        ),
        (
            r"dokument\w*|tek[sś]\w*|źród\w*|fragment\w*|wyciąg\w*|kontek\w*|plik\w*",
            r"nie|brak|żaden|żadn\w*|nic|nigdzie",
            r"zawier\w*|wspomin\w*|wspomnian\w*|podaj\w*|podan\w*|mówi\w*|określ\w*|znal\w*|znajd\w*|wynika\w*|ma|odpowiad\w*",
        ),
    )
)  # fmt: skip
"""Per language: words for documents, for not, and for saying. In one short sentence they say that documents do not say
it, in whatever order they stand."""
_SHORT = 26
"""Words of a sentence in which these three belong together."""
_MAIN_PART = re.compile(r"[,;:]?\s(?:but|however|aber|mais|pero|ma|maar|mas|men|ale)\s")
_REFUSAL = re.compile("|".join(f"(?:{pattern})" for pattern in _PATTERNS), re.IGNORECASE)
_LONGEST = 400
"""Characters of a sentence that are looked at: a refusal says so early."""


def is_refusal(sentence: str) -> bool:
    """True if a sentence says that the documents do not hold the answer, or that it cannot be given."""
    words = " ".join(sentence.split())[:_LONGEST]
    if same_words(NO_ANSWER, words[: len(NO_ANSWER) + 8]) or _REFUSAL.search(words) is not None:
        return True
    part = _MAIN_PART.split(words, maxsplit=1)[0]
    return len(part.split()) <= _SHORT and any(
        all(pattern.search(part) for pattern in language) for language in _SILENT_DOCUMENTS
    )
