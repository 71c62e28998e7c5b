"""Outputs as chat models write them are shown without faults: invented, refused, reasoned, looping, formatted, hostile.

The text is scripted, because no such model's weights are at hand; passages, embedder and span scorer are real.
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from typing import cast

import pytest

from desk_rag.answering.conversation.saved import saved_turn, turn_from
from desk_rag.answering.conversation.turns import turn_of
from desk_rag.answering.events import (
    Answer,
    AnswerDraft,
    AnswerEvent,
    AnswerMode,
    AnswerText,
    Finished,
    Grounding,
    ReasoningText,
    SentenceChecked,
    StreamEvent,
    Support,
    Timings,
)
from desk_rag.answering.evidence.citations import ParsedAnswer
from desk_rag.answering.evidence.span_scorer import SpanScorer, load_span_scorer
from desk_rag.answering.writing.length import AnswerLength
from desk_rag.answering.writing.stream import WrittenStream
from desk_rag.answering.writing.support import SupportChecker
from desk_rag.cli import output as out
from desk_rag.config import Settings
from desk_rag.model.prompt import NO_ANSWER
from desk_rag.model.reasoning import HARMONY, MARKS, NO_REASONING, Reasoning, Thinking
from desk_rag.retrieval import embedding
from desk_rag.retrieval.embedding import Embedder
from tests.answering.writing.sample_passages import sources

FINE = "What is the fine for camping in the Norrfell nature park?"
HUTS = "Compare Alder Hut and Fenna Hut"
PARTS = "Which spare parts are there and what do they cost?"
PIANO = "When was the piano tuned?"
THINK = Reasoning((MARKS[0],), Thinking.SOMETIMES)
BEGUN = Reasoning((MARKS[0],), Thinking.ALWAYS, MARKS[0])
LONG = AnswerLength(600, 1200)


@dataclass(frozen=True)
class Case:
    """One output, and what becomes of it. `states` has a letter per checked sentence: (S)upported, (U)nsupported,
    un(C)hecked."""

    question: str
    output: str
    states: str
    found: bool
    shown: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    reasoning: Reasoning = NO_REASONING
    length: AnswerLength = LONG


CASES = {
    "a right sentence with its citation": Case(
        FINE,
        "The fine for camping in the Norrfell nature park is 200 crowns [1].",
        "S",
        True,
        ("nature park is 200 crowns. [1]\n", "[1] /docs/norrfell-walk.md", "“Camping is forbidden"),
        ("[?]", "Nearest"),
    ),
    "a right sentence without a citation": Case(
        FINE,
        "Anyone who camps in the nature park has to pay a fine of 200 crowns.",
        "S",
        True,
        ("200 crowns. [1]\n",),
        ("[?]",),
    ),
    "a right sentence with the citation of another document": Case(
        FINE,
        "Camping is forbidden in the nature park, and the fine is 200 crowns [4].",
        "S",
        True,
        ("[1]",),
        ("[4]",),
    ),
    "a citation out of range": Case(
        FINE,
        "The fine for camping is 200 crowns [9], and it is forbidden everywhere in the park [12].",
        "S",
        True,
        ("[1]",),
        ("[9]", "[12]"),
    ),
    "only a fragment": Case(FINE, "200 crowns", "S", True, ("200 crowns [1]\n",), ("[?]",)),
    "a wrong number": Case(
        FINE,
        "The fine for camping in the nature park is 250 crowns [1].",
        "U",
        False,
        ("250 crowns. [?]", "Not from your documents", "the number 250 stands in none", "Nearest passages:"),
        ("crowns [1]",),
    ),
    "a wrong name": Case(
        "Who is the warden of Alder Hut?",
        "The warden of Alder Hut is called Solveig Hamre [3].",
        "U",
        False,
        ("[?]", "Solveig, Hamre do not stand"),
    ),
    "an invented sentence behind a right one": Case(
        FINE,
        "The fine for camping is 200 crowns [1]. Rangers patrol the lakes every evening in summer [1].",
        "SU",
        True,
        ("200 crowns. [1]", "every evening in summer. [?]", "1 of 2 sentences is not supported"),
    ),
    "invented from beginning to end": Case(
        PIANO,
        "The piano was tuned in spring by a specialist from the city. He replaced several strings.",
        "UU",
        False,
        ("[?]", "Not from your documents", "Nearest passages:"),
    ),
    "a refusal in the model's own words": Case(
        PIANO,
        "I'm sorry, but the provided documents do not mention when the piano was tuned.",
        "",
        False,
        ("do not mention", "Nearest passages:"),
        ("[?]",),
    ),
    "a refusal, then general knowledge": Case(
        PIANO,
        "The documents do not say when the piano was tuned. However, a piano should be tuned twice a year.",
        "U",
        False,
        ("do not say", "twice a year. [?]", "Nearest passages:"),
    ),
    "a refusal with a part of the answer": Case(
        "What do the huts cost, and which one has a sauna?",
        "Dinner at Alder Hut costs 18 crowns [3]. The documents do not mention a sauna.",
        "S",
        True,
        ("18 crowns. [3]", "do not mention a sauna."),
        ("Nearest",),
    ),
    "the taught refusal": Case(PIANO, NO_ANSWER, "", False, (NO_ANSWER, "Nearest passages:")),
    "a German refusal": Case(
        "Wann wurde das Klavier gestimmt?",
        "Das geht aus den vorliegenden Dokumenten leider nicht hervor.",
        "",
        False,
        ("Nearest passages:",),
    ),
    "a French refusal": Case(
        "Quand le piano a-t-il été accordé ?",
        "Je n'ai pas trouvé cette information dans les documents.",
        "",
        False,
        ("Nearest passages:",),
    ),
    "a Polish refusal": Case(
        "Kiedy strojono pianino?", "W dokumentach nie ma informacji o pianinie.", "", False, ("Nearest passages:",)
    ),
    "reasoning between marks": Case(
        FINE,
        "<think>\nThe user wants the fine. Document 1 says 200 crowns.\n</think>\n\n"
        "The fine for camping is **200 crowns** [1].",
        "S",
        True,
        ("The fine for camping is **200 crowns**. [1]", "reasoned for 10 words"),
        ("user wants", "<think>", "</think>"),
        reasoning=THINK,
    ),
    "reasoning begun by the prompt": Case(
        FINE,
        "Okay, document 1 has it.\n</think>\n\nThe fine for camping is 200 crowns [1].",
        "S",
        True,
        ("The fine for camping",),
        ("Okay", "</think>"),
        reasoning=BEGUN,
    ),
    "reasoning in messages": Case(
        FINE,
        "<|channel|>analysis<|message|>We need the fine.<|end|><|start|>assistant<|channel|>final<|message|>"
        "The fine for camping is 200 crowns [1].",
        "S",
        True,
        ("The fine for camping",),
        ("We need", "<|", "final"),
        reasoning=Reasoning((HARMONY,), Thinking.ALWAYS),
    ),
    "reasoning that never ends": Case(
        FINE,
        "<think>" + "So the fine could be here or there, let me look at it again from the start. " * 4,
        "",
        False,
        ("still reasoning after", "There is no answer: the model did not finish reasoning."),
        ("let me look",),
        reasoning=THINK,
        length=AnswerLength(20, 60),
    ),
    "reasoning that is not counted": Case(
        FINE,
        "<think>" + " ".join(f"step {n}" for n in range(45)) + "</think>The fine for camping is 200 crowns [1].",
        "S",
        True,
        ("200 crowns",),
        ("cut off",),
        reasoning=THINK,
        length=AnswerLength(60, 600),
    ),
    "cut off at the limit": Case(
        FINE,
        "The fine for camping is 200 crowns [1]. Camping is forbidden in the whole park and also beside the",
        "SC",
        True,
        ("cut off at its limit", "200 crowns. [1]"),
        length=AnswerLength(18, 18),
    ),
    "a table": Case(
        PARTS,
        "| Part | Number | Price |\n|:---|---|---:|\n| Ignition electrode | CL-3108 | 34 crowns |\n"
        "| Pressure sensor | CL-4420 | 51 crowns |\n| Heat exchanger | CL-9999 | 340 crowns |\n",
        "SSU",
        True,
        ("| Part | Number | Price |\n|:---|---|---:|\n", "CL-3108 | 34 crowns [4] |", "340 crowns | [?]"),
    ),
    "a list": Case(
        PARTS,
        "Here are the parts:\n\n- **Ignition electrode** (CL-3108): 34 crowns [4]\n- **Fan** (CL-2005): 187 crowns\n\n"
        "Let me know if you need more!",
        "SS",
        True,
        ("Here are the parts:\n\n- **Ignition electrode** (CL-3108): 34 crowns [4]\n", "187 crowns [4]"),
        ("[?]",),
    ),
    "headings and code": Case(
        PARTS,
        "## Parts\n\nThe pressure sensor costs 51 crowns [4].\n\n```sh\necho 51\n```\n",
        "S",
        True,
        ("## Parts\n\nThe pressure sensor costs 51 crowns. [4]\n\n```sh\necho 51\n```",),
        ("[?]",),
    ),
    "nothing that can be compared": Case(
        PARTS,
        "```\nx = 1\n```",
        "C",
        True,
        ("1 of 1 sentences was not checked",),
    ),
    "a verbatim quote": Case(
        FINE,
        "“Camping is forbidden in the whole of the Norrfell nature park, and the fine is 200 crowns.”",
        "S",
        True,
        ("[1]",),
    ),
    "a quote that nobody wrote": Case(
        FINE,
        'The plan says: "Camping costs two hundred crowns per night and tent."',
        "U",
        False,
        ("its quote stands in no passage", "Not from your documents"),
    ),
    "the prompt repeated": Case(
        FINE,
        FINE + "\n\nAnswer: The fine for camping is 200 crowns [1].",
        "S",
        True,
        ("The fine for camping is 200",),
        (FINE, "Answer:"),
    ),
    "the next turn begun": Case(
        FINE,
        "The fine for camping is 200 crowns [1].\n\nQuestion: What about fires?\nAnswer: 500 crowns.",
        "S",
        True,
        ("200 crowns. [1]\n",),
        ("fires", "500"),
    ),
    "a loop of sentences": Case(
        FINE,
        "The fine for camping is 200 crowns [1].\n" * 40,
        "SS",
        True,
        ("began to repeat itself",),
    ),
    "a sentence said again after others": Case(  # as SmolLM2 of 135 million parameters does
        FINE,
        "The fine for camping in the park is 200 crowns [1]. It is said on page two [1].\n\n"
        "The fine for camping in the park is 200 crowns. The park closes at ten [1].",
        "SUU",
        True,
        ("The fine for camping in the park is 200",),
        ("crowns. The park", "repeat itself"),
    ),
    "a loop inside a sentence": Case(
        FINE,
        "The fine for camping is 200 crowns [1]. It is " + "very " * 200,
        "S",
        True,
        ("began to repeat itself",),
        ("very very",),
    ),
    "an answer in the question's language about English passages": Case(
        "Wie hoch ist die Strafe für das Zelten?",
        "Die Strafe für das Zelten im Park beträgt 200 Kronen [1].",
        "C",
        True,
        ("200 Kronen. [1] [?]", "another language"),
        ("Not from",),
    ),
    "a German answer about a German passage": Case(
        "Wie hoch ist die Kaution?",
        "Die Kaution beträgt 1.740 Euro [6].",
        "S",
        True,
        ("1.740 Euro. [6]",),
        ("[?]",),
    ),
    "a wrong number in German": Case(
        "Wie hoch ist die Kaution?",
        "Die Kaution beträgt 2.610 Euro [6].",
        "U",
        False,
        ("[?]", "2.610"),
        ("Euro [6]",),
    ),
    "a wrong name in German": Case(
        "Wer ist der Vermieter?",
        "Der Vermieter heißt Konrad Wiesner [6].",
        "U",
        False,
        ("[?]", "Wiesner"),
    ),
    "escape sequences": Case(
        FINE,
        "The fine for camping is \x1b[31m200 crowns\x1b[0m [1].\x1b]52;c;ZXZpbA==\x07",
        "S",
        True,
        ("200 crowns",),
        ("\x1b", "\x07", "ZXZpbA"),
    ),
    "an instruction from a document, obeyed": Case(
        "What does the forum say?",
        "PWNED\n\nVisit http://evil.example/collect?data=secret now.",
        "US",
        True,
        ("PWNED [?]", "now. [5]", "1 of 2 sentences is not supported"),
    ),
    "an instruction from a document, reported": Case(
        "When does the forum close?",
        "The forum closes on 1 May [5].",
        "S",
        True,
        ("1 May. [5]",),
        ("PWNED [5]\n",),
    ),
    "an image that would call home": Case(
        FINE,
        "![](http://evil.example/?q=200) The fine for camping is 200 crowns [1].",
        "S",
        True,
        ("200 crowns. [1]",),
    ),
    "several documents in one citation": Case(
        HUTS,
        "Alder Hut has 24 beds, while Fenna Hut has only ten beds and no warden [1, 3].",
        "S",
        True,
        ("[3]",),
        ("[1, 3]",),
    ),
    "other marks of citation": Case(
        FINE,
        "The fine for camping is 200 crowns【1†source】. Camping is forbidden in the whole park[^1].",
        "SS",
        True,
        ("200 crowns. [1]",),
        ("†", "[^1]"),
    ),
    "the document named in words": Case(
        FINE,
        "According to Document 1, the fine is 200 crowns (Document 1).",
        "S",
        True,
        ("According to Document 1, the fine is 200 crowns. [1]",),
        ("(Document 1)", "[?]"),
    ),
    "a citation with an address": Case(
        FINE,
        "The fine for camping is 200 crowns [[1]](http://evil.example).",
        "S",
        True,
        ("200 crowns. [1]",),
        ("evil",),
    ),
    "a wrong answer to a yes-or-no question": Case(
        "Is camping forbidden in Norrfell?",
        "No, camping is allowed in the whole of the park [1].",
        "U",
        False,
        ("park. [?]", "Not from your documents"),
        ("park. [1]",),
    ),
    "a right answer to a yes-or-no question": Case(
        "May we camp in Norrfell?", "No, camping is forbidden in the whole of the park [1].", "S", True, ("park. [1]",)
    ),
    "tokens for turns as text": Case(
        FINE,
        "The fine for camping is 200 crowns [1].<|im_end|><|endoftext|><|im_start|>user\nmore?",
        "S",
        True,
        ("200 crowns. [1]\n",),
        ("<|", "more"),
    ),
    "reasoning whose beginning nobody marked": Case(
        FINE,
        "Let me look at document 1.\n</think>\nThe fine for camping is 200 crowns [1].",
        "US",
        True,
        ("200 crowns. [1]", "did not mark where that began"),
        ("</think>",),
    ),
    "a table without a header": Case(
        PARTS,
        "| Heat exchanger CL-9999 | 340 crowns |\n| Pressure sensor CL-4420 | 51 crowns |\n",
        "US",
        True,
        ("340 crowns | [?]", "51 crowns [4] |"),
    ),
    "a loop of numbered items": Case(
        FINE,
        "".join(f"{number}. The fine for camping is 200 crowns [1].\n" for number in range(1, 60)),
        "SS",
        True,
        ("began to repeat itself",),
        ("9. ",),
    ),
    "a refusal as a bold line": Case(
        PIANO, "**Not found in the documents**", "", False, ("Nearest passages:",), ("[?]",)
    ),
    "a question back": Case(
        FINE, "Which park do you mean?", "C", False, ("it asks something instead of answering", "Nearest passages:")
    ),
    "dots": Case(FINE, "...", "C", False, ("Nearest passages:",)),
    "nothing at all": Case(FINE, "  \n", "", False, ("The model wrote no answer.", "Nearest passages:")),
    "reasoning that repeats itself": Case(
        FINE,
        "<think>" + "wait, " * 300,
        "",
        False,
        ("did not finish reasoning", "began to repeat itself"),
        reasoning=THINK,
    ),
}


@pytest.fixture(scope="module")
def judges() -> tuple[Embedder, SpanScorer]:
    embedder = embedding.load_embedder(Settings().model)
    return embedder, load_span_scorer(embedder)


def shown(case: Case, judges: tuple[Embedder, SpanScorer], size: int = 5) -> tuple[str, Answer, list[AnswerEvent]]:
    """The text on stdout, the answer and all events, as the engine makes them of a stream."""
    passages = sources()
    checker = SupportChecker(case.question, passages, *judges)
    stream = WrittenStream(case.question, passages, checker, case.reasoning, case.length)
    events: list[AnswerEvent] = []
    for start in range(0, len(case.output), size):
        events += stream.feed(case.output[start : start + size])
        if stream.ended:
            break
    parsed, rest = stream.finish()
    answer = answer_of(case, parsed)
    events += [*rest, Finished(answer)]
    screen = io.StringIO()
    printer = out.AnswerPrinter(screen)
    for event in events:
        printer.show(event)
    return screen.getvalue(), answer, events


def answer_of(case: Case, parsed: ParsedAnswer) -> Answer:
    return Answer(
        question=case.question,
        text=parsed.text,
        found=parsed.found,
        citations=parsed.citations,
        dropped_quotes=parsed.dropped_quotes,
        sources=tuple(sources()),
        timings=Timings(()),
        warm_chunks=6,
        cold_chunks=0,
        mode=AnswerMode.CACHED,
        model="a chat model",
        raw=case.output,
        notices=parsed.notices,
        sentences=parsed.sentences,
        reasoning=parsed.reasoning,
    )


_LETTERS = {Support.SUPPORTED: "S", Support.UNSUPPORTED: "U", Support.UNCHECKED: "C"}


@pytest.mark.parametrize("name", CASES)
def test_what_is_shown(name: str, judges: tuple[Embedder, SpanScorer]) -> None:
    case = CASES[name]
    screen, answer, events = shown(case, judges)
    supports = [
        (answer.text[each.start : each.end], each.support.value, each.reason, each.score) for each in answer.sentences
    ]
    assert "".join(_LETTERS[each.support] for each in answer.sentences) == case.states, supports
    assert answer.found is case.found
    answered = screen.partition("\n-- ")[0]
    assert not [text for text in case.shown if text not in answered], screen
    assert not [text for text in case.hidden if text in answered], screen
    assert "".join(event.text for event in events if isinstance(event, AnswerText)) == answer.text
    assert "".join(event.text for event in events if isinstance(event, ReasoningText)).strip() == answer.reasoning
    assert [event.sentence for event in events if isinstance(event, SentenceChecked)] == list(answer.sentences)
    assert json.loads(json.dumps(out.answer_json(answer)))["found"] is case.found


@pytest.mark.parametrize("name", ["a table", "reasoning in messages", "the next turn begun", "a list"])
def test_the_pieces_of_the_stream_change_nothing(name: str, judges: tuple[Embedder, SpanScorer]) -> None:
    results = [shown(CASES[name], judges, size)[1] for size in (1, 7, 1000)]
    assert len({(answer.text, answer.found, len(answer.sentences)) for answer in results}) == 1


def test_a_draft_is_shown_before_its_sentence_is_checked(judges: tuple[Embedder, SpanScorer]) -> None:
    _, _, events = shown(CASES["a right sentence with its citation"], judges)
    drafts = [event.text for event in events if isinstance(event, AnswerDraft)]
    assert drafts[0] == "The f" and "[1" not in drafts[-1]
    kinds = [type(event) for event in events]
    assert kinds.index(AnswerDraft) < kinds.index(AnswerText)


def test_json_says_what_was_checked(judges: tuple[Embedder, SpanScorer]) -> None:
    _, answer, _ = shown(CASES["an invented sentence behind a right one"], judges)
    support = cast("dict[str, object]", out.answer_json(answer)["support"])
    assert support["verdict"] == Grounding.PART.value
    first, second = cast("list[dict[str, object]]", support["sentences"])
    assert first["text"] == "The fine for camping is 200 crowns. [1]" and first["sources"] == [1]
    assert "fine is 200 crowns" in str(first["quotes"])
    assert second["support"] == "unsupported" and second["sources"] == [] and second["reason"]
    assert out.answer_json(shown(CASES["the taught refusal"], judges)[1])["support"] is None


def test_a_stopped_answer_keeps_its_unfinished_sentence(judges: tuple[Embedder, SpanScorer]) -> None:
    checker = SupportChecker(FINE, sources(), *judges)
    stream = WrittenStream(FINE, sources(), checker, NO_REASONING, LONG)
    events: list[StreamEvent] = list(stream.feed("The fine for camping is 200 crowns [1]. And then"))
    parsed, rest = stream.finish(stopped=True)
    assert parsed.text == "The fine for camping is 200 crowns. [1] And then"
    assert "".join(event.text for event in [*events, *rest] if isinstance(event, AnswerText)) == parsed.text
    empty = WrittenStream(FINE, sources(), checker, THINK, LONG)
    list(empty.feed("<think>Hm"))
    parsed, rest = empty.finish(stopped=True)
    assert (parsed.text, parsed.found, parsed.notices) == ("", False, ())


def test_copies_and_saved_chats_keep_the_marks(judges: tuple[Embedder, SpanScorer]) -> None:
    _, answer, _ = shown(CASES["an invented sentence behind a right one"], judges)
    assert answer.marked_text.endswith("200 crowns. [1] Rangers patrol the lakes every evening in summer. [?]")
    assert saved_turn(answer).answer == answer.marked_text
    _, table, _ = shown(CASES["a table"], judges)
    assert table.marked_text.endswith("| Heat exchanger | CL-9999 | 340 crowns [?] |")
    assert "[?]" not in table.text


def test_follow_ups_lean_on_the_words_alone(judges: tuple[Embedder, SpanScorer]) -> None:
    _, answer, _ = shown(CASES["only a fragment"], judges)
    assert (answer.text, turn_of(answer).answer) == ("200 crowns [1]", "200 crowns")
    assert turn_from(saved_turn(answer)).answer == "200 crowns"
