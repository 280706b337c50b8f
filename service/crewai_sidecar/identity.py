"""Who a request is: the rules of the Idempotency-Key and the request hash.

The hash is the seed's: SHA-256 over canonical JSON of six fields. The table of which spellings are the same request
stands in deploy/guide/contract.md; tests hold both to the same vectors.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import Any

from crewai_sidecar.errors import KeyInvalid, KeyMissing

__all__ = ["HASH_VERSION", "MAX_KEY_BYTES", "canonical", "idempotency_key", "key_digest", "request_hash"]

HASH_VERSION = 1
"""Names the rule in `canonical`. Stored with each record, so that a later rule cannot change what old hashes mean."""

MAX_KEY_BYTES = 512
"""Length of a key in UTF-8 bytes (the seed)."""


def idempotency_key(values: list[bytes]) -> str:
    """Turn the raw Idempotency-Key header values of one request into the key.

    Outer white space is trimmed: HTTP parsers differ in how much of it they leave. Quotes belong to
    the key.

    Raises KeyMissing for no value or a blank one, KeyInvalid for two values, bytes that are not UTF-8, more than 512
    bytes, or a code point below U+0020.
    """
    if not values:
        raise KeyMissing("A start needs an Idempotency-Key header.")
    if len(values) > 1:
        raise KeyInvalid("A start takes one Idempotency-Key header, not several.")
    try:
        key = values[0].decode("utf-8").strip(" \t")  # not .strip(): it would also take control characters away
    except UnicodeDecodeError:
        raise KeyInvalid("The Idempotency-Key is not valid UTF-8.") from None
    if any(character < " " for character in key):
        raise KeyInvalid("The Idempotency-Key has a control character.")
    if not key or key.isspace():
        raise KeyMissing("The Idempotency-Key is blank.")
    if len(key.encode("utf-8")) > MAX_KEY_BYTES:
        raise KeyInvalid(f"The Idempotency-Key is longer than {MAX_KEY_BYTES} bytes.")
    return key


def canonical(
    *,
    action_id: str,
    crew_id: str,
    operation: str,
    input_object: dict[str, Any],
    timeout_ms: int | None,
    key: str,
) -> bytes:
    """Write the canonical JSON of a request: sorted keys at every level, no spaces, ASCII, numbers as Python prints."""
    fields = {
        "action_id": action_id,
        "crew_id": crew_id,
        "idempotency_key": key,
        "input": input_object,
        "operation": operation,
        "timeout_ms": timeout_ms,
    }
    return json.dumps(fields, ensure_ascii=True, allow_nan=False, sort_keys=True, separators=(",", ":")).encode("ascii")


def request_hash(canonical_text: bytes) -> str:
    """Lowercase hex SHA-256 of a canonical text."""
    return hashlib.sha256(canonical_text).hexdigest()


def key_digest(journal_id: str, key: str) -> str:
    """Salt and hash a key with the journal's id: comparable inside one journal, never the key itself."""
    return hmac.new(bytes.fromhex(journal_id), key.encode("utf-8"), hashlib.sha256).hexdigest()
