"""Seeds: whatever is drawn in a run follows from the run's seed and from what it is drawn for."""

import hashlib


def derive_seed(*parts: int | str) -> int:
    """A non-negative 63-bit seed from (run seed, iteration, anchor, sibling, …)."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
