"""What is said of a finished turn: to the client, in the metrics, in the log."""

from __future__ import annotations

import logging

from sessiond.engine.events import Ended
from sessiond.metrics import (
    COMPLETION_TOKENS,
    MISSED_TOKENS,
    MISSES,
    PROMPT_TOKENS,
    TTFT,
    TURNS,
    UNSAVED_TURNS,
)
from sessiond.sessions.lander import Landed
from sessiond.sessions.schema import SessionRecord
from sessiond.sessions.tree import SessionTree, Turn
from sessiond.sessions.turn import TurnReport

logger = logging.getLogger(__name__)


def report_of(
    record: SessionRecord, tree: SessionTree, turn: Turn, landed: Landed, ended: Ended, saved: bool
) -> TurnReport:
    stats = turn.stats
    return TurnReport(
        session=record.name,
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
    TURNS.labels(report.finish_reason).inc()
    UNSAVED_TURNS.set(unsaved)
    if report.miss:
        MISSES.labels(report.miss.cause).inc()
        MISSED_TOKENS.labels(report.miss.cause).inc(report.miss.tokens)


def log(record: SessionRecord, report: TurnReport) -> None:
    """What people said and how they name their sessions stays out of the log."""
    logger.info(
        "session %s turn %d: source=%s cached=%d prefilled=%d completion=%d ttft=%.0fms miss=%s",
        record.id[:8],
        report.turn,
        report.source,
        report.cached_tokens,
        report.prefilled_tokens,
        report.completion_tokens,
        report.ttft_ms,
        report.miss.cause if report.miss else "none",
    )
