"""Names for blocks of tokens: a keyed hash over a block and everything before it.

Two blocks have the same name only if their tokens, all tokens before them and the salt are the same; the
key is the cluster's secret, so a client can neither compute nor forge one. Equal prefixes have equal
names on every worker of a cluster.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

HASH_BYTES = 16


class BlockHasher:
    """Keyed BLAKE2b with 16-byte digests; `key` has at most 64 bytes."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def root(self, salt: bytes) -> bytes:
        """The parent of every first block; different salts share no block."""
        return hashlib.blake2b(salt, digest_size=HASH_BYTES, key=self._key, person=b"root").digest()

    def chain(self, parent: bytes, token_ids: Sequence[int]) -> bytes:
        """The name of the block that holds `token_ids` and follows the block named `parent`."""
        content = parent + array("I", token_ids).tobytes()
        return hashlib.blake2b(content, digest_size=HASH_BYTES, key=self._key).digest()
