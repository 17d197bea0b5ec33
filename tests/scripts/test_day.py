"""`bench day`: traces are read strictly, bounds are counted rightly, and sessiond keeps them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from scripts import make_traces, plots
from scripts.bench_day import count_with
from scripts.daemon import DaemonFailed
from scripts.day import report, trace
from scripts.day.agent import Request, Said
from scripts.day.bound import Bounds, allowed, between
from scripts.day.replay import Cost, Day, judged, play
from scripts.day.servers import Sessiond
from scripts.day.trace import Trace, Turn
from scripts.fetch_models import ROOT
from scripts.plots import Panel, Role, Series
from sessiond.chat.renderer import TemplateRenderer
from sessiond.chat.template import ChatTemplate
from sessiond.engine.fake import FakeModel
from tests.daemon.fake_daemon import FakeDaemon
from tests.scripts.within import Host, Within, hosting
from tests.sessions.kinds import RENDERER

Messages = list[dict[str, Any]]
KINDS = ("attention", "swa", "recurrent", "hybrid")
QWEN = (ROOT / "tests" / "templates" / "qwen.jinja").read_text()
SCALE = 0.03
COUNT = count_with(RENDERER)
WITH_TOOLS = count_with(TemplateRenderer(FakeModel(), ChatTemplate(QWEN)))
AROUND = len("<|im_end|>\n<|im_start|>user\n") - len("<|im_end|><|im_start|>") + 2
BEGINS = len("<|im_start|>user\n") - len("<|im_start|>") + 1
ENDS = len("<|im_end|>\n<|im_start|>assistant\n") - len("<|im_end|><|im_start|>") + 2
"""Tokens that ChatML puts after the last message: the fake model has one for each letter."""


@pytest.fixture
def state_dir(tmp_path: Path) -> Iterator[Path]:
    """In memory if there is such a place."""
    memory = Path("/dev/shm")
    if not memory.is_dir():
        yield tmp_path
        return
    with TemporaryDirectory(dir=memory, prefix="sessiond-test-") as directory:
        yield Path(directory)


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    with hosting() as one:
        yield one


# --- the bound


def asks(messages: Messages, bound: str = "new") -> Request:
    fields = {"id": "a", "session": "s", "say": [{"role": "user", "words": 5}]}
    turn = Turn.model_validate({"kind": "turn", "max_tokens": 8, "bound": bound, **fields})
    return Request(turn, tuple(Said(message) for message in messages), ())


def says(*texts: str, front: str = "Be kind.") -> Messages:
    roles = ("user", "assistant")
    said = [{"role": roles[n % 2], "content": text} for n, text in enumerate(texts)]
    return [{"role": "system", "content": front}, *said]


def after_one_turn() -> Bounds:
    """The prompt "Hello" was answered with "Hi!"."""
    bounds = Bounds(COUNT)
    bounds.learn(asks(says("Hello")), {"role": "assistant", "content": "Hi!"})
    return bounds


def test_the_tokens_around_a_message_are_counted() -> None:
    assert between(COUNT, "user") == AROUND == len("\n" + "user\n") + 2
    assert between(WITH_TOOLS, "tool") == AROUND + len("<tool_response>\n")


BOUNDS = [
    (says("Anything", front="Be brief."), 1 + 7 + 9 + 2 + BEGINS + 8 + ENDS),
    (says("Hello", "Hi!", "And?"), 4 + ENDS + AROUND + 1),
    (says("Hello"), 1),
    (says("Other"), 5 + ENDS + AROUND + 1),
    (says("Hello", "Hi.", "And?"), 3 + AROUND + 4 + ENDS + AROUND + 1),
]


@pytest.mark.parametrize(("messages", "tokens"), BOUNDS)
def test_the_lower_bound_counts_what_no_earlier_prompt_begins_with(
    messages: Messages, tokens: int
) -> None:
    """Another front: all; an append: the question; the same again: 1; an edit: the new message;
    a reply that is not the server's: from there on."""
    found = after_one_turn().of(asks(messages))
    assert found.lower == found.stated == tokens


def test_other_tools_make_another_front() -> None:
    request = asks(says("Hello"))
    told = Request(request.turn, request.said, ({"type": "function"},))
    assert after_one_turn().known(request) == 2
    assert after_one_turn().known(told) == 0


def test_a_stated_bound_goes_back_to_where_it_says() -> None:
    roles = "system user assistant tool assistant user".split()
    messages = [{"role": role, "content": role} for role in roles]
    assert [allowed("new", messages, known) for known in (0, 3, 6)] == [0, 3, 6]
    assert [allowed("user", messages, known) for known in (0, 3, 5)] == [0, 1, 5]
    assert [allowed("front", messages, known) for known in (0, 3)] == [0, 1]
    assert allowed("whole", messages, 3) == 0
    bounds = after_one_turn()
    whole = len(COUNT(says("Hello", "Hi!", "And?"), ()))
    front = bounds.of(asks(says("Hello", "Hi!", "And?"), "front"))
    assert front.stated == whole - (1 + 7 + 8 + 2 + BEGINS) + AROUND + 1
    assert bounds.of(asks(says("Hello", "Hi!", "And?"), "whole")).stated == whole


