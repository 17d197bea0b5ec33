"""The status page in headless Chromium: true numbers, nothing foreign, readable everywhere."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser

from sessiond.api.keys import Key, Keys
from sessiond.api.page.routes import PATHS, POLICY
from sessiond.api.routing import ApiConfig
from sessiond.sessions.anatomy import Anatomy, LastTurn, Piece, SnapshotMark
from sessiond.sessions.gauges import Gauges, RankFill
from sessiond.sessions.history import HistoryReport, PastTurn, spans
from sessiond.sessions.turn import Miss, SessionSummary, Source, TurnSummary
from tests.api import browsing
from tests.api.browsing import Visit, visit
from tests.api.browsing import browsing as a_browser
from tests.api.living import living
from tests.api.scripted import HEALTH, ScriptedTurns, session_summary
from tests.api.serving import served

NOW = 1_790_000_000.0
HOSTILE = [
    "<script src='data:,window.pwned=1'>",
    "<img src=x onerror=window.pwned=2>",
    "تقرير المبيعات",
    "\u202egnp.exe",
    "x" * 200,
    "🦊 emoji \"quotes\" & 'more'",
    "alice/own",
]
"""Names; the last one is as an administrator is told of another owner's session."""
TITLE = "<script>window.pwned=3</script><b>bold</b>"
FILES = {"/": "text/html", "/page.css": "text/css", "/page.js": "text/javascript"}
WIDTHS = (360, 620, 900, 1280, 1920)
"""From a phone to a wide screen."""

WIDER = """(width) => {
  const clips = (node) => getComputedStyle(node).overflowX !== "visible";
  const clipped = (node) => node && (clips(node) || clipped(node.parentElement));
  const wide = (node) => node.getBoundingClientRect().right > width + 0.5;
  return [...document.querySelectorAll("main *")]
    .filter((node) => wide(node) && !clipped(node.parentElement))
    .map((node) => node.outerHTML.slice(0, 80));
}"""
"""What sticks out on the right, but for what a box cuts off or lets be scrolled."""

CONTRAST = """() => {
  const canvas = Object.assign(document.createElement("canvas"), { width: 1, height: 1 });
  const context = canvas.getContext("2d", { willReadFrequently: true });
  const rgba = (color) => {
    context.clearRect(0, 0, 1, 1);
    context.fillStyle = color;
    context.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = context.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3]));
  const ground = (node) => {
    const layers = [];
    for (let at = node; at; at = at.parentElement) {
      layers.push(getComputedStyle(at).backgroundColor);
    }
    return layers.reverse().reduce((below, color) => over(rgba(color), below), [255, 255, 255]);
  };
  const light = (color) => {
    const linear = (c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = color.map((c) => linear(c / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode.textContent.trim();
    const node = walker.currentNode.parentElement;
    if (!text || !node.checkVisibility() || node.closest("script, noscript, title")) continue;
    const style = getComputedStyle(node);
    const below = ground(node);
    const ink = over(rgba(node.closest("svg") ? style.fill : style.color), below);
    const [a, b] = [light(ink), light(below)].sort((x, y) => y - x);
    found.push({ text, ratio: (a + 0.05) / (b + 0.05) });
  }
  return found;
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with a_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A daemon with three sessions: one talked, one asked twice, one has no turns."""
    with living(tmp_path_factory.mktemp("page"), kind="hybrid+swa", limit=4096) as url:
        with httpx.Client(base_url=url, trust_env=False, timeout=30) as client:
            said: list[dict[str, str]] = [{"role": "system", "content": "You are terse. " * 30}]
            for number in range(3):
                said.append({"role": "user", "content": f"Question {number}? " * 12})
                said.append({"role": "assistant", "content": ask(client, "work", said)})
            ask(client, HOSTILE[0], [{"role": "user", "content": HOSTILE[1]}])
            ask(client, HOSTILE[0], [{"role": "user", "content": "Again"}])
            client.post("/v1/sessions", json={"name": "empty"}).raise_for_status()
        yield url


