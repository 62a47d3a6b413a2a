"""What the history of a row says about something that was done to it."""

from __future__ import annotations

from chainsched.domain.redaction import redact_text


def entry(did: str, outcome: str, *, before: str, after: str, reason: str, told: str = "") -> str:
    """What was done, what became of it, before and after, and why; secrets in what somebody typed are left out."""
    parts = [f"{did}: {outcome}.", *([f"With {told}."] if told else [])]
    parts += [f"Before: {before}. After: {after}.", f"Reason: {reason or 'none given'}."]
    return redact_text(" ".join(parts))
