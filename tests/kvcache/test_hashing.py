"""Block names depend on everything before the block, on the salt and on the key, and on nothing else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvcache.hashing import HASH_BYTES, BlockHasher

tokens = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=16)


@given(tokens, tokens)
def test_a_name_tells_its_tokens_and_its_parent_apart(first: list[int], second: list[int]) -> None:
    hasher = BlockHasher(b"key")
    root = hasher.root(b"")
    assert (hasher.chain(root, first) == hasher.chain(root, second)) == (first == second)
    parent = hasher.chain(root, first)
    assert hasher.chain(parent, second) != hasher.chain(root, second)
    assert len(parent) == HASH_BYTES


@given(tokens)
def test_salts_and_keys_share_no_names(block: list[int]) -> None:
    hasher = BlockHasher(b"key")
    names = {
        hasher.chain(hasher.root(b"a"), block),
        hasher.chain(hasher.root(b"b"), block),
        BlockHasher(b"other").chain(BlockHasher(b"other").root(b"a"), block),
    }
    assert len(names) == 3


def test_workers_with_the_same_key_agree() -> None:
    one, two = BlockHasher(b"key"), BlockHasher(b"key")
    assert one.chain(one.root(b"t"), [1, 2, 3]) == two.chain(two.root(b"t"), [1, 2, 3])
