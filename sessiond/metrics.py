"""What sessiond counts, in one registry of its own. Any thread may count."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

REGISTRY = CollectorRegistry()


class Total:
    """Feeds a counter from a total somebody else counts; one lower than before began anew."""

    def __init__(self, counter: Counter) -> None:
        self._counter = counter
        self._last = 0.0

    def reach(self, total: float) -> None:
        self._counter.inc(total - self._last if total >= self._last else total)
        self._last = total


STORE_WRITTEN = Counter(
    "sessiond_save_bytes_total",
    "Bytes of state files written to disk, headers included.",
    ["kind"],
    registry=REGISTRY,
)
STORE_RESTORED = Counter(
    "sessiond_restore_bytes_total",
    "Bytes of payload read from disk and verified.",
    registry=REGISTRY,
)
EVICTIONS = Counter(
    "sessiond_evictions_total",
    "States removed: tier disk for quota or disk (keep_free), tier ring for room, dropped (their "
    "line) or damaged.",
    ["tier", "reason"],
    registry=REGISTRY,
)
STORE_QUARANTINED = Counter(
    "sessiond_store_quarantined_files_total",
    "State files refused; reason is damaged, foreign or newer.",
    ["reason"],
    registry=REGISTRY,
)
STORE_BYTES = Gauge(
    "sessiond_disk_bytes",
    "Bytes of all state files on disk, quarantine included.",
    registry=REGISTRY,
)
DISK_QUOTA = Gauge(
    "sessiond_disk_quota_bytes", "What all state files may have at most.", registry=REGISTRY
)
SAVE_SECONDS = Histogram(
    "sessiond_save_seconds",
    "Writing one state file, by kind.",
    ["kind"],
    buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30),
    registry=REGISTRY,
)
RESTORE_SECONDS = Histogram(
    "sessiond_restore_seconds",
    "Bringing the state of one turn from disk into the context.",
    buckets=(0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60),
    registry=REGISTRY,
)

SAVE_FAILURES = Counter(
    "sessiond_save_failures_total",
    "States that could not be written; they cost prefill after a restart, nothing else.",
    registry=REGISTRY,
)
SNAPSHOTS_SUPERSEDED = Counter(
    "sessiond_snapshots_superseded_total",
    "Snapshots removed because later ones of the same line are kept.",
    registry=REGISTRY,
)
TTFT = Histogram(
    "sessiond_time_to_first_token_seconds",
    "From the request to its first token, by where the reused tokens came from.",
    ["source"],
    buckets=(0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300),
    registry=REGISTRY,
)
PROMPT_TOKENS = Counter(
    "sessiond_prompt_tokens_total",
    "Prompt tokens by where their state came from: memory, disk, or prefill (evaluated).",
    ["source"],
    registry=REGISTRY,
)
COMPLETION_TOKENS = Counter(
    "sessiond_completion_tokens_total", "Tokens generated.", registry=REGISTRY
)
EVALUATED = Counter(
    "sessiond_evaluated_tokens_total",
    "Tokens the model has evaluated by now, of running turns too: prefill or decode.",
    ["phase"],
    registry=REGISTRY,
)
MISSES = Counter(
    "sessiond_cache_miss_total",
    "Turns for which tokens evaluated before had to be evaluated again, by cause.",
    ["reason"],
    registry=REGISTRY,
)
MISSED_TOKENS = Counter(
    "sessiond_cache_miss_tokens_total",
    "Tokens that had to be evaluated again, by cause.",
    ["reason"],
    registry=REGISTRY,
)
WARMED_SESSIONS = Counter(
    "sessiond_warmed_sessions_total",
    "Sessions whose state was made anew in idle time after the model or its settings changed.",
    registry=REGISTRY,
)
WARMED_TOKENS = Counter(
    "sessiond_warmed_tokens_total", "Tokens that were evaluated for that.", registry=REGISTRY
)
SUSPENDED = Counter(
    "sessiond_turns_suspended_total",
    "Running turns that were parked because the context had no free cells.",
    registry=REGISTRY,
)
VIOLATIONS = Counter(
    "sessiond_append_only_violations_total",
    "Requests that rewrite history: refused, or let through as compacted, rewound or forked.",
    ["action", "cause"],
    registry=REGISTRY,
)
TURNS = Counter(
    "sessiond_turns_total", "Turns by how they ended.", ["finish_reason"], registry=REGISTRY
)
PRUNED_TURNS = Counter(
    "sessiond_pruned_turns_total",
    "Turns that left the ledger because they were unused for sessions.keep.",
    registry=REGISTRY,
)
STORE_PINNED = Gauge(
    "sessiond_disk_pinned_bytes",
    "Bytes of the state of pinned sessions, which no quota evicts.",
    registry=REGISTRY,
)
STORE_COLLECTED = Counter(
    "sessiond_disk_collected_files_total",
    "State files removed because no turn in the ledger was made with their model and settings.",
    registry=REGISTRY,
)
UNSAVED_TURNS = Gauge(
    "sessiond_unsaved_turns",
    "Turns only in memory because the ledger could not be written.",
    registry=REGISTRY,
)
SESSIONS = Gauge(
    "sessiond_sessions",
    "Sessions: resident (a line of theirs is in the context) or parked.",
    ["state"],
    registry=REGISTRY,
)
RUNNING = Gauge("sessiond_running_turns", "Turns that are evaluated now.", registry=REGISTRY)
QUEUED = Gauge(
    "sessiond_queue_depth", "Turns that wait for a place or the model.", registry=REGISTRY
)
CAPTURES = Counter(
    "sessiond_captures_total",
    "Snapshots captured: frozen, direct because no spare was free, or through pageable memory.",
    ["how"],
    registry=REGISTRY,
)
CAPTURE_SECONDS = Counter(
    "sessiond_capture_seconds_total", "Engine time spent on captures.", registry=REGISTRY
)
RING_BYTES = Gauge(
    "sessiond_checkpoint_ring_bytes",
    "Host memory of the snapshot ring, reserved and idle memory included.",
    registry=REGISTRY,
)
RING_BUDGET = Gauge(
    "sessiond_checkpoint_ring_limit_bytes",
    "What the snapshot ring may have at most.",
    registry=REGISTRY,
)
RING_ENTRIES = Gauge(
    "sessiond_checkpoint_ring_entries",
    "Snapshots in the ring, those being written included.",
    registry=REGISTRY,
)
RING_REFUSED = Counter(
    "sessiond_checkpoint_ring_refused_total",
    "Captures the ring had no place for; reason is full, too_large or no_memory.",
    ["reason"],
    registry=REGISTRY,
)
LANDINGS = Counter(
    "sessiond_landings_total",
    "Turns by the state their evaluation began on: resident, ring, disk or nothing.",
    ["source"],
    registry=REGISTRY,
)
DRAIN_SECONDS = Counter(
    "sessiond_drain_seconds_total",
    "Engine time spent on copying captures out of the context.",
    registry=REGISTRY,
)

TOOLS_LEFT_OUT = Counter(
    "sessiond_tools_left_out_total",
    "Tools of requests that only a vendor's own servers can run.",
    registry=REGISTRY,
)
PARTS_REPLACED = Counter(
    "sessiond_unsupported_parts_total",
    "Images and other parts in older messages that were replaced by a note.",
    registry=REGISTRY,
)
