"""One output sequence: its text, its end, its log-probabilities; the same however its tokens come."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.api.answer import Answer
from router.api.choice import Piece
from router.api.prepared import ModelLimits, prepare_completion
from router.api.schema import CompletionRequest
from router.text.tokenizer import ModelText
from tests.router.api.worker import answered, deltas
from workers.errors import EngineFault, WorkerLost
from workers.wire import Delta

LIMITS = ModelLimits(max_context_tokens=8192, vocab_size=49152)
EOS = 2


def open_answer(text: ModelText, **fields: Any) -> Answer:
    fields = {"prompt": ["Once"]} | fields
    return Answer(prepare_completion(CompletionRequest(model="m", **fields), text, LIMITS), text)


def run(
    text: ModelText, token_ids: list[int], group: int = 1, finish: str = "length", **fields: Any
) -> Piece:
    """All pieces of the one choice put together."""
    answer = open_answer(text, **fields)
    sent = deltas(token_ids, group=group, finish=finish, with_logprobs="logprobs" in fields)
    pieces = [piece for _, piece in answered(answer, sent)]
    assert answer.is_finished
    logprobs = [entry for piece in pieces for entry in piece.logprobs or []]
    return Piece(
        "".join(piece.text for piece in pieces),
        logprobs if "logprobs" in fields else None,
        next(piece.finish for piece in pieces if piece.finish),
        any(piece.must_cancel for piece in pieces),
    )


def test_the_text_is_that_of_the_tokens_without_eos(smollm2: ModelText) -> None:
    tokens = smollm2.encode(" upon a time, 日本語 🧬")
    assert run(smollm2, [*tokens, EOS], finish="stop") == Piece(" upon a time, 日本語 🧬", None, "stop")
    assert run(smollm2, tokens) == Piece(" upon a time, 日本語 🧬", None, "length")
    shown = run(smollm2, [*tokens, EOS], finish="stop", skip_special_tokens=False)
    assert shown.text == " upon a time, 日本語 🧬"


def test_a_stop_id_is_not_shown_but_an_ignored_eos_is_text_if_asked_for(smollm2: ModelText) -> None:
    tokens = smollm2.encode(" a b c")
    assert run(smollm2, tokens, finish="stop", stop_token_ids=[tokens[-1]]).text == " a b"
    ignored = run(smollm2, [*tokens, EOS, *tokens], ignore_eos=True, skip_special_tokens=False)
    assert ignored.text == " a b c<|im_end|> a b c"


def test_a_character_cut_off_by_the_limit_ends_in_one_replacement(smollm2: ModelText) -> None:
    tokens = smollm2.encode("🧬")
    assert len(tokens) > 1
    assert run(smollm2, tokens[:-1]).text == "\ufffd"


def test_a_stop_string_ends_the_sequence_and_the_worker_must_be_told(smollm2: ModelText) -> None:
    tokens = smollm2.encode(" one two three four five")
    answer = open_answer(smollm2, stop=["two th"])
    pieces = [piece for _, piece in answered(answer, deltas(tokens))]
    assert [piece.text for piece in pieces] == [" one", " ", "", "", ""]
    assert [piece.finish for piece in pieces] == [None, None, "stop", None, None]
    assert [piece.must_cancel for piece in pieces] == [False, False, True, False, False]
    assert answer.usage.completion_tokens == 3
    assert run(smollm2, tokens[:3], stop=["two th"]) == Piece(" one ", None, "stop", False)


def test_the_stop_string_can_be_shown_and_waits_for_the_least_number_of_tokens(smollm2: ModelText) -> None:
    tokens = smollm2.encode(" one two one two")
    assert run(smollm2, tokens, stop=["two"], include_stop_str_in_output=True).text == " one two"
    assert run(smollm2, tokens, stop=["two"], min_tokens=2).text == " one two one "


def test_held_back_text_is_shown_when_the_sequence_ends(smollm2: ModelText) -> None:
    tokens = smollm2.encode(" one two")
    assert run(smollm2, tokens, stop=["two three"]) == Piece(" one two", None, "length")


@given(data=st.data())
def test_text_and_log_probabilities_do_not_depend_on_how_tokens_are_grouped(
    smollm2: ModelText, data: st.DataObject
) -> None:
    single_bytes, words = st.integers(17, 272), st.sampled_from(smollm2.encode(" a b ab ba aab é 日 🧬"))
    tokens = data.draw(st.lists(st.one_of(words, words, single_bytes), min_size=1, max_size=12))
    fields: dict[str, Any] = {
        "stop": data.draw(st.lists(st.text("ab é", min_size=1, max_size=4), max_size=3))
    }
    if data.draw(st.booleans()):
        fields["logprobs"] = 1
    fields["min_tokens"] = data.draw(st.integers(0, 3))
    whole = run(smollm2, tokens, group=len(tokens), **fields)
    for group in (1, 2, 3):
        piece = run(smollm2, tokens, group=group, **fields)
        assert (piece.text, piece.logprobs, piece.finish) == (whole.text, whole.logprobs, whole.finish)
    if whole.logprobs is not None:
        assert [entry.token_id for entry in whole.logprobs] == tokens[: len(whole.logprobs)]
        assert [entry.offset for entry in whole.logprobs] == sorted(entry.offset for entry in whole.logprobs)


def test_entries_come_with_their_text_and_those_behind_the_cut_do_not(smollm2: ModelText) -> None:
    tokens = smollm2.encode(" one two three four")
    answer = open_answer(smollm2, stop=["two x", "three"], logprobs=1)
    pieces = [piece for _, piece in answered(answer, deltas(tokens, with_logprobs=True))]
    shown = [[entry.token_id for entry in piece.logprobs or []] for piece in pieces]
    assert [piece.text for piece in pieces] == [" one", " ", "two ", ""]
    assert shown == [[tokens[0]], [], [tokens[1], tokens[2]], []]  # " three" is shown by its space


def test_an_entry_waits_for_the_rest_of_its_character(smollm2: ModelText) -> None:
    tokens = smollm2.encode("🧬")
    answer = open_answer(smollm2, logprobs=0)
    pieces = [piece for _, piece in answered(answer, deltas(tokens, with_logprobs=True))]
    assert [len(piece.logprobs or []) for piece in pieces] == [0] * (len(tokens) - 1) + [len(tokens)]


def test_an_error_or_a_cancel_of_the_worker_is_raised_once(smollm2: ModelText) -> None:
    for finish, error in (("error", EngineFault), ("cancelled", WorkerLost)):
        answer = open_answer(smollm2)
        answer.feed(0, Delta("r", 0, smollm2.encode(" a")))
        with pytest.raises(error):
            answer.feed(0, Delta("r", 0, [], finish, error="the engine failed"))
        assert answer.feed(0, Delta("r", 0, [], finish))[1] == Piece()


def test_choices_of_several_prompts_are_indexed_in_order(smollm2: ModelText) -> None:
    answer = open_answer(smollm2, prompt=["a", "b"], n=2)
    tokens = smollm2.encode(" x")
    indices = [answer.feed(p, deltas(tokens, index=i)[0])[0] for p in (0, 1) for i in (0, 1)]
    assert indices == [0, 1, 2, 3]
    assert answer.is_finished


def test_usage_counts_each_prompt_once_and_all_that_was_generated(smollm2: ModelText) -> None:
    answer = open_answer(smollm2, prompt=[[5] * 32, [6] * 32], n=2)
    for prompt in (0, 1):
        for index in (0, 1):
            sent = deltas([7, 8, EOS], index=index, finish="stop")
            sent[0].num_cached_tokens = 31 if index else 16
            answered(answer, sent, prompt)
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (64, 12, 76)
    assert usage.prompt_tokens_details.cached_tokens == 32


def test_echo_puts_the_prompt_first_with_its_log_probabilities(smollm2: ModelText) -> None:
    prompt, tokens = smollm2.encode("Once upon"), smollm2.encode(" a time")
    answer = open_answer(smollm2, prompt=["Once upon"], echo=True, logprobs=1, n=2)
    for index in (0, 1):
        sent = deltas(tokens, index=index, with_logprobs=True, prompt=None if index else prompt)
        pieces = [piece for _, piece in answered(answer, sent)]
        assert "".join(piece.text for piece in pieces) == "Once upon a time"
        entries = [entry for piece in pieces for entry in piece.logprobs or []]
        assert [entry.token_id for entry in entries] == prompt + tokens
        assert [entry.offset for entry in entries] == [0, 4, 9, 11]
        assert entries[0].logprob is None


def test_a_bos_that_the_server_added_takes_no_room_in_the_echo(llama: ModelText) -> None:
    limits = ModelLimits(64, llama.card.vocab_size)
    request = CompletionRequest(model="m", prompt=["hello"], echo=True, logprobs=0)
    prepared = prepare_completion(request, llama, limits)
    answer = Answer(prepared, llama)
    sent = deltas(llama.encode("world")[1:], with_logprobs=True, prompt=prepared.prompts[0].token_ids)
    (_, piece), *_ = answered(answer, sent)
    assert piece.text == "hello world"
    assert [entry.offset for entry in piece.logprobs or []] == [0, 0, 5]


def test_scoring_shows_the_prompt_and_generates_nothing(smollm2: ModelText) -> None:
    prompt = smollm2.encode("Once upon")
    answer = open_answer(smollm2, prompt=["Once upon"], echo=True, logprobs=1, max_tokens=0)
    _, piece = answer.feed(0, deltas([7], with_logprobs=True, prompt=prompt)[0])
    assert (piece.text, piece.finish, len(piece.logprobs or [])) == ("Once upon", "length", len(prompt))
    assert answer.usage.completion_tokens == 0


def test_missing_log_probabilities_of_the_prompt_are_a_fault(smollm2: ModelText) -> None:
    answer = open_answer(smollm2, echo=True, logprobs=1)
    with pytest.raises(EngineFault, match="prompt"):
        answer.feed(0, Delta("r", 0, [7]))
