"""Names that dashboards can rely on, and no label that clients can fill."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
from prometheus_client import Counter
from prometheus_client.parser import text_string_to_metric_families

from scripts import metrics_table
from sessiond import metrics
from sessiond.api.app import create_app
from sessiond.api.routing import ApiConfig
from sessiond.metrics import REGISTRY, Total
from sessiond.sessions.report import observe
from tests.api.scripted import ScriptedTurns
from tests.rig import Rig
from tests.rig.rig import fake
from tests.sessions.talk import Talk

ROOT = Path(__file__).parents[1]
BOUNDED = {"source", "kind", "reason", "tier", "action", "cause", "how", "phase", "state"} | {
    "finish_reason"
}
UNITS = ("_seconds", "_bytes", "_total", "_depth", "_turns", "_sessions", "_entries")
AGREED = {
    "sessiond_time_to_first_token_seconds": ("histogram", ("source",)),
    "sessiond_prompt_tokens_total": ("counter", ("source",)),
    "sessiond_restore_seconds": ("histogram", ()),
    "sessiond_save_seconds": ("histogram", ("kind",)),
    "sessiond_save_bytes_total": ("counter", ("kind",)),
    "sessiond_checkpoint_ring_bytes": ("gauge", ()),
    "sessiond_checkpoint_ring_limit_bytes": ("gauge", ()),
    "sessiond_evictions_total": ("counter", ("tier", "reason")),
    "sessiond_cache_miss_total": ("counter", ("reason",)),
    "sessiond_append_only_violations_total": ("counter", ("action", "cause")),
    "sessiond_sessions": ("gauge", ("state",)),
    "sessiond_disk_bytes": ("gauge", ()),
    "sessiond_disk_quota_bytes": ("gauge", ()),
    "sessiond_queue_depth": ("gauge", ()),
    "sessiond_running_turns": ("gauge", ()),
}


def test_the_names_agreed_upon_are_there() -> None:
    found = {name: (kind, labels) for name, kind, labels, _ in metrics_table.known()}
    assert AGREED.items() <= found.items()


def test_names_have_base_units_and_labels_are_few() -> None:
    for name, kind, labels, meaning in metrics_table.known():
        assert name.startswith("sessiond_")
        assert name.endswith(UNITS), name
        assert name.endswith("_total") == (kind == "counter"), name
        assert "milli" not in name
        assert set(labels) <= BOUNDED, name
        assert meaning.endswith(".")


def test_all_that_is_exported_is_made_in_one_place() -> None:
    create_app(ScriptedTurns(), ApiConfig())
    exported = {family.name for family in REGISTRY.collect()}
    assert exported == {name.removesuffix("_total") for name, *_ in metrics_table.known()}


def test_the_page_is_what_the_registry_says() -> None:
    page = metrics_table.PAGE.read_text()
    assert metrics_table.page(page) == page, "Run: python -m scripts.metrics_table"


def test_every_name_in_a_document_or_script_exists() -> None:
    names = {name for name, *_ in metrics_table.known()}
    names |= {f"{name}_{part}" for name in names for part in ("bucket", "count", "sum")}
    sources = [
        *ROOT.glob("docs/*.md"),
        *ROOT.glob("scripts/**/*.py"),
        *ROOT.glob("sessiond/**/*.py"),
    ]
    ending = r"(?:_total|_seconds|_bytes|_seconds_bucket|_depth)"
    for source in [*sources, ROOT / "README.md"]:
        used = set(re.findall(rf"\bsessiond_[a-z_]+{ending}\b", source.read_text()))
        assert used <= names, source


async def test_labels_have_the_values_of_the_page_and_no_others(tmp_path: Path) -> None:
    """
    1. Two sessions with names of their own talk, one is parked and comes back.
    Result: what is exported has no word of theirs, and every value stands in docs/metrics.md.
    """
    from sessiond.engine.memory import Memory, MemoryKind

    rig = Rig(tmp_path, fake(Memory(MemoryKind.HYBRID)))
    async with rig.daemon() as daemon:
        for name in ("zqxcanary-one", "zqxcanary-two"):
            talk = Talk("hybrid", session=name)
            await talk.say(daemon, "zqxcanary words")
            await daemon.lifecycle.park(name)
            await talk.say(daemon, "more zqxcanary words")
        health = await daemon.lifecycle.health()
        observe(health)
        value = REGISTRY.get_sample_value
        assert value("sessiond_sessions", {"state": "resident"}) == health.resident_sessions == 2
        assert value("sessiond_sessions", {"state": "parked"}) == 0
        assert value("sessiond_disk_quota_bytes") == rig.quota
        await daemon.lifecycle.park("zqxcanary-one")
        observe(await daemon.lifecycle.health())
        assert value("sessiond_sessions", {"state": "parked"}) == 1
    page = metrics_table.PAGE.read_text()
    for family in REGISTRY.collect():
        for sample in family.samples:
            for label, given in sample.labels.items():
                assert "zqxcanary" not in given
                documented = label in ("le", "finish_reason", "cause", "reason", "how")
                assert documented or f"`{given}`" in page, (sample.name, label, given)


async def test_the_queue_is_looked_at_when_metrics_are_read() -> None:
    turns = ScriptedTurns()
    app = create_app(turns, ApiConfig())
    metrics.QUEUED.set(77)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        answer = await client.get("/metrics")
    told = (await turns.health()).queued
    families = {family.name: family for family in text_string_to_metric_families(answer.text)}
    assert [s.value for s in families["sessiond_queue_depth"].samples] == [told]


def test_totals_of_an_engine_that_began_anew_add_up() -> None:
    counter = Counter("totals_of_a_test", "Nothing.", registry=None)
    total = Total(counter)
    for reached in (3, 3, 7.5, 2, 4):
        total.reach(reached)
    assert counter._value.get() == 7.5 + 4
