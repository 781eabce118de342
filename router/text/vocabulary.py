"""What bytes each token of a model stands for.

A tokenizer's decoder says how token strings become text. For the decoders of language models (byte-level
BPE, and sentencepiece with byte fallback) each token's bytes depend on that token alone, so decoding is
a table look-up and a UTF-8 decoder; only leading spaces of a whole text need a rule of their own. The
table fills itself as tokens are met. Nothing here changes after construction but that table.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from tokenizers import Tokenizer

from workers.errors import ConfigError


def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-in for each byte: printable Latin-1 stands for itself, the rest moves up."""
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    alphabet = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in set(printable)]
    return alphabet | {chr(256 + rank): byte for rank, byte in enumerate(others)}


_ALPHABET = _byte_level_alphabet()


def _byte_level(token: str) -> bytes:
    try:
        return bytes([_ALPHABET[char] for char in token])
    except KeyError:  # an added token, written as it is
        return token.encode()


def _with_fallback(token: str) -> bytes:
    """`<0x0A>` is the byte 0x0A; everything else is text."""
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        try:
            return bytes([int(token[3:5], 16)])
        except ValueError:
            pass
    return token.encode()


class _Table(dict[int, bytes]):
    """Bytes by token id; an id that is looked up for the first time is worked out and kept."""

    def __init__(self, compute: Callable[[int], bytes]) -> None:
        super().__init__()
        self._compute = compute

    def __missing__(self, token_id: int) -> bytes:
        self[token_id] = value = self._compute(token_id)
        return value


class Vocabulary:
    """The bytes of every token of `tokenizer`; `control_ids` count as special whether or not it says so.

    `token_bytes` has every token's bytes, `text_bytes` has none for special tokens; an unknown id has
    none in either. `num_leading_spaces` is how many spaces the decoder drops at the start of a text.
    Raises ConfigError for a decoder whose tokens cannot be taken one by one.
    """

    def __init__(self, tokenizer: Tokenizer, control_ids: Iterable[int] = ()) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        self.special_ids = {token_id for token_id, token in added.items() if token.special} | set(control_ids)
        self.num_leading_spaces = 0
        self._replacements: list[tuple[str, str]] = []
        self._to_bytes: Callable[[str], bytes] = str.encode
        self._has_decoder = tokenizer.decoder is not None
        if self._has_decoder:
            self._read_decoder(json.loads(tokenizer.decoder.__getstate__()))  # its part of the tokenizer file
        else:
            self.num_leading_spaces = 1  # without a decoder, tokens are joined by spaces
        self.token_bytes = _Table(self._bytes_of)
        self.text_bytes = _Table(
            lambda token_id: b"" if token_id in self.special_ids else self.token_bytes[token_id]
        )

    def _read_decoder(self, stage: dict[str, Any]) -> None:
        match stage:
            case {"type": "Sequence", "decoders": stages}:
                for inner in stages:
                    self._read_decoder(inner)
            case {"type": "ByteLevel"}:
                self._to_bytes = _byte_level
            case {"type": "ByteFallback"}:
                self._to_bytes = _with_fallback
            case {"type": "Fuse"}:
                pass
            case {"type": "Replace", "pattern": {"String": pattern}, "content": content}:
                self._replacements.append((pattern, content))
            case {"type": "Strip", "content": " ", "start": start, "stop": 0}:
                self.num_leading_spaces = start
            case {"type": "Metaspace", "replacement": mark, "prepend_scheme": scheme}:
                self._replacements.append((mark, " "))
                self.num_leading_spaces = 0 if scheme == "never" else 1
            case _:
                raise ConfigError(
                    f"the tokenizer's decoder has the stage {json.dumps(stage)[:120]}, which cannot be read "
                    "token by token; supported are ByteLevel, ByteFallback, Fuse, Metaspace, Replace of a "
                    "string and Strip of leading spaces"
                )

    def _bytes_of(self, token_id: int) -> bytes:
        token = self._tokenizer.id_to_token(token_id) if token_id >= 0 else None
        if token is None:  # embeddings padded past the tokenizer's last token
            return b""
        if not self._has_decoder:
            return b" " + token.encode()
        for pattern, content in self._replacements:
            token = token.replace(pattern, content)
        return self._to_bytes(token)