# --- sessiond


def trace_of(name: str) -> Trace:
    (one,) = trace.named([name])
    return one


def check(played: Trace, day: Day) -> None:
    over = [(c.event, c.evaluated, c.stated, c.miss) for c in day.costs if not c.holds]
    assert over == []
    assert day.left_out == 0
    assert len(day.costs) == len(played.turns)
    if played.header.appends:
        assert day.evaluated is not None
        assert day.evaluated <= 1.1 * day.lower


OTHERS = ("attention", "swa", "recurrent")
SPREAD = [("hybrid", name) for name in make_traces.TRACES]
SPREAD += [(OTHERS[number % 3], name) for number, name in enumerate(make_traces.TRACES)]
SPREAD += [("swa", "edit-back")]
ALL = [(kind, name, time) for kind in KINDS for name in make_traces.TRACES for time in range(5)]
THINKS_AND_CALLS = (
    "<think>\nThey want it read.\n</think>\n\n<tool_call>\n"
    '{"name": "read_file", "arguments": {"path": "main.py"}}\n</tool_call>'
)


def keeps_the_bounds(kind: str, name: str, host: Host, state_dir: Path) -> None:
    played = trace_of(name)
    server = Within(host, kind, state_dir, template=QWEN)
    check(played, judged(play(played, server, SCALE, server.rest), WITH_TOOLS))


def drops_reasoning(kind: str, host: Host, state_dir: Path) -> None:
    played = trace_of("tools")
    replies = [THINKS_AND_CALLS] * len(played.turns)
    server = Within(host, kind, state_dir, replies=replies, template=QWEN)
    found = play(played, server, SCALE, server.rest)
    assert sum(bool(one.reply.reasoning) for one in found.heard) >= 9
    assert sum(bool(one.reply.calls) for one in found.heard) == 9
    check(played, judged(found, WITH_TOOLS))


@pytest.mark.parametrize(("kind", "name"), SPREAD)
def test_sessiond_evaluates_what_a_trace_allows(
    kind: str, name: str, host: Host, state_dir: Path
) -> None:
    """Restarts included; before a kill there is a pause, in which all is saved."""
    keeps_the_bounds(kind, name, host, state_dir)


@pytest.mark.proof_agents_load
@pytest.mark.parametrize(("kind", "name", "time"), ALL)
def test_sessiond_evaluates_what_every_trace_allows_on_every_memory_and_again(
    kind: str, name: str, time: int, host: Host, state_dir: Path
) -> None:
    """What runs at the same time does so in another order each time."""
    keeps_the_bounds(kind, name, host, state_dir)


@pytest.mark.parametrize("kind", KINDS)
def test_a_second_pruning_goes_on_where_the_first_one_ended(
    kind: str, host: Host, state_dir: Path
) -> None:
    """A model that calls; the outputs of its tools are cleared but for the last two, and again.
    Result: the second time nothing before the outputs that are cleared now is evaluated.
    """
    played = trace_of("pruning")
    replies = [THINKS_AND_CALLS] * len(played.turns)
    server = Within(host, kind, state_dir, replies=replies, template=QWEN)
    day = judged(play(played, server, SCALE, server.rest), WITH_TOOLS)
    check(played, day)
    (second,) = [cost for cost in day.costs if cost.event == "output 7"]
    assert second.evaluated is not None
    assert second.evaluated <= 1.1 * second.lower < second.stated


@pytest.mark.parametrize("kind", ["attention", "hybrid"])
def test_dropped_reasoning_costs_nothing(kind: str, host: Host, state_dir: Path) -> None:
    """A model that thinks and calls; the template would leave out what the agent drops."""
    drops_reasoning(kind, host, state_dir)


@pytest.mark.proof_agents_load
@pytest.mark.parametrize("kind", ["swa", "recurrent"])
def test_dropped_reasoning_costs_nothing_on_the_other_memories(
    kind: str, host: Host, state_dir: Path
) -> None:
    drops_reasoning(kind, host, state_dir)


def test_a_whole_daemon_keeps_the_bounds_over_a_restart(tmp_path: Path) -> None:
    """As `serve` has it: bytes and memory are measured too."""
    played = trace_of("regenerate")
    daemon = FakeDaemon(tmp_path / "state", ["--fake-memory", "hybrid"])
    day = judged(play(played, Sessiond(daemon), SCALE), COUNT)
    check(played, day)
    assert len(day.restarts) == 1
    assert day.written is not None
    assert all((cost.resident or 0) > 1 << 20 for cost in day.costs)
    assert [cost.source for cost in day.costs if cost.after_restart] == ["disk"]


