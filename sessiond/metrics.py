"""What sessiond counts, in one registry of its own. Any thread may count."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

REGISTRY = CollectorRegistry()

STORE_WRITTEN = Counter(
    "sessiond_store_written_bytes",
    "Bytes of state files written to disk, headers included.",
    ["kind"],
    registry=REGISTRY,
)
STORE_RESTORED = Counter(
    "sessiond_store_restored_bytes",
    "Bytes of payload read from disk and verified.",
    registry=REGISTRY,
)
STORE_EVICTED = Counter(
    "sessiond_store_evicted_files",
    "State files removed to make room; reason is quota or disk (keep_free).",
    ["reason"],
    registry=REGISTRY,
)
STORE_QUARANTINED = Counter(
    "sessiond_store_quarantined_files",
    "State files refused; reason is damaged, foreign or newer.",
    ["reason"],
    registry=REGISTRY,
)
STORE_BYTES = Gauge(
    "sessiond_store_bytes",
    "Bytes of all state files on disk, quarantine included.",
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
    "Prompt tokens by where their state came from.",
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
SUSPENDED = Counter(
    "sessiond_turns_suspended_total",
    "Running turns that were parked because the context had no free cells.",
    registry=REGISTRY,
)
REFUSALS = Counter(
    "sessiond_policy_refusals_total",
    "Requests that were refused because they rewrite history, by cause.",
    ["cause"],
    registry=REGISTRY,
)
REWRITES = Counter(
    "sessiond_rewrites_total",
    "Rewrites of history that were let through: compacted, rewound or forked, by cause.",
    ["outcome", "cause"],
    registry=REGISTRY,
)
TURNS = Counter(
    "sessiond_turns_total", "Turns by how they ended.", ["finish_reason"], registry=REGISTRY
)
UNSAVED_TURNS = Gauge(
    "sessiond_unsaved_turns",
    "Turns only in memory because the ledger could not be written.",
    registry=REGISTRY,
)
CAPTURES = Gauge(
    "sessiond_captures",
    "Snapshots captured since the start: frozen, or direct because no spare was free.",
    ["how"],
    registry=REGISTRY,
)
CAPTURE_MS = Gauge(
    "sessiond_capture_engine_milliseconds", "Engine time spent on captures.", registry=REGISTRY
)
RING_BYTES = Gauge(
    "sessiond_ring_bytes",
    "Host memory of the snapshot ring, reserved and idle memory included.",
    registry=REGISTRY,
)
RING_BUDGET = Gauge(
    "sessiond_ring_budget_bytes", "What the snapshot ring may have at most.", registry=REGISTRY
)
RING_ENTRIES = Gauge(
    "sessiond_ring_entries",
    "Snapshots in the ring, those being written included.",
    registry=REGISTRY,
)
RING_EVICTIONS = Counter(
    "sessiond_ring_evictions_total",
    "Snapshots that left the ring; reason is room, dropped (their line) or damaged.",
    ["reason"],
    registry=REGISTRY,
)
RING_REFUSED = Counter(
    "sessiond_ring_captures_refused_total",
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
DRAIN_MS = Gauge(
    "sessiond_drain_engine_milliseconds",
    "Engine time spent on copying captures out of the context.",
    registry=REGISTRY,
)

TOOLS_LEFT_OUT = Counter(
    "sessiond_tools_left_out",
    "Tools of requests that only a vendor's own servers can run.",
    registry=REGISTRY,
)
