"""Text from tokens, as they come.

What `feed` returns is final: the pieces and the flush, put together, are `ModelText.decode` of all the
tokens, however they were cut into calls. A character whose bytes are spread over several tokens comes
out with its last byte; bytes that can belong to no character come out as U+FFFD, one for each maximal
broken run, as everywhere in Unicode. Each token costs a table look-up, whatever came before it.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from router.text.vocabulary import Vocabulary

_new_utf8 = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """Decodes one sequence. With `continues`, the text goes on from a prompt's, so that the space which a
    sentencepiece model puts before a word is kept; without, it starts a new text, where that space is
    dropped as the model's own decoder drops it. Special tokens have no text when `skip_special_tokens`."""

    __slots__ = ("_num_strippable", "_table", "_utf8")

    def __init__(
        self, vocabulary: Vocabulary, *, skip_special_tokens: bool = True, continues: bool = False
    ) -> None:
        self._table = vocabulary.text_bytes if skip_special_tokens else vocabulary.token_bytes
        self._utf8 = _new_utf8("replace")
        self._num_strippable = 0 if continues else vocabulary.num_leading_spaces

    @property
    def is_amid_character(self) -> bool:
        """True while the last character fed lacks bytes."""
        return bool(self._utf8.getstate()[0])

    def feed(self, token_ids: Sequence[int]) -> str:
        """The text that these tokens make final; may be empty."""
        table = self._table
        if len(token_ids) == 1:
            text = self._utf8.decode(table[token_ids[0]])
        else:
            text = self._utf8.decode(b"".join([table[token_id] for token_id in token_ids]))
        return self._strip(text) if self._num_strippable and text else text

    def flush(self) -> str:
        """The end of the text: U+FFFD if it ends amid a character, else nothing."""
        return self._utf8.decode(b"", True)

    def _strip(self, text: str) -> str:
        rest = text
        while self._num_strippable and rest.startswith(" "):
            rest = rest[1:]
            self._num_strippable -= 1
        if rest:
            self._num_strippable = 0
        return rest
