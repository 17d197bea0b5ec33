"""One run from its prompt to its end: chunks, events, endings, cancelling, starving, failing."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from sessiond.engine.events import Delta, Progress
from sessiond.engine.fake import END
from sessiond.engine.memory import as_tokens
from sessiond.engine.pace import LEAST_CHUNK, Pace, Slowness
from sessiond.engine.staging import Staging
from sessiond.errors import DecodeFailed, EngineError
from tests.engine.cores import (
    HYBRID,
    Desk,
    ended,
    kinds_of,
    prompt,
    run_of,
    text_of,
    tokens_of,
)

# --- prefill


def test_chunks_end_exactly_at_the_captures() -> None:
    desk = Desk(HYBRID, n_batch=16)
    desk.complete(run_of(0, prompt(70), captures=(7, 16, 40, 69)))
    assert desk.context.chunks == [
        (0, start, stop) for start, stop in pairwise([0, 7, 16, 32, 40, 56, 69, 70])
    ]
    assert [len(capture.tokens) for capture in desk.core.drain()] == [7, 16, 40, 69]


def test_only_what_is_not_in_the_cells_is_evaluated() -> None:
    desk = Desk()
    desk.complete(run_of(0, prompt(40), max_tokens=0))
    events = desk.complete(run_of(0, prompt(50), start=40, max_tokens=1))
    assert desk.context.chunks[-1] == (0, 40, 50)
    assert desk.fake.evaluated == 50
    assert ended(events).prefilled == 10


def test_events_come_in_order_and_count_up() -> None:
    desk = Desk(n_batch=16, replies=["abc"])
    events = desk.complete(run_of(0, prompt(50), max_tokens=None))
    assert kinds_of(events) == "PPPDDDE"
    progress = [event for event in events if isinstance(event, Progress)]
    assert [event.processed for event in progress] == [16, 32, 48]
    assert {(event.total, event.cached) for event in progress} == {(50, 0)}


def test_a_run_without_tokens_evaluates_its_prompt() -> None:
    desk = Desk()
    end = ended(desk.complete(run_of(0, prompt(20), max_tokens=0)))
    assert (end.reason, end.tokens, end.text, end.prefilled) == ("length", (), "", 20)
    assert desk.core.sequences[0].tokens.tolist() == prompt(20).tolist()


@pytest.mark.parametrize("held", [prompt(10, start=1), prompt(20)])
def test_a_run_that_does_not_fit_its_cells_is_refused(held: np.ndarray) -> None:
    """Other tokens than the prompt's, or all of it: the last one's logits are gone."""
    desk = Desk()
    desk.complete(run_of(0, held, max_tokens=0))
    with pytest.raises(EngineError):
        desk.start(run_of(0, prompt(20), start=len(held)))
    assert not desk.core.busy
    assert desk.core.sequences[0].tokens.tolist() == held.tolist()


def test_one_long_prompt_does_not_stop_those_that_generate() -> None:
    desk = Desk(n_batch=16, replies=["x" * 30])
    _, first = desk.start(run_of(0, prompt(4), max_tokens=30))
    desk.core.step()
    _, second = desk.start(run_of(1, prompt(160), max_tokens=0))
    for _ in range(9):
        desk.core.step()
    assert len(tokens_of(first)) == 10
    assert kinds_of(second) == "P" * 9


# --- endings


def test_max_tokens_ends_a_run() -> None:
    desk = Desk(replies=["abcdefgh"])
    events = desk.complete(run_of(0, prompt(5), max_tokens=3))
    end = ended(events)
    assert (end.reason, end.text, end.tokens) == ("length", "abc", tuple(b"abc"))
    assert text_of(events) == "abc"
    assert tokens_of(events) == end.tokens
    assert len(desk.core.sequences[0]) == 7, "the last token is not in the cells"


def test_the_limit_of_the_line_ends_a_run() -> None:
    desk = Desk(replies=["abcdefgh"])
    end = ended(desk.complete(run_of(0, prompt(5), max_tokens=None, limit=9)))
    assert (end.reason, end.text) == ("length", "abcd")


def test_an_end_of_generation_token_is_not_part_of_the_reply() -> None:
    desk = Desk(replies=["ab"])
    events = desk.complete(run_of(0, prompt(5), max_tokens=None))
    end = ended(events)
    assert (end.reason, end.tokens, end.stopped_by) == ("stop", tuple(b"ab"), None)
    assert END not in tokens_of(events)
    assert desk.core.sequences[0].tokens.tolist() == [*prompt(5).tolist(), *b"ab"]


def test_an_empty_reply_ends_at_once() -> None:
    desk = Desk(replies=[""])
    events = desk.complete(run_of(0, prompt(5), max_tokens=None))
    assert kinds_of(events) == "E"
    assert ended(events).reason == "stop"


def test_end_of_generation_can_be_ignored() -> None:
    desk = Desk(replies=["ab"])
    end = ended(desk.complete(run_of(0, prompt(5), max_tokens=4, ignore_eos=True)))
    assert end.tokens == (*b"ab", END, END)
    assert end.reason == "length"


def test_a_stop_string_is_hidden_from_the_text_and_kept_in_the_tokens() -> None:
    desk = Desk(replies=["say STOP now"])
    events = desk.complete(run_of(0, prompt(5), max_tokens=None, stop=("STOP",)))
    end = ended(events)
    assert (end.reason, end.stopped_by, end.text) == ("stop", "STOP", "say ")
    assert text_of(events) == "say "
    assert end.tokens == tokens_of(events) == tuple(b"say STOP")


def test_text_held_back_for_a_stop_string_comes_with_the_end() -> None:
    desk = Desk(replies=["say ST"])
    events = desk.complete(run_of(0, prompt(5), max_tokens=None, stop=("STOP",)))
    assert text_of(events) == ended(events).text == "say ST"
    assert tokens_of(events) == tuple(b"say ST")


def test_the_time_of_every_token_is_counted() -> None:
    desk = Desk(replies=["ab"])
    one = ended(desk.complete(run_of(0, prompt(5), max_tokens=1)))
    two = ended(desk.complete(run_of(1, prompt(5), max_tokens=2)))
    assert (one.decode_ms, one.prefill_ms > 0) == (0.0, True)
    assert two.decode_ms > 0


# --- log probabilities


def test_log_probabilities_are_those_of_the_model() -> None:
    desk = Desk()
    events = desk.complete(run_of(0, prompt(9), max_tokens=4, ignore_eos=True, logprobs=5))
    control = Desk()
    control.fake.decode(prompt(9), 0, 0, logits=True)
    deltas = [event for event in events if isinstance(event, Delta) and event.tokens]
    assert len(deltas) == 4
    for position, delta in enumerate(deltas, start=9):
        (detail,) = delta.logprobs
        logits = control.fake.logits(-1).astype(np.float64)
        expected = logits - np.log(np.exp(logits).sum())
        assert detail.chosen.token == delta.tokens[0] == int(logits.argmax())
        assert detail.chosen.logprob == pytest.approx(float(expected.max()), abs=1e-5)
        best = np.argsort(-expected, kind="stable")[:5]
        assert [top.token for top in detail.top] == best.tolist()
        assert [top.logprob for top in detail.top] == pytest.approx(expected[best], abs=1e-5)
        assert sum(np.exp(top.logprob) for top in detail.top) <= 1 + 1e-6
        control.fake.decode(as_tokens(delta.tokens), position, 0, logits=True)


def test_a_chosen_token_has_its_own_probability_not_the_best() -> None:
    desk = Desk(replies=["\x00"])
    events = desk.complete(run_of(0, prompt(9), max_tokens=1, logprobs=0))
    (detail,) = events[0].logprobs  # type: ignore[union-attr]
    control = Desk()
    control.fake.decode(prompt(9), 0, 0, logits=True)
    logits = control.fake.logits(-1).astype(np.float64)
    assert detail.top == ()
    assert detail.chosen.raw == b"\x00"
    expected = logits[0] - np.log(np.exp(logits).sum())
    assert detail.chosen.logprob == pytest.approx(expected, abs=1e-5)


# --- cancelling


def test_a_run_cancelled_before_it_began_evaluates_nothing() -> None:
    desk = Desk()
    active, events = desk.start(run_of(0, prompt(100)))
    active.cancelled = True
    desk.finish()
    assert desk.fake.evaluated == 0
    assert kinds_of(events) == "E"
    assert (ended(events).reason, ended(events).prefilled) == ("cancelled", 0)


def test_a_run_cancelled_in_its_prefill_stops_at_the_next_chunk() -> None:
    desk = Desk(HYBRID, n_batch=16)
    active, events = desk.start(run_of(0, prompt(100), capture_end=True))
    desk.core.step()
    desk.core.step()
    active.cancelled = True
    desk.finish()
    assert desk.fake.evaluated == 32
    assert (ended(events).reason, ended(events).prefilled) == ("cancelled", 32)
    assert [len(capture.tokens) for capture in desk.core.drain()] == [32]
    rest = desk.complete(run_of(0, prompt(100), start=32, max_tokens=1))
    assert ended(rest).prefilled == 68, "what was evaluated is kept"


def test_a_run_cancelled_in_its_reply_keeps_what_it_said() -> None:
    desk = Desk(replies=["abcdefgh"])
    active, events = desk.start(run_of(0, prompt(10), max_tokens=None))
    for _ in range(3):
        desk.core.step()
    active.cancelled = True
    desk.finish()
    end = ended(events)
    assert (end.reason, end.text, end.tokens) == ("cancelled", "abc", tuple(b"abc"))
    assert desk.fake.evaluated == 12


def test_cancelling_one_run_leaves_the_other_alone() -> None:
    desk = Desk(replies=["abcdef", "ghijkl"])
    first, gone = desk.start(run_of(0, prompt(10), max_tokens=None))
    _, stays = desk.start(run_of(1, prompt(10, start=3), max_tokens=None))
    for _ in range(3):
        desk.core.step()
    first.cancelled = True
    desk.finish()
    assert ended(gone).reason == "cancelled"
    assert ended(stays).text == "ghijkl"


# --- a full pool


def test_a_starved_run_goes_on_where_it_stopped() -> None:
    desk = Desk(n_ctx=64, n_batch=16)
    desk.complete(run_of(1, prompt(40, start=5), max_tokens=0))
    run, events = desk.start(run_of(0, prompt(40), max_tokens=3, ignore_eos=True))
    desk.finish()
    assert kinds_of(events) == "PS"
    desk.core.drop(1)
    desk.core.go_on(run)
    desk.finish()
    free = Desk(n_ctx=64, n_batch=16)
    expected = free.complete(run_of(0, prompt(40), max_tokens=3, ignore_eos=True))
    assert ended(events).tokens == ended(expected).tokens
    assert desk.fake.evaluated == 40 + 42


def test_a_run_starved_in_its_reply_goes_on_with_the_same_tokens() -> None:
    desk = Desk(n_ctx=32)
    desk.complete(run_of(1, prompt(10, start=5), max_tokens=0))
    run, events = desk.start(run_of(0, prompt(20), max_tokens=8, ignore_eos=True))
    desk.finish()
    assert kinds_of(events) == "P" + "DDD" + "S"
    desk.core.drop(1)
    desk.core.go_on(run)
    desk.finish()
    expected = Desk().complete(run_of(0, prompt(20), max_tokens=8, ignore_eos=True))
    assert ended(events).tokens == ended(expected).tokens


def test_a_starved_run_can_be_finished_with_what_it_has() -> None:
    desk = Desk(n_ctx=32, replies=["abcdefgh"])
    desk.complete(run_of(1, prompt(10, start=5), max_tokens=0))
    run, events = desk.start(run_of(0, prompt(20), max_tokens=8))
    desk.finish()
    desk.core.finish(run, "length")
    assert (ended(events).reason, ended(events).text) == ("length", "abc")
    assert not desk.core.busy


def test_a_starved_run_can_be_cancelled() -> None:
    desk = Desk(n_ctx=32)
    active, events = desk.start(run_of(0, prompt(40)))
    desk.finish()
    assert kinds_of(events) == "PPS"
    active.cancelled = True
    desk.finish()
    assert ended(events).reason == "cancelled"


# --- a failed decode


def test_a_failed_decode_fails_every_run_once_and_forgets_every_line() -> None:
    desk = Desk(HYBRID, n_ctx=64, n_batch=16)
    desk.complete(run_of(2, prompt(20), max_tokens=0, capture_end=True))
    _, first = desk.start(run_of(0, prompt(4, start=9), max_tokens=30))
    desk.core.step()
    _, starved = desk.start(run_of(1, prompt(60, start=3)))
    while kinds_of(starved)[-1:] != "S":
        desk.core.step()
    desk.context.failures.append(DecodeFailed("llama_decode returned -3."))
    with pytest.raises(DecodeFailed) as failure:
        desk.core.step()
    failed = desk.core.fail_all()
    for active in failed:
        active.fail(failure.value)
    assert len(failed) == 2
    assert kinds_of(first)[-1] == kinds_of(starved)[-1] == "!"
    assert (kinds_of(first) + kinds_of(starved)).count("!") == 2
    assert not desk.core.busy
    assert [len(view.tokens) for view in desk.core.views()] == [0, 0, 0]
    assert [desk.fake.pos_max(seq) for seq in range(desk.fake.n_seq_max)] == [-1] * 7
    assert desk.core.drain() == []


def test_the_next_run_after_a_failed_decode_works() -> None:
    desk = Desk(HYBRID)
    desk.complete(run_of(0, prompt(30), max_tokens=0, captures=(10, 20), capture_end=True))
    desk.context.failures.append(DecodeFailed("llama_decode returned 2."))
    desk.start(run_of(1, prompt(30)))
    with pytest.raises(DecodeFailed):
        desk.core.step()
    desk.core.fail_all()
    run = run_of(0, prompt(30), ignore_eos=True, captures=(10, 20), capture_end=True)
    again = desk.complete(run)
    expected = Desk(HYBRID).complete(run)
    assert ended(again).tokens == ended(expected).tokens
    assert ended(again).prefilled == 30
    assert len(desk.core.drain()) == 3


# --- several runs


@pytest.mark.parametrize("memory", [None, HYBRID])
def test_runs_at_once_say_what_they_say_one_after_the_other(memory: object) -> None:
    def runs() -> list[object]:
        return [
            run_of(seq, prompt(30 + 7 * seq, start=seq), max_tokens=12, ignore_eos=True)
            for seq in range(3)
        ]

    options = {"memory": memory} if memory else {}
    together, apart = Desk(**options), Desk(**options)  # type: ignore[arg-type]
    started = [together.start(run)[1] for run in runs()]  # type: ignore[arg-type]
    together.finish()
    alone = [apart.complete(run) for run in runs()]  # type: ignore[arg-type]
    assert [ended(events).tokens for events in started] == [
        ended(events).tokens for events in alone
    ]
    assert max(len(batch) for batch in together.context.batches) == 3


def test_staging_buffers_that_are_emptied_between_steps_last_for_any_number_of_captures() -> None:
    pageable = []
    for emptied in (True, False):
        core = Desk(HYBRID).core
        core.staging = Staging.open(1 << 12, 1 << 12)
        core.start(run_of(0, prompt(640), captures=tuple(range(64, 640, 64))), lambda event: None)
        taken = []
        while core.busy:
            core.step()
            if emptied:
                for capture in core.take_drained():
                    taken.append(len(capture.tokens))
                    capture.release()
        assert core.captures.direct == 7
        assert taken == ([64, 128, 192, 256, 320, 384, 448] if emptied else [])
        pageable.append(core.captures.pageable)
    assert pageable == [0, 5]


# --- beside one another


def test_two_prompts_are_read_in_turn() -> None:
    desk = Desk(n_batch=16)
    for seq in (0, 1):
        desk.start(run_of(seq, prompt(48, start=seq), max_tokens=0))
    desk.finish()
    assert [seq for seq, _, _ in desk.context.chunks] == [0, 1, 0, 1, 0, 1]


def test_beside_a_running_stream_a_chunk_fits_the_step_budget() -> None:
    desk = Desk(n_batch=256)
    desk.start(run_of(0, prompt(8), max_tokens=40, ignore_eos=True))
    desk.core.step()
    desk.start(run_of(1, prompt(200, start=3), max_tokens=0))
    desk.core.pace, desk.core._budget_ms = Pace(256), 2e5
    desk.core.pace.measured(256, 1e6, Slowness())
    desk.core.step()
    assert desk.context.chunks[-1] == (1, 0, 32)


def test_beside_a_running_stream_no_chunk_is_smaller_than_the_least() -> None:
    desk = Desk(n_batch=256)
    desk.start(run_of(0, prompt(8), max_tokens=40, ignore_eos=True))
    desk.core.step()
    desk.start(run_of(1, prompt(200, start=3), max_tokens=0))
    desk.core.pace = Pace(256)
    desk.core.pace.measured(256, 1e9, Slowness())
    desk.core.step()
    assert desk.context.chunks[-1] == (1, 0, LEAST_CHUNK)


@pytest.mark.parametrize(
    ("beside_ms", "most"), [(None, 256), (0.0, 64), (60.0, 32), (90.0, 32), (1e9, 32)]
)
def test_what_the_replies_own_tokens_take_is_left_out_but_for_half(
    beside_ms: float | None, most: int
) -> None:
    desk = Desk(n_batch=256)
    desk.core.pace.measured(256, 512.0, Slowness())
    assert desk.core._chunk(Slowness(), beside_ms) == most


def test_alone_a_prompt_is_read_in_whole_batches() -> None:
    desk = Desk(n_batch=64)
    desk.core.pace.measured(64, 1e6, Slowness())
    desk.complete(run_of(0, prompt(128), max_tokens=0))
    assert desk.context.chunks == [(0, 0, 64), (0, 64, 128)]


def test_only_chunks_that_are_measured_are_waited_for() -> None:
    """A device still computes when decode returns; alone, it is left to do so but at the end."""
    desk = Desk(n_batch=16)
    desk.complete(run_of(0, prompt(48), max_tokens=0))
    assert desk.context.order == ["chunk", "chunk", "wait", "chunk", "wait"]
    desk.start(run_of(1, prompt(8), max_tokens=40, ignore_eos=True))
    desk.core.step()
    desk.start(run_of(2, prompt(48, start=3), max_tokens=0))
    desk.context.order.clear()
    desk.core.step()
    assert desk.context.order == ["rows", "wait", "chunk", "wait"]


def test_only_the_run_that_began_last_starves_where_the_cells_do_not_suffice() -> None:
    desk = Desk(n_ctx=64, n_batch=64)
    _, first = desk.start(run_of(0, prompt(30), max_tokens=20, ignore_eos=True))
    _, second = desk.start(run_of(1, prompt(30, start=9), max_tokens=20, ignore_eos=True))
    desk.finish()
    assert [kinds_of(events).count("S") for events in (first, second)] == [1, 1]
    assert kinds_of(first).count("D") > kinds_of(second).count("D")


def test_a_suspended_run_goes_on_in_another_sequence_with_the_same_tokens() -> None:
    desk = Desk(HYBRID)
    run, events = desk.start(run_of(0, prompt(20), max_tokens=12, ignore_eos=True))
    for _ in range(6):
        desk.core.step()
    assert desk.core.suspend(run)
    assert not desk.core.suspend(run)
    known = run.known()
    desk.core.drop(0)
    desk.core.resume(run, 2)
    desk.finish()
    expected = Desk(HYBRID).complete(run_of(0, prompt(20), max_tokens=12, ignore_eos=True))
    assert ended(events).tokens == ended(expected).tokens
    assert len(known) > 20
    assert desk.core.views()[0].tokens.size == 0


def test_a_run_is_not_resumed_on_cells_that_are_not_its_own() -> None:
    desk = Desk()
    run, _ = desk.start(run_of(0, prompt(20), max_tokens=12, ignore_eos=True))
    desk.core.step()
    desk.core.suspend(run)
    desk.complete(run_of(1, prompt(8, start=7), max_tokens=0))
    with pytest.raises(EngineError):
        desk.core.resume(run, 1)
    assert not desk.core.busy
