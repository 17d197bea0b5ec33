"""What is said of a finished turn: to the client, in the metrics, in the log."""

from __future__ import annotations

import logging

from sessiond.engine.events import Ended
from sessiond.metrics import (
    COMPLETION_TOKENS,
    DISK_QUOTA,
    MISSED_TOKENS,
    MISSES,
    PROMPT_TOKENS,
    QUEUED,
    RESTORE_SECONDS,
    RUNNING,
    SESSIONS,
    TTFT,
    TURNS,
    UNSAVED_TURNS,
)
from sessiond.sessions.lander import Landed
from sessiond.sessions.schema import SessionRecord
from sessiond.sessions.tree import SessionTree, Turn
from sessiond.sessions.turn import Health, TurnReport

logger = logging.getLogger(__name__)


def report_of(
    record: SessionRecord, tree: SessionTree, turn: Turn, landed: Landed, ended: Ended, saved: bool
) -> TurnReport:
    stats = turn.stats
    return TurnReport(
        session=record.called,
        line=tree.line_role(turn.number, turn.created),
        turn=turn.number,
        source=stats.source,
        prompt_tokens=stats.prompt_tokens,
        cached_tokens=stats.cached,
        restored_tokens=stats.restored,
        prefilled_tokens=stats.prefilled,
        completion_tokens=len(turn.reply_tokens),
        restore_ms=landed.restore_ms,
        ttft_ms=stats.ttft_ms,
        prompt_ms=stats.prompt_ms,
        predicted_ms=ended.decode_ms,
        saved=saved,
        finish_reason=ended.reason,
        miss=stats.miss,
        stopped_by=ended.stopped_by,
    )


def count(report: TurnReport, unsaved: int) -> None:
    TTFT.labels(report.source).observe(report.ttft_ms / 1e3)
    PROMPT_TOKENS.labels("prefill").inc(report.prefilled_tokens)
    PROMPT_TOKENS.labels("disk").inc(report.restored_tokens)
    PROMPT_TOKENS.labels("memory").inc(report.cached_tokens - report.restored_tokens)
    COMPLETION_TOKENS.inc(report.completion_tokens)
    if report.restored_tokens:
        RESTORE_SECONDS.observe(report.restore_ms / 1e3)
    TURNS.labels(report.finish_reason).inc()
    UNSAVED_TURNS.set(unsaved)
    if report.miss:
        MISSES.labels(report.miss.cause).inc()
        MISSED_TOKENS.labels(report.miss.cause).inc(report.miss.tokens)


def observe(health: Health) -> None:
    """What is only looked at when the metrics are read."""
    RUNNING.set(health.running)
    QUEUED.set(health.queued)
    SESSIONS.labels("resident").set(health.resident_sessions)
    SESSIONS.labels("parked").set(max(0, health.sessions - health.resident_sessions))
    UNSAVED_TURNS.set(health.unsaved_turns)
    DISK_QUOTA.set(health.disk_quota)


def log(record: SessionRecord, report: TurnReport) -> None:
    """What people said and how they name their sessions stays out of the log."""
    logger.info(
        "turn",
        extra={
            "session": record.id[:8],
            "turn": report.turn,
            "source": report.source,
            "cached": report.cached_tokens,
            "restored": report.restored_tokens,
            "prefilled": report.prefilled_tokens,
            "completion": report.completion_tokens,
            "ttft_ms": round(report.ttft_ms, 1),
            "restore_ms": round(report.restore_ms, 1),
            "miss": report.miss.cause if report.miss else "none",
            "finish": report.finish_reason,
            "saved": report.saved,
        },
    )