def ask(client: httpx.Client, name: str, said: list[dict[str, str]]) -> str:
    body = {"session_id": name, "messages": said, "max_tokens": 6}
    answer = client.post("/v1/chat/completions", json=body).raise_for_status().json()
    return str(answer["choices"][0]["message"]["content"])


def told(url: str, path: str, key: str = "") -> Any:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return httpx.get(f"{url}{path}", headers=headers, trust_env=False).raise_for_status().json()


def number(text: str) -> int:
    return int(re.sub(r"\D", "", text))


# --- a scripted daemon, for all that a living one does not show on demand


class Told(ScriptedTurns):
    """Tells what the page is to show."""

    past: HistoryReport = HistoryReport(NOW - 60, NOW, 0, (), ())
    laid: Anatomy | None = None
    fill: Gauges = Gauges(0, 0, 64, (), None, None)

    async def history(self, owner: str | None = None) -> HistoryReport:
        return self.past

    async def anatomy(self, name: str) -> Anatomy:
        await self.summary(name)
        assert self.laid is not None
        return replace(self.laid, session=name)

    async def gauges(self) -> Gauges:
        return self.fill


def summary(name: str, **changes: Any) -> SessionSummary:
    made = session_summary(name, "fork")
    return replace(made, tokens=41_133, turns=40, lines=2, hit_rate=0.97, **changes)


def many(count: int) -> Told:
    turns = Told()
    names = [*HOSTILE, *(f"session-{at:04d}" for at in range(count - len(HOSTILE)))]
    turns.sessions = {
        name: summary(
            name,
            title=TITLE if at % 2 else "Sort out the invoices of March, and then those of April",
            agent=("opencode", "claude", None)[at % 3],
            state=("resident", "disk", "ledger")[at % 3],
            back_in_ms=41_000.0 if at % 3 == 2 else 400.0,
            reason="model changed" if at % 3 == 2 else "",
            pinned=at == 0,
            saved=at != 1,
        )
        for at, name in enumerate(names)
    }
    turns.past, turns.laid = day(), torso()
    turns.fill = Gauges(
        65_536, 41_000, 64, (RankFill("front", 2, 9), RankFill("end", 5, 9)), 800.0, 2e9
    )
    turns.health_now = replace(
        HEALTH, sessions=count, ring_bytes=1 << 30, ring_budget=4 << 30, ring_entries=12,
        disk_bytes=9 << 30, disk_quota=50 << 30, resident_lines=3, max_lines=4, running=2, queued=1,
    )  # fmt: skip
    return turns


def day() -> HistoryReport:
    """A turn every seven minutes, of every source, some of which read old tokens again."""
    sources: tuple[Source, ...] = ("resident", "disk", "fork", "ledger", "new")
    turns = [
        PastTurn(
            time=NOW - 86_000 + 420 * at,
            session=HOSTILE[at % len(HOSTILE)],
            source=sources[at % 5],
            prompt_tokens=40_000,
            cached_tokens=39_000 if at % 5 < 3 else 0,
            restored_tokens=20_000 if at % 5 == 1 else 0,
            prefilled_tokens=1_000 if at % 5 < 3 else 40_000,
            ttft_ms=(8.0, 90.0, 700.0, 42_000.0, 3_000.0)[at % 5] * (1 + at % 7),
            miss="evicted" if at % 5 == 3 else None,
        )
        for at in range(200)
    ]
    return HistoryReport(
        NOW - 86_400, NOW, len(turns), spans(turns, NOW - 86_400, NOW), tuple(turns)
    )


