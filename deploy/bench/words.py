"""English text of a wanted length in tokens, the same for the same seed on every machine.

The words are common enough to be one token each in the vocabularies of today's models. How many tokens a text
really has, and how many a chat template adds, is the server's to say: `TextScale` is fitted to two answers of
its own.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

_WORDS = """
the of and to in that was his it with is for as had you not be her on at by which have or from this him but
all she they were my are me one their so an said them we who would been will no when there if more out up
into do any your what has man could other than our some very time upon about may its only now like little
then can should made did us such great before must two these see know over much down after first good men
own never most old shall day where those came come himself way work life without go make well through being
long say might how am too many under again people house part here between place hand still world found three
while last right water both young every name look head small night side set number against large head kind
body common city church state family order power form light public case law music paper market company river
mountain winter summer history science machine school story letter garden bridge window doctor morning
evening answer question reason account result system method
""".split()  # noqa: SIM905
_ENDINGS = (".", ".", ".", "?", "!")


@dataclass(frozen=True, slots=True)
class TextScale:
    """How a server counts: tokens = overhead + tokens_per_word × words."""

    overhead_tokens: float = 0.0
    tokens_per_word: float = 1.0

    @classmethod
    def fitted(cls, few: tuple[int, int], many: tuple[int, int]) -> TextScale:
        """From two (words, tokens) that a server has counted."""
        per_word = (many[1] - few[1]) / (many[0] - few[0])
        per_word = per_word if per_word > 0 else 1.0
        return cls(max(few[1] - per_word * few[0], 0.0), per_word)

    def num_words(self, num_tokens: int) -> int:
        """The words of a prompt that has `num_tokens` in all, at least one."""
        return max(round((num_tokens - self.overhead_tokens) / self.tokens_per_word), 1)


def random_words(rng: random.Random, count: int) -> str:
    """Words drawn uniformly, with nothing between them but blanks."""
    return " ".join(rng.choices(_WORDS, k=count))


def prose(rng: random.Random, count: int) -> str:
    """Sentences of 4 to 18 words that begin with a capital; frequent words are frequent."""
    weights = [1.0 / (rank + 10) for rank in range(len(_WORDS))]
    words = rng.choices(_WORDS, weights, k=count)
    start = 0
    while start < count:
        end = min(start + rng.randint(4, 18), count)
        words[start] = words[start].capitalize()
        words[end - 1] += rng.choice(_ENDINGS)
        start = end
    return " ".join(words)
