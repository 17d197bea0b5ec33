"""A front that stays: what is volatile in it costs nothing, and the model is told of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from sessiond.errors import InvalidRequest
from sessiond.sessions.explanation import ContextEditRejected
from sessiond.sessions.news import HEADING, NOTHING, WHOLE, News
from sessiond.sessions.rules import Rules
from sessiond.sessions.turn import SessionChange
from sessiond.sessions.volatility import TIMEOUT_S, Volatility
from tests.rig import Daemon, Reply, Rig
from tests.sessions.families import spelled
from tests.sessions.kinds import FRONT, KINDS, Messages, chat, prompt_of, rig_of
from tests.sessions.talk import Between, interrupted

each_kind = pytest.mark.parametrize("kind", KINDS)
contrasts = pytest.mark.parametrize("kind", ["attention", "hybrid+swa"])
ALL = ("clock", "date", "id")
TOLD = f"\n\n{HEADING}\n"


def front(minute: int, state: str = "off") -> str:
    states = f"- names: Lamp\n  state: {state}\n- names: Fan\n  state: off"
    return f"{FRONT}\nIt is 10:{minute:02}.\n{states}"


def clock(minute: int) -> str:
    return f"{TOLD}It is 10:{minute:02}."


def pinned(kind: str, directory: Path, *patterns: str) -> Rig:
    rig = rig_of(kind, directory)
    rig.rules = Rules(pinned_front=patterns or ("clock",))
    return rig


def standing(reply: Reply) -> int:
    report = reply.report
    unevaluated = report.finish_reason == "length"
    return report.prompt_tokens + report.completion_tokens - unevaluated


def with_front(messages: Messages, text: str) -> Messages:
    return [{"role": "system", "content": text}, *messages[1:]]


async def prompt_text(daemon: Daemon, session: str, reply: Reply) -> str:
    """What the model read."""
    tree = await daemon.lifecycle._register.tree(session)
    path = tree.path_tokens(reply.report.turn)
    return spelled(path[: reply.report.prompt_tokens])


def new_text(told: str, question: str) -> str:
    return f"<|im_end|>\n<|im_start|>user\n{question}{told}<|im_end|>\n<|im_start|>assistant\n"


@each_kind
@pytest.mark.parametrize("between", ["nothing", "stop", "kill"])
async def test_a_clock_in_every_turn_costs_its_line(
    state_dir: Path, kind: str, between: Between
) -> None:
    rig = pinned(kind, state_dir)
    daemon = Daemon(rig)
    await daemon.start()
    messages, last = chat(front=front(0)), None
    for minute in range(4):
        if minute == 2:
            daemon = await interrupted(rig, daemon, between, "house")
        asked = [*with_front(messages, front(minute)), {"role": "user", "content": "And?"}]
        reply = await daemon.say("house", asked)
        if last is not None:
            told = new_text(clock(minute), "And?")
            assert reply.report.cached_tokens == standing(last)
            assert reply.report.miss is None
            text = await prompt_text(daemon, "house", reply)
            assert text.endswith(told)
            assert reply.report.prefilled_tokens <= len(told)
            assert text.startswith(f"<|im_start|>system\n{front(0)}<|im_end|>")
        last, messages = reply, [*asked, {"role": "assistant", "content": reply.text}]
    text = await prompt_text(daemon, "house", reply)
    assert [text.count(f"It is 10:0{minute}.") for minute in range(5)] == [1, 1, 1, 1, 0]
    await daemon.kill()


@each_kind
@pytest.mark.parametrize("restart", [False, True])
async def test_a_new_conversation_for_every_utterance_shares_the_first_front(
    state_dir: Path, kind: str, restart: bool
) -> None:
    """What shares no front with another session begins behind the front of the first."""
    rig = pinned(kind, state_dir)
    daemon = Daemon(rig)
    await daemon.start()
    await daemon.say("utterance-0", chat("Lamp on?", front=front(0)), named=False)
    for minute in range(1, 4):
        if restart:
            await daemon.stop()
            daemon = Daemon(rig)
            await daemon.start()
        name = f"utterance-{minute}"
        reply = await daemon.say(name, chat("Fan off?", front=front(minute)), named=False)
        text = await prompt_text(daemon, name, reply)
        assert text.startswith(f"<|im_start|>system\n{front(0)}<|im_end|>")
        said = f"Fan off?{clock(minute)}<|im_end|>\n<|im_start|>assistant\n"
        assert text.endswith(said)
        header = len("<|im_start|>user\n")
        assert reply.report.prefilled_tokens <= len(said) + header
    await daemon.kill()


@contrasts
async def test_clients_that_name_no_session_find_theirs_again(state_dir: Path, kind: str) -> None:
    async with pinned(kind, state_dir).daemon() as daemon:
        first = await daemon.say(None, chat("One?", front=front(0)))
        messages = chat("One?", first.text, "Two?", front=front(1))
        reply = await daemon.say(None, messages)
        assert reply.report.session == first.report.session
        assert reply.report.cached_tokens == standing(first)


@contrasts
async def test_pinning_can_be_turned_on_for_a_session_with_turns(
    state_dir: Path, kind: str
) -> None:
    async with rig_of(kind, state_dir).daemon() as daemon:
        first = await daemon.say("house", chat("One?", front=front(0)))
        messages = chat("One?", first.text, "Two?", front=front(1))
        with pytest.raises(ContextEditRejected) as refused:
            await daemon.say("house", messages)
        assert refused.value.explanation.cause == "clock"
        await daemon.lifecycle.update("house", SessionChange(pinned_front=("clock",)))
        reply = await daemon.say("house", messages)
        assert reply.report.cached_tokens == standing(first)
        assert (await prompt_text(daemon, "house", reply)).endswith(new_text(clock(1), "Two?"))
        await daemon.lifecycle.update("house", SessionChange(pinned_front=()))
        with pytest.raises(ContextEditRejected):
            await daemon.say("house", chat("One?", first.text, "Three?", front=front(2)))


async def test_pinning_is_off_unless_asked_for(state_dir: Path) -> None:
    async with rig_of("attention", state_dir).daemon() as daemon:
        first = await daemon.say("house", chat("One?", front=front(0)), named=False)
        again = chat("One?", first.text, "Two?", front=front(1))
        reply = await daemon.say("house", again, named=False)
        assert reply.report.prefilled_tokens > len(front(0)) - len(FRONT)
        text = await prompt_text(daemon, "house", reply)
        assert TOLD not in text
        assert text.startswith(f"<|im_start|>system\n{front(1)}<|im_end|>")


async def test_the_configuration_holds_unless_the_session_says_otherwise(state_dir: Path) -> None:
    async with pinned("attention", state_dir).daemon() as daemon:
        await daemon.lifecycle.create("plain", SessionChange(pinned_front=()))
        first = await daemon.say("plain", chat("One?", front=front(0)))
        again = chat("One?", first.text, "Two?", front=front(1))
        with pytest.raises(ContextEditRejected):
            await daemon.say("plain", again)
        await daemon.lifecycle.update("plain", SessionChange(pinned_front=("default",)))
        assert (await daemon.say("plain", again)).report.cached_tokens == standing(first)


async def test_what_is_the_same_again_is_not_told(state_dir: Path) -> None:
    async with pinned("attention", state_dir).daemon() as daemon:
        first = await daemon.say("house", chat("One?", front=front(0)))
        same = chat("One?", first.text, "Two?", front=front(0))
        reply = await daemon.say("house", same)
        assert (await prompt_text(daemon, "house", reply)).endswith(new_text("", "Two?"))
        assert (await daemon.say("house", same)).report.prefilled_tokens == 1


async def test_a_retry_a_minute_later_is_told_the_new_time(state_dir: Path) -> None:
    async with pinned("hybrid", state_dir).daemon() as daemon:
        await daemon.say("house", chat("One?", front=front(0)))
        reply = await daemon.say("house", chat("One?", front=front(1)))
        assert (await prompt_text(daemon, "house", reply)).count("It is 10:01.") == 1
        assert reply.report.prefilled_tokens <= len("One?" + clock(1)) + 40


@contrasts
async def test_a_tool_result_is_not_mixed_with_news(state_dir: Path, kind: str) -> None:
    """They are told with the next user message."""
    rig = pinned(kind, state_dir)
    async with rig.daemon() as daemon:
        first = await daemon.say("house", chat("One?", front=front(0)))
        result = {"role": "tool", "tool_call_id": "1", "content": "on"}
        messages = [*chat("One?", first.text, front=front(1)), result]
        reply = await daemon.say("house", messages)
        assert reply.report.cached_tokens == standing(first)
        assert "It is 10:01" not in await prompt_text(daemon, "house", reply)
        said = [{"role": "assistant", "content": reply.text}, {"role": "user", "content": "So?"}]
        last = await daemon.say("house", [*with_front(messages, front(2)), *said])
        assert last.report.cached_tokens == standing(reply)
        assert (await prompt_text(daemon, "house", last)).count("It is 10:02.") == 1


@contrasts
async def test_a_real_change_is_still_refused(state_dir: Path, kind: str) -> None:
    async with pinned(kind, state_dir).daemon() as daemon:
        first = await daemon.say("house", chat("One?", front=front(0)))
        evaluated = daemon.evaluated
        for changed in (
            front(1, state="on"),
            front(1) + " Be rude.",
            front(1).replace("It is", ""),
        ):
            with pytest.raises(ContextEditRejected) as refused:
                await daemon.say("house", chat("One?", first.text, "Two?", front=changed))
            assert refused.value.param == "messages[0].content"
        assert daemon.evaluated == evaluated
        assert len(await daemon.lifecycle.turns("house")) == 1


async def test_another_tool_is_still_a_change(state_dir: Path) -> None:
    """The front that stays is of messages; tools are not part of it."""
    tool = {"type": "function", "function": {"name": "light"}}
    async with pinned("attention", state_dir).daemon() as daemon:
        first = await daemon.say("house", chat("One?", front=front(0)), tools=[tool])
        again = chat("One?", first.text, "Two?", front=front(1))
        with pytest.raises(ContextEditRejected):
            await daemon.say("house", again)
        (told,) = await daemon.lifecycle.explain("house")
        assert (told.outcome, told.cause, told.param) == ("refused", "tools_changed", "tools")


@contrasts
async def test_a_pattern_of_the_user_tells_with_what_belongs_to_it(
    state_dir: Path, kind: str
) -> None:
    async with rig_of(kind, state_dir).daemon() as daemon:
        change = SessionChange(pinned_front=("clock", r"(?<=state: )\w+$"))
        await daemon.lifecycle.create("house", change)
        first = await daemon.say("house", chat("One?", front=front(0)))
        asked = chat("One?", first.text, "Two?", front=front(1, state="on"))
        reply = await daemon.say("house", asked)
        assert reply.report.cached_tokens == standing(first)
        told = f"{clock(1)}\n- names: Lamp\n  state: on"
        assert (await prompt_text(daemon, "house", reply)).endswith(new_text(told, "Two?"))


@contrasts
async def test_lines_that_began_with_other_fronts_keep_theirs(state_dir: Path, kind: str) -> None:
    async with rig_of(kind, state_dir).daemon() as daemon:
        await daemon.lifecycle.create("house", SessionChange("fork"))
        first = await daemon.say("house", chat("One?", front=front(0)))
        other = await daemon.say("house", chat("Something else?", front=front(1)))
        await daemon.lifecycle.update("house", SessionChange(pinned_front=("clock",)))
        again = chat("One?", first.text, "Two?", front=front(2))
        assert (await daemon.say("house", again)).report.cached_tokens == standing(first)
        again = chat("Something else?", other.text, "Two?", front=front(3))
        assert (await daemon.say("house", again)).report.cached_tokens == standing(other)


@contrasts
@pytest.mark.parametrize("restart", [False, True])
async def test_what_was_told_is_told_again_only_when_it_changes(
    state_dir: Path, kind: str, restart: bool
) -> None:
    """On, still on, off again as in the front that stays, still off, on once more."""
    rig = pinned(kind, state_dir, r"(?<=state: )\w+$")
    daemon = Daemon(rig)
    await daemon.start()
    messages, notes = chat(front=front(0)), []
    for state in ("off", "on", "on", "off", "off", "on"):
        if restart:
            await daemon.stop()
            daemon = Daemon(rig)
            await daemon.start()
        asked = [*with_front(messages, front(0, state)), {"role": "user", "content": "And?"}]
        reply = await daemon.say("house", asked)
        _, _, question = (await prompt_text(daemon, "house", reply)).rpartition("And?")
        notes.append(question.partition("<|im_end|>")[0].removeprefix(TOLD))
        messages = [*asked, {"role": "assistant", "content": reply.text}]
    lamp = "- names: Lamp\n  state: "
    assert notes == ["", f"{lamp}on", "", f"{lamp}off", "", f"{lamp}on"]
    await daemon.kill()


def test_lines_that_look_alike_are_all_told() -> None:
    words = Volatility(("[a-z]+$",))
    front = ["It is red\nIt is red"]
    note = News(front, ["It is blue\nIt is red"], words).after([])
    assert note == f"{HEADING}\nIt is blue"
    assert News(front, front, words).after([note]) == f"{HEADING}\nIt is red\nIt is red"


def test_a_front_with_more_lines_tells_those_that_are_new() -> None:
    anything = Volatility((r"(?s)red.*",))
    news = News(["Now:\nred"], ["Now:\nred\n  blue\n    green"], anything)
    assert news.after([]) == f"{WHOLE}\nred\n  blue\n    green"


def test_where_lines_come_and_go_all_that_may_change_is_told_until_it_is_known() -> None:
    block = Volatility((r"(?s)<states>.*</states>",))

    def states(*lines: str) -> list[str]:
        return ["\n".join(("Be kind.", "<states>", *lines, "</states>", "Bye."))]

    def note(*lines: str) -> str:
        return "\n".join((WHOLE, "<states>", *lines, "</states>"))

    front, notes = states("light: off"), list[str]()
    for now, told in [
        (states("light: on", "heat: on"), note("light: on", "heat: on")),
        (states("light: on", "heat: on"), ""),
        (states("light: off", "heat: on"), note("light: off", "heat: on")),
        (states("light: off"), note("light: off")),
        (states(), note()),
    ]:
        assert News(front, now, block).after(notes) == told
        notes += [told] if told else []
    gone = Volatility((r"(?m)^door: .*\n",))
    assert News(["door: open\nBye."], ["Bye."], gone).after([]) == f"{WHOLE}\n{NOTHING}"


async def test_only_the_front_is_pinned(state_dir: Path) -> None:
    """A system message further down is a message like others."""
    async with pinned("attention", state_dir).daemon() as daemon:
        first = await daemon.say("house", chat("One?", front=front(0)))
        later = {"role": "system", "content": "It is 11:00 in London."}
        more = [later, {"role": "user", "content": "Two?"}]
        messages = [*chat("One?", first.text, front=front(1)), *more]
        reply = await daemon.say("house", messages)
        assert reply.report.cached_tokens == standing(first)
        text = await prompt_text(daemon, "house", reply)
        assert later["content"] in text
        assert text.count("It is 10:01.") == 1


async def test_a_new_chat_takes_the_front_of_the_session_it_is_in(state_dir: Path) -> None:
    async with pinned("attention", state_dir).daemon() as daemon:
        await daemon.say("first", chat("One?", front=front(0)))
        await daemon.lifecycle.create("other", SessionChange(pinned_front=()))
        await daemon.say("other", chat("One?", front=front(7)))
        await daemon.lifecycle.update("other", SessionChange(pinned_front=("clock",)))
        reply = await daemon.say("other", chat("Begin anew?", front=front(9)))
        shared = len(prompt_of(chat("", front=front(7)))) - 40
        assert reply.report.cached_tokens >= shared
        assert front(7) in await prompt_text(daemon, "other", reply)


@pytest.mark.parametrize("pattern", ["(", "[", "", "x" * 501, "(?P<n>a)(?P<n", "*"])
async def test_bad_patterns_are_named_when_they_are_set(state_dir: Path, pattern: str) -> None:
    async with rig_of("attention", state_dir).daemon() as daemon:
        with pytest.raises(InvalidRequest) as refused:
            await daemon.lifecycle.create("house", SessionChange(pinned_front=(pattern,)))
        assert refused.value.param == "pinned_front"
        assert pattern[:50] in str(refused.value) or len(pattern) > 500
        with pytest.raises(InvalidRequest):
            await daemon.lifecycle.create("house", SessionChange(pinned_front=("clock",) * 33))


async def test_a_pattern_that_takes_for_ever_is_named_and_nothing_hangs(state_dir: Path) -> None:
    slow = "(.*)" * 8 + r"\d"
    async with rig_of("attention", state_dir).daemon() as daemon:
        await daemon.lifecycle.create("house", SessionChange(pinned_front=(slow,)))
        text = "word " * 100
        with pytest.raises(InvalidRequest, match=r"takes too long") as refused:
            await daemon.say("house", chat("One?", front=text))
        assert (refused.value.param, slow in str(refused.value)) == ("pinned_front", True)
        await daemon.lifecycle.update("house", SessionChange(pinned_front=("clock",)))
        assert (await daemon.say("house", chat("One?", front=text))).report.turn == 1


async def test_a_pattern_that_took_too_long_is_refused_until_it_is_set_anew(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. A pattern takes too long. 2. The next request, with a harmless front: refused without a
    search. 3. It is set anew, the same one. Result: it is tried anew. Other sessions never notice.
    """
    searched: list[str] = []
    search = Volatility._without

    def counted(self: Volatility, name: str, text: str) -> str:
        searched.append(name)
        return search(self, name, text)

    monkeypatch.setattr(Volatility, "_without", counted)
    slow = "(.*)" * 8 + r"\d"
    async with rig_of("attention", state_dir).daemon() as daemon:
        for name in ("house", "garden"):
            await daemon.lifecycle.create(name, SessionChange(pinned_front=(slow,)))
        with pytest.raises(InvalidRequest, match="takes too long"):
            await daemon.say("house", chat("One?", front="word " * 100))
        searched.clear()
        with pytest.raises(InvalidRequest, match="took too long") as refused:
            await daemon.say("house", chat("One?", front="1"))
        assert (refused.value.param, searched) == ("pinned_front", [])
        assert (await daemon.say("garden", chat("One?", front="1"))).report.turn == 1
        await daemon.lifecycle.update("house", SessionChange(pinned_front=(slow,)))
        assert (await daemon.say("house", chat("One?", front="1"))).report.turn == 1