def test_a_request_that_is_refused_ends_the_run_with_its_name(host: Host, state_dir: Path) -> None:
    with pytest.raises(DaemonFailed, match=r"sessiond, growth, ask 1: 400 .*context"):
        play(trace_of("growth"), Within(host, "attention", state_dir), 40.0)


# --- what is told


def day(server: str, *evaluated: int, lower: int = 10) -> Day:
    costs = tuple(
        Cost(
            f"e{n}", "s", "new", 100, 5, tokens, lower, lower, 5.0 * n, 9.0, 1 << 20, 1 << 24,
            "disk", "", "stop", after_restart=False,
        )
        for n, tokens in enumerate(evaluated)
    )  # fmt: skip
    return Day(server, costs, (1.0,), 0, 3 << 20)


def test_goals_name_what_is_missed() -> None:
    (growth,) = trace.named(["growth"])
    found = {"growth": {"sessiond": [day("sessiond", 10, 12)], "x": [day("x", 11, 11)]}}
    goals = {goal.name: (goal.measured, goal.met) for goal in report.goals_of(found, [growth])}
    assert goals == {
        "growth: evaluated / lower bound": (1.1, True),
        "growth: events over 1.1 times their bound": (1.0, False),
        "growth: evaluated of the bound / x": (1.0, True),
        "growth: events with more than x": (1.0, False),
        "growth: time to the first token, in sum / x": (1.0, True),
    }
    assert report.more_than(found["growth"], "x") == ["e1"]


def test_fewer_tokens_are_never_more_however_long_the_other_conversation_is() -> None:
    ours, theirs = day("sessiond", 12, lower=10), day("x", 40, lower=40)
    assert report.more_than({"sessiond": [ours], "x": [theirs]}, "x") == []
    theirs = day("x", 11, lower=11)
    assert report.more_than({"sessiond": [ours], "x": [theirs]}, "x") == ["e0"]


def test_the_worst_round_is_told_and_the_median_time() -> None:
    rounds = [day("sessiond", 10, 10), day("sessiond", 10, 13), day("sessiond", 9, 9)]
    assert [event.worst.evaluated for event in report.events_of(rounds)] == [10, 13]
    total = report.sum_of(rounds)
    assert (total.evaluated, total.lower, total.over) == (23, 20, ("e1",))
    assert total.ratio == pytest.approx(1.15)


def test_a_picture_is_drawn(tmp_path: Path) -> None:
    (growth,) = trace.named(["growth"])
    assert report.restarts_of(growth) == [3.5, 6.5]
    found = {"sessiond": [day("sessiond", 10, 10)], "x": [day("x", 90, 90)]}
    picture = report.plot(growth, found, tmp_path)
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    lines = [Series("a", [1, None, 3], Role.OURS, [1, 1, 2], [2, 2, 4])]
    panel = Panel("Lines", "tokens", "ms", [1.0, 10.0, 100.0], lines, log_x=True)
    assert plots.save([panel], tmp_path / "new" / "lines.png").stat().st_size > 5_000


# --- the command


@pytest.fixture
def bench(models: Callable[[str], Path]) -> Callable[..., subprocess.CompletedProcess[str]]:
    models("hybrid")

    def go(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "scripts.bench_day", *arguments]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)

    return go


def test_a_stock_server_is_launched_saved_restored_and_compared(
    bench: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    """A stand-in of llama-server, and the tiny hybrid. Result: one document with both, a plot."""
    stock = ("--launch", "llama-server", str(ROOT / "tests" / "llama_server.py"))
    said = bench("--quick", "--json", "--plots", str(tmp_path), *stock)
    assert said.returncode == 0, said.stderr
    document = json.loads(said.stdout)
    found = document["results"]["regenerate"]
    for server in ("sessiond", "llama-server"):
        (rounds,) = found[server]["rounds"]
        assert len(rounds["restarts"]) == 1
        (again,) = [cost for cost in rounds["costs"] if cost["after_restart"]]
        assert (again["event"], again["evaluated"]) == ("again 4, later", 1)
        assert found[server]["sum"]["resident"] > 1 << 20
    ours = found["sessiond"]["rounds"][0]["costs"]
    assert [cost for cost in ours if cost["evaluated"] > cost["stated"]] == []
    assert {"-kvu", "--slot-save-path", "--jinja"} <= set(document["settings"]["llama_server"])
    goals = {goal["name"]: goal["met"] for goal in document["goals"]}
    assert goals.pop("regenerate: events over 1.1 times their bound")
    times = [f"time to the first token, {words}" for words in ("warm", "in sum", "after a restart")]
    assert set(goals) == {
        "regenerate: events with more than llama-server",
        *(f"regenerate: {what} / llama-server" for what in ("evaluated of the bound", *times)),
    }
    assert (tmp_path / "regenerate.png").exists()


def test_an_unknown_trace_is_named(
    bench: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    said = bench("--quick", "--trace", "none")
    assert said.returncode == 2
    assert "none" in said.stderr
