"""One model's text: prompts to tokens, tokens to text.

Built from the ModelCard that the model's workers send, so a router needs none of the model's files. A
prompt starts with BOS exactly once if the model wants it, whether the template wrote it or not. Encoding
takes about a millisecond per thousand tokens and releases the GIL, so a thread may do it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer

from router.message.dialect import DIALECTS, dialect_of
from router.message.parser import THINK
from router.text.detokenizer import Detokenizer
from router.text.template import ChatTemplate
from router.text.tools import Message
from router.text.vocabulary import Vocabulary
from workers.errors import ConfigError, InvalidRequest
from workers.wire import ModelCard


class ModelText:
    """The tokenizer and the chat template of `card`. Safe to share between threads. `tool_format` is the
    name of the dialect in which the model calls tools, "auto" what its template tells.

    Raises ConfigError when the tokenizer cannot be read.
    """

    def __init__(self, card: ModelCard, tool_format: str = "auto") -> None:
        self.card = card
        try:
            self._tokenizer = Tokenizer.from_str(card.tokenizer_json.decode())
        except Exception as error:  # tokenizers raises bare Exception
            raise ConfigError(f"the tokenizer of {card.model!r} cannot be read: {error}") from error
        self._tokenizer.no_truncation()  # a tokenizer file may ask for both; neither is a server's business
        self._tokenizer.no_padding()
        control_ids = [*card.eos_ids, *([card.bos_id] if card.bos_id is not None else [])]
        self.vocabulary = Vocabulary(self._tokenizer, control_ids)
        self.dialect = DIALECTS[tool_format] if tool_format != "auto" else dialect_of(card.chat_template)
        self.may_think = THINK in (card.chat_template or "")
        self._template = None
        if card.chat_template is not None:
            self._template = ChatTemplate(
                card.chat_template, bos_token=card.bos_token, eos_token=card.eos_token
            )

    def encode(self, text: str, *, add_bos: bool = True) -> list[int]:
        """The tokens of a plain prompt. Names of special tokens in `text` become those tokens."""
        token_ids = self._encode(text)
        return self._with_one_bos(token_ids) if add_bos else token_ids

    def encode_chat(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
        tools: Sequence[Message] | None = None,
    ) -> list[int]:
        """The tokens of a conversation, as the model's chat template writes it.

        Raises InvalidRequest when the model has no template, TemplateError when it refuses the messages.
        """
        return self.encode_rendered(
            self.render_chat(
                messages, add_generation_prompt=add_generation_prompt, variables=variables, tools=tools
            )
        )

    def encode_rendered(self, rendered: str) -> list[int]:
        """The tokens of what a chat template has written."""
        return self._with_one_bos(self._encode(rendered))

    def render_chat(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
        tools: Sequence[Message] | None = None,
    ) -> str:
        """The conversation as the model's chat template writes it; raises what `encode_chat` raises."""
        if self._template is None:
            raise InvalidRequest(
                f"the model {self.card.model!r} has no chat template; send a prompt to "
                "/v1/completions instead",
                param="model",
            )
        return self._template.render(
            messages, add_generation_prompt=add_generation_prompt, variables=variables, tools=tools
        )

    def detokenizer(self, *, skip_special_tokens: bool = True, continues: bool = False) -> Detokenizer:
        """A decoder for one sequence; `Detokenizer` has the meaning of the options."""
        return Detokenizer(self.vocabulary, skip_special_tokens=skip_special_tokens, continues=continues)

    def decode(
        self, token_ids: Sequence[int], *, skip_special_tokens: bool = True, continues: bool = False
    ) -> str:
        """The text of all these tokens."""
        detokenizer = self.detokenizer(skip_special_tokens=skip_special_tokens, continues=continues)
        return detokenizer.feed(token_ids) + detokenizer.flush()

    def token_bytes(self, token_id: int) -> bytes:
        """The token's bytes; those of its name if it is special, none if there is no such token."""
        return self.vocabulary.token_bytes[token_id]

    def token_text(self, token_id: int) -> str:
        """The token's bytes as text, with U+FFFD where they are only part of a character."""
        return self.vocabulary.token_bytes[token_id].decode("utf-8", "replace")

    def is_special(self, token: str) -> bool:
        """Whether this is the name of a special token, which has no text unless special tokens are shown."""
        return self._tokenizer.token_to_id(token) in self.vocabulary.special_ids

    def has_text(self, token_ids: Sequence[int]) -> bool:
        """True if any of these tokens is more than a special token."""
        return not self.vocabulary.special_ids.issuperset(token_ids)

    def _encode(self, text: str) -> list[int]:
        # Of the tokenizer's calls, the batch ones release the GIL and this one keeps no offsets.
        (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)
        return encoding.ids

    def _with_one_bos(self, token_ids: list[int]) -> list[int]:
        bos_id = self.card.bos_id
        if bos_id is None or not self.card.add_bos:
            return token_ids
        num_bos = 0
        while num_bos < len(token_ids) and token_ids[num_bos] == bos_id:
            num_bos += 1
        return token_ids[num_bos - 1 :] if num_bos else [bos_id, *token_ids]
