"""`trace-unified-tokens`: `trace-unified` with its budget kept in tokens."""

from __future__ import annotations

from components.allocation.arms.trace_unified import TraceUnified


class TraceUnifiedTokens(TraceUnified):
    """`trace-unified`, whose queue spends as many tokens as its units would be in factual rollouts."""

    name = "trace-unified-tokens"
    spends = "tokens"
