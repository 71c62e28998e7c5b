"""Refusals in a model's own words are recognised in ten languages; sentences about a subject are not taken for them."""

from __future__ import annotations

import pytest

from desk_rag.answering.writing.refusals import is_refusal
from desk_rag.model.prompt import NO_ANSWER

REFUSALS = {
    "en": [
        NO_ANSWER,
        "I could not find that in the provided documents.",
        "I'm sorry, but the documents do not contain information about the piano.",
        "The provided documents do not mention when the piano was tuned.",
        "There is no information about a piano in the passages.",
        "The passwords are not mentioned in the given context.",
        "Unfortunately, I can't answer this question based on the documents.",
        "I don't know.",
        "Based on the provided text, it cannot be determined who tuned the piano.",
        "Not mentioned.",
        "No information about the piano is provided in the documents.",
        "The context doesn't specify the tuning date.",
        "I was unable to locate any reference to a piano.",
        "None of the passages says who tuned it.",
        "This isn't something the material covers.",
        "There's nothing in what you've shared about a piano.",
        "As an AI language model, I cannot assist with that request.",
        "That is outside of what I can see here.",
    ],
    "de": [
        "Leider lässt sich das den Textstellen nicht entnehmen.",
        "Die Dokumente enthalten keine Informationen über das Klavier.",
        "In den Dokumenten wird das Klavier nicht erwähnt.",
        "Das steht nicht in den Dokumenten.",
        "Ich konnte dazu nichts finden.",
        "Leider kann ich die Frage anhand der Unterlagen nicht beantworten.",
        "Es gibt keine Angaben zum Klavier.",
        "Aus den vorliegenden Texten geht das nicht hervor.",
        "Dazu liegen mir keine Informationen vor.",
        "Das weiß ich leider nicht.",
        "Hierzu finde ich nichts.",
    ],
    "fr": [
        "Désolé, mais les extraits fournis ne précisent pas qui l'a fait.",
        "Les documents ne mentionnent pas le piano.",
        "Je n'ai pas trouvé cette information dans les documents.",
        "Je ne trouve pas la réponse.",
        "Il n'y a pas d'information sur le piano.",
        "Les documents fournis ne contiennent aucune information à ce sujet.",
        "Je ne peux pas répondre à cette question.",
    ],
    "es": [
        "Lo siento, en los fragmentos no aparece quién es.",
        "Los documentos no mencionan el piano.",
        "No he podido encontrar esa información en los documentos.",
        "No se menciona en los documentos.",
        "No hay información sobre el piano.",
        "No lo sé.",
        "Lo siento, pero los textos no contienen esa información.",
    ],
    "it": [
        "Nei brani forniti non viene indicato il nome.",
        "I documenti non menzionano il pianoforte.",
        "Non ho trovato questa informazione nei documenti.",
        "Non ci sono informazioni sul pianoforte.",
        "Non lo so.",
        "Non è possibile rispondere a questa domanda.",
        "I testi forniti non contengono questa informazione.",
    ],
    "nl": [
        "Dat wordt in de fragmenten helaas niet vermeld.",
        "De documenten bevatten geen informatie over de piano.",
        "Ik kon dat niet vinden in de documenten.",
        "Er is geen informatie over de piano.",
        "Dat weet ik helaas niet.",
        "Dat staat niet in de documenten.",
        "Ik kan deze vraag niet beantwoorden.",
    ],
    "pt": [
        "Infelizmente, os trechos não informam quem é.",
        "Os documentos não mencionam o piano.",
        "Não encontrei essa informação nos documentos.",
        "Não há informações sobre o piano.",
        "Não foi possível encontrar a resposta.",
        "Os textos não contêm essa informação.",
    ],
    "sv": [
        "Tyvärr framgår det inte av utdragen vem som är det.",
        "Dokumenten nämner inte pianot.",
        "Jag kunde inte hitta det i dokumenten.",
        "Det finns ingen information om pianot.",
        "Det framgår inte av dokumenten.",
        "Jag kan inte svara på frågan.",
        "Det vet jag tyvärr inte.",
    ],
    "da": [
        "Det fremgår desværre ikke af uddragene, hvem det er.",
        "Dokumenterne nævner ikke klaveret.",
        "Jeg kunne ikke finde det i dokumenterne.",
        "Der er ingen oplysninger om klaveret.",
        "Det står ikke i dokumenterne.",
        "Jeg kan ikke svare på spørgsmålet.",
        "Det ved jeg desværre ikke.",
    ],
    "pl": [
        "Niestety, podane fragmenty nie zawierają tej informacji.",
        "Dokumenty nie zawierają informacji o pianinie.",
        "Nie znalazłem tego w dokumentach.",
        "Nie mogę odpowiedzieć na to pytanie.",
        "Brak informacji na ten temat.",
        "W dokumentach nie ma informacji o pianinie.",
        "Dokumenty nie wspominają o pianinie.",
    ],
}
ANSWERS = [
    "The policy does not cover damage by flood.",
    "No, dogs are not allowed without permission.",
    "Nothing was paid, because the bicycle had not been locked.",
    "The tenants may not take down walls.",
    "Gas may not be taken on the ferry.",
    "There is no drinking water for the first eleven kilometres.",
    "Members receive the new code by letter and not by e-mail.",
    "He could not explain the delay.",
    "The lock was not damaged.",
    "Nora did not add it, because the flat is on the second floor.",
    "Nein, der Hund ist ohne Erlaubnis nicht gestattet.",
    "Die Versicherung zahlt bei Hochwasser nicht.",
    "Non, les chiens ne sont pas autorisés.",
    "No, los perros no están permitidos.",
    "No, i cani non sono ammessi.",
    "Nee, honden zijn niet toegestaan.",
    "Não, cães não são permitidos.",
    "Nej, hundar är inte tillåtna.",
    "Nej, hunde er ikke tilladt.",
    "Nie, psy nie są dozwolone.",
    "200 crowns",
    "There are 160 seats.",
    "Er weiß nicht, wer der neue Vermieter ist.",
    "The shed stands outside of what the club owns.",
]


@pytest.mark.parametrize("sentence", [text for texts in REFUSALS.values() for text in texts])
def test_a_refusal_is_recognised(sentence: str) -> None:
    assert is_refusal(sentence)


@pytest.mark.parametrize("sentence", ANSWERS)
def test_an_answer_is_no_refusal(sentence: str) -> None:
    assert not is_refusal(sentence)