def torso() -> Anatomy:
    """Memory, memory that is not on disk yet, disk, and a gap."""
    kinds: list[tuple[Any, bool]] = [
        ("memory", True),
        ("memory", False),
        ("disk", True),
        ("missing", False),
    ]
    blocks = [Piece(256 * at, 256, *kinds[at // 4]) for at in range(16)]
    miss = Miss("evicted", "Gone.", 1_024)
    turns = [
        TurnSummary(
            9 - at,
            None,
            "main",
            ("user",),
            4_000,
            3_072,
            928,
            96,
            "disk",
            miss if at == 1 else None,
            "stop",
            85.0,
            NOW - 60 * at,
        )
        for at in range(8)
    ]
    last = LastTurn(9, 3_072, "disk", 928, 2_048, 4_000, 96, 85.0, None, NOW)
    marks = (SnapshotMark(300, ("ring", "disk")), SnapshotMark(3_072, ("disk",)))
    return Anatomy("", True, 4_096, 2_048, 300, True, tuple(blocks), marks, last, tuple(turns))


@pytest.fixture(scope="module")
def crowd() -> Iterator[tuple[str, Told]]:
    turns = many(1000)
    with served(turns) as url:
        yield url, turns


def opened(found: Visit, name: str) -> None:
    found.page.locator(f'.row[data-name="{name}"] button').click()
    found.until("document.querySelector('.detail .strip svg') !== null")


# --- the files


@pytest.mark.parametrize(("path", "kind"), FILES.items())
def test_the_files_need_no_key_and_carry_their_policy(path: str, kind: str) -> None:
    assert FILES.keys() == PATHS
    with served(ScriptedTurns(), ApiConfig(keys=Keys((Key.of("", b"secret"),)))) as url:
        answer = httpx.get(f"{url}{path}", trust_env=False)
        assert httpx.get(f"{url}/v1/status", trust_env=False).status_code == 401
    assert answer.status_code == 200
    assert answer.headers["content-type"] == f"{kind}; charset=utf-8"
    assert answer.headers["content-security-policy"] == POLICY
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cache-control"] == "no-cache"
    directives = dict(part.split(" ", 1) for part in POLICY.split("; "))
    assert directives == {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "connect-src": "'self'",
        "img-src": "'self' data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }


def test_the_probe_of_anthropics_clients_is_still_one() -> None:
    with served(ScriptedTurns()) as url:
        answer = httpx.head(url, trust_env=False)
    assert (answer.status_code, answer.content) == (200, b"")


def test_without_chromium_the_tests_fail_and_say_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(browsing.shutil, "which", lambda name: None)
    with pytest.raises(pytest.fail.Exception, match="apt install chromium"):
        browsing.chromium()


# --- true numbers


def test_the_page_shows_what_the_daemon_tells(browser: Browser, live: str) -> None:
    status = told(live, "/v1/status")
    rows = {row["name"]: row for row in status["sessions"]}
    with visit(browser, live) as found:
        assert found.text("#state-word") == "ready"
        assert found.text("#model") == "fake · hybrid memory"
        assert number(found.text("#context-value")) == status["gauges"]["cells_used"] > 0
        assert number(found.text("#turns-value")) == 0
        prompt, cached = (
            sum(span[field] for span in status["history"]["spans"])
            for field in ("prompt_tokens", "cached_tokens")
        )
        assert found.text("#reuse-now-value") == f"{round(100 * cached / prompt)} %"
        assert "5 turns since" in found.text("#reuse-now .note")
        assert found.text("#count") == "3"
        assert [row["name"] for row in found.dataset(".row")] == list(rows)
        for name, row in rows.items():
            cells = found.page.locator(".row").nth(list(rows).index(name)).locator("td")
            assert (cells.nth(0).text_content() or "").strip() == name
            assert (cells.nth(2).text_content() or "") == row["title"]
            assert number(cells.nth(4).text_content() or "") == row["tokens"]
            assert number(cells.nth(5).text_content() or "") == row["turns"]
        hit = found.page.locator('.row[data-name="work"] td').nth(6).text_content() or ""
        assert number(hit) == round(100 * rows["work"]["hit_rate"])


def test_a_session_opens_to_its_bar_and_its_last_turns(browser: Browser, live: str) -> None:
    with visit(browser, live, frozen=True) as found:
        with found.page.expect_response("**/state") as answer:
            opened(found, "work")
        state = answer.value.json()
        assert state.keys() == told(live, "/v1/sessions/work/state").keys()
        last = state["last_turn"]
        assert joined(found.dataset(".segment")) == joined(state["blocks"])
        shown = [(int(m["position"]), m["where"]) for m in found.dataset(".snapshot")]
        assert shown == [(m["position"], " ".join(m["where"])) for m in state["snapshots"]] != []
        assert [int(line["position"]) for line in found.dataset(".front")] == [state["front"]]
        reused, evaluated, replied = found.dataset(".lane")
        assert (int(reused["start"]), int(reused["length"])) == (0, last["position"])
        assert int(evaluated["start"]) == last["position"] > 0
        assert int(evaluated["length"]) == last["evaluated"] > 0
        assert int(replied["start"]) == last["prompt_tokens"]
        facts = dict(zip(found.texts(".facts dt"), found.texts(".facts dd"), strict=True))
        assert number(facts["Front"]) == state["front"]
        assert number(facts["Main line"]) == state["tokens"]
        assert facts["Last turn landed at"] == f"{last['position']}, memory"
        assert facts["and evaluated"] == f"{last['evaluated']} of {last['prompt_tokens']}"
        turns = [found.page.locator(".turns tbody tr").nth(at) for at in range(3)]
        assert [number(turn.locator("td").nth(0).text_content() or "") for turn in turns] == [
            3,
            2,
            1,
        ]
        evaluations = [number(turn.locator("td").nth(4).text_content() or "") for turn in turns]
        assert evaluations == [turn["prefilled_tokens"] for turn in state["last_turns"]]
        found.page.keyboard.press("Escape")
        assert found.page.locator(".detail").count() == 0
        assert found.page.evaluate("document.activeElement.closest('.row').dataset.name") == "work"


def joined(pieces: list[Any]) -> list[tuple[str, int, int]]:
    """Where, from and to, with neighbours at the same place as one."""
    found: list[tuple[str, int, int]] = []
    for piece in pieces:
        start, end = int(piece["start"]), int(piece["start"]) + int(piece["length"])
        if found and found[-1][0] == piece["where"] and found[-1][2] == start:
            found[-1] = (piece["where"], found[-1][1], end)
        else:
            found.append((piece["where"], start, end))
    return found


def test_every_turn_and_span_is_drawn_and_told(browser: Browser, live: str) -> None:
    history = told(live, "/v1/status")["history"]
    with visit(browser, live) as found:
        dots = found.page.locator("#ttft svg[role=img] :is(circle, rect, polygon, path)")
        assert dots.count() == len(history["shown"]) == 5
        columns = found.page.locator("#reuse svg[role=img] .fill-memory")
        assert columns.count() == len(history["spans"])
        found.page.locator("#ttft svg[role=img]").focus()
        found.page.keyboard.press("ArrowLeft")
        latest = history["shown"][-1]
        words = f"{latest['prefilled_tokens']} of {latest['prompt_tokens']} evaluated"
        assert words in found.text("#ttft .readout")
        box = found.page.locator("#reuse .plot").bounding_box()
        column = columns.last.bounding_box()
        assert box and column
        found.page.mouse.move(column["x"] + column["width"] / 2, box["y"] + box["height"] / 2)
        assert re.match(r"\d\d:\d\d:\d\d.\d\d:\d\d:\d\d: \d+ % of", found.text("#reuse .readout"))


# --- what clients named is text


def test_hostile_names_are_text(browser: Browser, crowd: tuple[str, Told]) -> None:
    with visit(browser, crowd[0]) as found:
        names = found.texts(".row .name bdi")[: len(HOSTILE)]
        assert names == HOSTILE
        for name in HOSTILE:
            found.page.locator(".row .name button").nth(HOSTILE.index(name)).click()
            found.until("document.querySelector('.detail .strip svg') !== null")
            assert found.page.locator(".detail h3").text_content() == name
            assert found.texts(".row.open .title") == [crowd[1].sessions[name].title]
        found.page.locator("#ttft svg[role=img]").focus()
        for _ in HOSTILE:
            found.page.keyboard.press("ArrowLeft")
        assert found.page.evaluate("window.pwned") is None
        assert found.page.locator("main script, main img").count() == 0


def test_another_owners_session_is_asked_for_in_its_owners_name(
    browser: Browser, crowd: tuple[str, Told]
) -> None:
    with visit(browser, crowd[0]) as found:
        with found.page.expect_request("**/state") as asked:
            opened(found, "alice/own")
    assert asked.value.url.endswith("/v1/sessions/own/state")
    assert asked.value.headers["x-sessiond-owner"] == "alice"


def test_the_watch_sees_what_it_watches_for(browser: Browser, crowd: tuple[str, Told]) -> None:
    """Each of the three kinds of problem, made on purpose."""
    with (
        pytest.raises(AssertionError) as failed,
        visit(browser, crowd[0]) as found,
    ):
        found.page.evaluate("document.body.setAttribute('style', 'color: red')")
        found.page.evaluate("fetch('http://127.0.0.1:9/x').catch(() => null)")
        found.page.evaluate("console.error('on purpose')")
        found.until("window.violations.length >= 2")
    for sign in ("style-src-attr inline", "connect-src http://127.0.0.1:9/x", "on purpose"):
        assert sign in str(failed.value)


# --- readable everywhere


def test_nothing_is_wider_than_the_screen(browser: Browser, crowd: tuple[str, Told]) -> None:
    with visit(browser, crowd[0]) as found:
        opened(found, HOSTILE[4])
        for width in WIDTHS:
            fits(found, width)


def test_without_sessions_and_turns_the_page_says_so(browser: Browser) -> None:
    with served(Told()) as url, visit(browser, url) as found:
        assert f"No sessions yet. Point an agent at {url}/v1" in found.text("#none")
        assert found.texts(".plot .none") == ["No turns since the start."] * 2
        assert not found.page.locator("#sessions > table").is_visible()
        for width in WIDTHS:
            fits(found, width)


def fits(found: Visit, width: int) -> None:
    found.resize(width)
    assert found.page.evaluate("document.documentElement.scrollWidth") == width
    wide = found.page.evaluate(WIDER, width)
    assert wide == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_stands_out_from_its_ground(
    browser: Browser, crowd: tuple[str, Told], scheme: str
) -> None:
    url, turns = crowd
    well = turns.health_now
    turns.health_now = replace(well, unsaved_turns=2, detail="2 turns are not saved: full")
    try:
        with visit(browser, url, scheme=scheme) as found:
            opened(found, HOSTILE[0])
            ground = found.page.evaluate(
                "getComputedStyle(document.body.parentNode).backgroundColor"
            )
            assert (sum(map(int, re.findall(r"\d+", ground))) < 200) is (scheme == "dark")
            for width in (360, 1280):
                found.resize(width)
                ratios = found.page.evaluate(CONTRAST)
                assert len(ratios) > 300
                assert [one for one in ratios if one["ratio"] < 4.5] == []
    finally:
        turns.health_now = well


def test_low_contrast_would_be_seen(browser: Browser, crowd: tuple[str, Told]) -> None:
    with visit(browser, crowd[0]) as found:
        found.page.evaluate("document.documentElement.style.setProperty('--muted', '#8c949c')")
        assert [one for one in found.page.evaluate(CONTRAST) if one["ratio"] < 4.5]


def test_the_table_is_one_for_readers_even_as_cards(
    browser: Browser, crowd: tuple[str, Told]
) -> None:
    with visit(browser, crowd[0]) as found:
        for width in (360, 1280):
            found.resize(width)
            table = found.page.get_by_role("table", name="Sessions")
            heads = table.get_by_role("columnheader").all_text_contents()
            cells = table.get_by_role("row").nth(1).get_by_role("cell")
            assert cells.count() == len(heads) == 9
            assert heads[:4] == ["Name", "Agent", "Title", "State"]
            assert table.get_by_role("row").count() == 101
            assert found.page.get_by_role("searchbox", name="Filter").count() == 1
        named = found.page.get_by_role("button", name="session-0000")
        assert named.get_attribute("aria-expanded") == "false"
        named.focus()
        found.page.keyboard.press("Enter")
        assert named.get_attribute("aria-expanded") == "true"


# --- many sessions


def test_a_thousand_sessions_are_listed_and_found(
    browser: Browser, crowd: tuple[str, Told]
) -> None:
    with visit(browser, crowd[0]) as found:
        assert found.text("#count") == "1,000"
        assert found.page.locator(".row").count() == 100
        found.page.get_by_role("button", name="Show 900 more").click()
        found.until("document.querySelectorAll('.row').length === 1000")
        assert not found.page.locator("#more").is_visible()
        found.page.fill("#filter", "session-0990")
        assert found.dataset(".row") == [{"name": "session-0990"}]
        assert found.text("#count") == "1 of 1,000"
        found.page.fill("#filter", "nothing like it")
        assert "No session has this" in found.text("#none")


def test_a_filter_looks_at_all_of_them(browser: Browser, crowd: tuple[str, Told]) -> None:
    with visit(browser, crowd[0]) as found:
        found.page.fill("#filter", "session-0990")
        found.until("document.querySelector('.row[data-name=\"session-0990\"]') !== null")
        found.page.fill("#filter", "OPENCODE")
        found.until("document.querySelectorAll('.row').length > 300")


def test_marks_of_sessions_are_told_in_words(browser: Browser, crowd: tuple[str, Told]) -> None:
    with visit(browser, crowd[0]) as found:
        assert found.texts(".tag") == ["pinned", "not saved"]
        assert found.texts(".row .place .source")[:3] == ["in memory", "on disk", "text only"]
        backs = found.page.locator(".row td:last-child > span:not(.unit)").all_text_contents()
        assert backs[:3] == ["now", "~0.4 s", "~41 s"]
        found.page.locator(".row .name button").nth(2).click()
        assert "back in ~41 s: model changed" in found.text(".detail .full")


# --- how the daemon is


CONDITIONS: list[tuple[dict[str, Any], str, str]] = [
    ({"status": "loading", "loading_progress": 0.42, "model": None}, "loading 42 %", ""),
    ({"status": "unloaded"}, "model unloaded", ""),
    ({"status": "draining"}, "stopping", ""),
    ({"status": "failed", "detail": "<b>no</b> such file"}, "failed", "<b>no</b> such file"),
    (
        {"unsaved_turns": 3, "detail": "3 turns are not saved: disk full"},
        "ready",
        "3 turns are in memory only: the ledger cannot be written. "
        "3 turns are not saved: disk full",
    ),
    ({}, "ready", ""),
]


SAID = "['state-word', 'alerts'].map((id) => document.getElementById(id).textContent).join('|')"


def test_the_head_says_how_the_daemon_is(browser: Browser) -> None:
    turns = Told()
    with served(turns) as url, visit(browser, url) as found:
        for changes, word, alert in CONDITIONS:
            turns.health_now = replace(HEALTH, **changes)
            found.look_again()
            found.until(f"{SAID} === {json.dumps(f'{word}|{alert}')}")


def test_a_daemon_that_was_stopped_is_told(browser: Browser) -> None:
    with ExitStack() as running:
        url = running.enter_context(served(Told()))
        with visit(browser, url, faults=("ERR_CONNECTION_REFUSED",)) as found:
            assert found.text("#alerts") == ""
            running.close()
            found.until(
                "document.getElementById('alerts').textContent.includes('be reached since')"
            )
            assert found.text("#state-word") == "unreachable"
            assert found.page.title() == "sessiond: unreachable"


def test_a_daemon_that_is_there_again_is_told(browser: Browser, crowd: tuple[str, Told]) -> None:
    with visit(browser, crowd[0], faults=("ERR_INTERNET_DISCONNECTED",)) as found:
        found.page.context.set_offline(True)
        found.look_again()
        found.until("document.body.classList.contains('stale')")
        found.page.context.set_offline(False)
        found.look_again()
        found.until("!document.body.classList.contains('stale')")
        assert found.text("#state-word") == "ready"
        assert found.text("#alerts") == ""


def test_an_error_of_the_daemon_is_told(browser: Browser) -> None:
    turns = Told()
    turns.fault = RuntimeError("no")
    with served(turns) as url, visit(browser, url, board=False, faults=("500",)) as found:
        found.until("document.getElementById('alerts').textContent.includes('Something failed')")
        turns.fault = None
        found.look_again()
        found.until("document.getElementById('alerts').textContent === ''")
        found.until("!document.getElementById('board').hidden")


def test_a_page_that_nobody_sees_asks_for_nothing(
    browser: Browser, crowd: tuple[str, Told]
) -> None:
    """
    1. Time passes while the page is seen, while it is hidden, and while it is seen again.
    Result: it asks again and again; never while hidden; at once when it comes back.
    """
    with visit(browser, crowd[0], frozen=True) as found:

        def asked() -> int:
            return sum("/v1/status" in url for url in found.asked)

        def goes_on() -> None:
            before, deadline = asked(), time.monotonic() + browsing.PATIENCE_S
            with found.page.expect_response("**/v1/status*"):
                while asked() == before:
                    assert time.monotonic() < deadline, "it asks no more"
                    found.page.clock.run_for(1_000)
            assert asked() == before + 1

        goes_on()
        goes_on()
        turn_away(found, hidden=True)
        before = asked()
        found.page.clock.run_for(60_000)
        assert asked() == before
        with found.page.expect_response("**/v1/status*"):
            turn_away(found, hidden=False)
        assert asked() == before + 1


def turn_away(found: Visit, *, hidden: bool) -> None:
    found.page.evaluate(
        "(hidden) => { Object.defineProperty(document, 'hidden', { get: () => hidden, "
        "configurable: true }); document.dispatchEvent(new Event('visibilitychange')); }",
        hidden,
    )


# --- keys


def test_the_page_asks_for_a_key_and_keeps_it_for_the_tab(browser: Browser) -> None:
    """
    1. A daemon that needs a key: the page asks. A wrong one is told as wrong.
    2. The right one, which no header could hold as it is, opens the board.
    3. The page is loaded again in this tab, then the key is forgotten.
    Result: the key is in sessionStorage only, and gone in the end.
    """
    key = "schlüssel-🔑"
    turns = many(8)
    config = ApiConfig(keys=Keys((Key.of("", key.encode()),)))
    with served(turns, config) as url, visit(browser, url, board=False, faults=("401",)) as found:
        found.until("document.activeElement.id === 'key'")
        assert found.text("#state-word") == "locked"
        assert found.page.get_by_label("API key").get_attribute("type") == "password"
        enter(found, "wrong")
        found.until("document.getElementById('key-wrong').textContent.includes('does not know')")
        assert not found.page.locator("#board").is_visible()
        enter(found, key)
        found.until("!document.getElementById('board').hidden")
        assert found.page.locator(".row").count() == 8
        assert not found.page.locator("#locked").is_visible()
        assert kept(found) == [{"sessiond-key": key}, {}, ""]
        assert key not in found.page.content()
        found.page.reload()
        found.until("!document.getElementById('board').hidden")
        found.page.get_by_role("button", name="Forget key").click()
        found.until("!document.getElementById('locked').hidden")
        assert kept(found) == [{}, {}, ""]
        assert not found.page.locator("#board").is_visible()


def enter(found: Visit, key: str) -> None:
    found.page.get_by_label("API key").fill(key)
    found.page.keyboard.press("Enter")


def kept(found: Visit) -> Any:
    return found.page.evaluate("[{...sessionStorage}, {...localStorage}, document.cookie]")


def test_an_owner_sees_own_sessions_only(browser: Browser, tmp_path: Path) -> None:
    config = ApiConfig(keys=Keys((Key.of("alice", b"a"), Key.of("bob", b"b"))))
    with living(tmp_path, config) as url:
        for key, name in (("a", "mine"), ("b", "theirs")):
            with httpx.Client(base_url=url, trust_env=False, headers={"x-api-key": key}) as client:
                ask(client, name, [{"role": "user", "content": "Hi"}])
        with visit(browser, url, board=False, faults=("401",)) as found:
            found.until("document.activeElement.id === 'key'")
            enter(found, "a")
            found.until("document.querySelector('.row') !== null")
            assert found.dataset(".row") == [{"name": "mine"}]
            opened(found, "mine")
            assert found.page.locator("#ttft svg[role=img] :is(circle, path)").count() == 1
