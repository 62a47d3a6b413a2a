"""Removal of values that must not be shown or stored: those under secret names, in documents and in text."""

from __future__ import annotations

from chainsched.domain.redaction.documents import MAX_DEPTH, redact, redact_text
from chainsched.domain.redaction.names import MAX_NAME, find_secret_names, is_secret_name
from chainsched.domain.redaction.values import REDACTED

__all__ = ["MAX_DEPTH", "MAX_NAME", "REDACTED", "find_secret_names", "is_secret_name", "redact", "redact_text"]