@pytest.mark.parametrize(
    ("pattern", "named"),
    [
        ("(a|(?R)b)*", "recursion"),
        ("(a|(?1)b)*", "recursion"),
        ("(?P<a>x(?&a)?)", "recursion"),
        ("(?x)# [\n(?R)?b]", "recursion"),
        ("(?be)(?:aaaa){e<=3}b", "fuzzy"),
        ("(?:ab){1<=e<=3}", "fuzzy"),
        ("(?:ab){2i+1d<=4}", "fuzzy"),
        ("(?b)a", "flags"),
        ("(?ip:a|ab)", "flags"),
    ],
)
def test_patterns_that_no_clock_bounds_are_refused_when_they_are_set(
    pattern: str, named: str
) -> None:
    with pytest.raises(InvalidRequest, match=named) as refused:
        Volatility((pattern,))
    assert refused.value.param == "pinned_front"


@pytest.mark.parametrize(
    "pattern", [r"\p{Letter}+", r"\{state\}", r"a{2,3}", r"(?i)ab", r"(?P<e>a)(?P=e)", r"\(?R"]
)
def test_patterns_that_look_alike_are_not(pattern: str) -> None:
    Volatility((pattern,))


def test_all_searches_of_one_request_share_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the number of processors, of texts and of patterns."""
    volatility = Volatility(("a+b",))
    clock = iter(range(100))
    monkeypatch.setattr(
        "sessiond.sessions.volatility.thread_time", lambda: next(clock) * TIMEOUT_S / 4
    )
    for _ in range(4):
        volatility.mask("text")
    with pytest.raises(InvalidRequest, match="takes too long"):
        volatility.mask("text")


@pytest.mark.parametrize(
    ("names", "before", "after", "same"),
    [
        (("clock",), "at 10:00 PM today", "at 9:59:59.123 pm today", True),
        (("clock",), "at 10:00Z", "at 10:00+02:00", True),
        (("clock",), "ratio 3:4", "ratio 3:5", False),
        (("date",), "Monday, 3 March 2025", "Tuesday, 4 March 2025", True),
        (("date",), "2025-03-03", "2026-12-31", True),
        (("clock",), "2025-03-03", "2026-12-31", False),
        (("date", "clock"), "2025-03-03T10:00:00Z", "2026-12-31T23:59:59Z", True),
        (
            ("id",),
            "run 0f3b9a72-1c1d-4a3e-9d00-000000000001",
            f"run {'a' * 8}-{'b1b1-' * 3}{'c' * 12}",
            True,
        ),
        (("id",), "session ses_8a7b6c5d", "session ses_11223344", True),
        (("id",), "the word internationally", "the word unintentionally", False),
        (("clock",), "10:00 and 10:01", "10:00", False),
        ((r"^mood: .*$",), "a\nmood: fine\nb", "a\nmood: not so fine\nb", True),
        ((r"^mood: .*$",), "a\nmood: fine\nb", "a\nmood: fine\nc", False),
    ],
)
def test_what_may_change_is_what_is_named(
    names: tuple[str, ...], before: str, after: str, same: bool
) -> None:
    volatility = Volatility(names)
    assert (volatility.mask(before) == volatility.mask(after)) == same


async def test_a_removed_session_leaves_no_front_behind(state_dir: Path) -> None:
    rig = pinned("attention", state_dir)
    async with rig.daemon() as daemon:
        for name in ("one", "two"):
            await daemon.say(name, chat("One?", front=front(0)))
        await daemon.say("three", chat("One?", front="SECRET. It is 10:02."))
        assert len(daemon.ledger.fronts(99)) == 2
        await daemon.lifecycle.delete("three")
        (left,) = daemon.ledger.fronts(99).values()
        assert left == (front(0),)
    async with rig.daemon() as daemon:
        reply = await daemon.say("four", chat("One?", front="SECRET. It is 11:11."))
        assert "10:02" not in await prompt_text(daemon, "four", reply)


@pytest.mark.parametrize(
    "pattern",
    ["(?:(?:x{1000}){1000}){1000}", "x{1000000000}", "(?:xy){99999,}", "((a?){200}){,200}"],
)
def test_a_pattern_that_would_fill_the_memory_is_refused_before_it_is_compiled(
    pattern: str,
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Volatility((pattern,))
    assert refused.value.param == "pinned_front"
    assert Volatility((r"\d{1,2}:\d{2}",)).mask("at 10:02") == "at \x00"
