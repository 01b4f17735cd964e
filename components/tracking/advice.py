"""What a run says when the policy learnt nothing: which groups had no contrast, how rollouts ended, what to change."""

from __future__ import annotations

from collections.abc import Sequence

from components.params.root import Params
from components.tracking.names import Line
from components.tree.groups import ALL_FAIL, ALL_PASS, CONSTANT, SINGLETON, UNSCORED
from components.tree.schema import StopReason

GROUPS = {  # why a group has no contrast, and what to change
    ALL_FAIL: ("all fail", "take easier prompts, or a policy that sometimes succeeds"),
    ALL_PASS: ("all succeed", "take harder prompts"),
    CONSTANT: ("have one reward throughout", "take prompts at which rewards differ"),
    SINGLETON: ("hold a single rollout", "grant a prompt more rollouts"),
    UNSCORED: ("could not be verified", "see the run's warnings"),
}


def nothing_learnt(lines: Sequence[Line], params: Params) -> str | None:
    """In which iterations no rollout was trained on, why, and what to change; None where each trained on some.

    Args:
        lines: Metrics of one or more iterations.
        params: Those of the run.
    """
    dead = [line for line in lines if not line["rollouts/trained"]]
    if not dead:
        return None

    def total(key: str, share: str | None = None) -> int:
        return round(sum((line.get(key) or 0) * ((line.get(share) or 0) if share else 1) for line in dead))

    groups, rollouts = total("policy/groups/total"), total("rollouts/sampled")
    found = {reason: total("policy/groups/total", f"policy/groups/{reason}_frac") for reason in GROUPS}
    reason = max(found, key=found.__getitem__)
    why, advice = GROUPS[reason]
    said = f"{found[reason]} of {groups} groups {why}" if found[reason] else "no group has contrast"
    if reason != ALL_PASS:
        for stop, ended, remedy in _limits(dead, params):
            count = total("rollouts/sampled", f"stop/{stop}")
            if 2 * count >= max(rollouts, 1):  # most of them
                said, advice = f"{said}, {count} of {rollouts} rollouts {ended}", remedy
    where = "" if len(lines) == 1 else f" in {len(dead)} of {len(lines)} iterations"
    return f"nothing was learnt{where}: {said}: {advice}"


def _limits(dead: Sequence[Line], params: Params) -> list[tuple[str, str, str]]:
    """Ends of rollouts that keep a policy from succeeding: the reason, what happened, and what to change."""
    turn, whole = params.engine.max_turn_tokens, params.engine.max_tokens
    cut = (f"cut at {whole} tokens, prompt and observations included", "raise engine.max_tokens")
    if any((line.get("rollouts/turn_tokens_max") or 0) >= turn for line in dead):
        cut = (f"cut at {turn} tokens", "raise engine.max_turn_tokens")
    return [
        (StopReason.LENGTH, *cut),
        (StopReason.MAX_TURNS, f"stopped after {params.environment.max_turns} turns", "raise environment.max_turns"),
        (
            StopReason.MALFORMED_ACTION,
            "ended in an action that cannot be read",
            "teach the policy the form of an action",
        ),
        (StopReason.TOOL_ERROR, "ended in a fault of the environment", "see the run's warnings"),
    ]
