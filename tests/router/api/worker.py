"""A worker's side of a request: the deltas that carry given tokens, grouped as one likes."""

from __future__ import annotations

from collections.abc import Sequence

from router.api.answer import Answer
from router.api.choice import Piece
from workers.wire import Delta, Logprob


def logprob(token_id: int) -> Logprob:
    """A log-probability that tells its token: −id/1000, with the token after it as the best alternative."""
    return Logprob(token_id, -token_id / 1000, [(token_id + 1, -0.5)])


def deltas(
    token_ids: Sequence[int],
    *,
    group: int = 1,
    finish: str = "length",
    index: int = 0,
    with_logprobs: bool = False,
    prompt: Sequence[int] | None = None,
) -> list[Delta]:
    """The deltas of one sequence, `group` tokens in each."""
    made = []
    for start in range(0, len(token_ids), group):
        part = list(token_ids[start : start + group])
        logprobs = [logprob(token_id) for token_id in part] if with_logprobs else None
        made.append(Delta("r", index, part, None, logprobs))
    made[-1].finish = finish
    made[0].num_cached_tokens = 16
    made[0].queue_s = 0.001
    if prompt is not None:
        made[0].prompt_logprobs = [
            Logprob(prompt[0], None, []),
            *(logprob(token_id) for token_id in prompt[1:]),
        ]
    return made


def answered(answer: Answer, sent: Sequence[Delta], prompt: int = 0) -> list[tuple[int, Piece]]:
    return [answer.feed(prompt, delta) for delta in sent]
