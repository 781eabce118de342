"""Carries out a sampling plan on logits. The order of operations is that of `workers/sampling/plan.py`.

Nothing here depends on which other rows are in the step: rows are grouped only by what they ask for
themselves. No row ever sorts or draws numbers for the whole vocabulary unless its own filters leave more
than CANDIDATES tokens.

Shapes: B rows, V vocabulary, K candidates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from workers.sampling.grammar import Masks
from workers.sampling.plan import Edits, Filters, SamplingPlan
from workers.wire import Logprob

CANDIDATES = 1024


@dataclass(frozen=True, slots=True)
class Sampled:
    """One token per row, and its log-probabilities where they were asked for.

    `broken_rows` are those whose logits were no numbers; their tokens mean nothing.
    """

    token_ids: list[int]
    logprobs: list[Logprob | None]
    broken_rows: list[int]


def sample(logits_BV: torch.Tensor, plan: SamplingPlan) -> Sampled:
    """Draw one token per row; `logits_BV` is fp32 and is overwritten."""
    raw = _RawLogprobs(logits_BV, plan)
    _edit(logits_BV, plan)
    token_ids = _best(logits_BV)
    best = logits_BV[range(len(token_ids)), token_ids].tolist()
    broken_rows = [row for row, logit in enumerate(best) if not math.isfinite(logit)]
    open_ = [filters for filters in plan.drawn if filters.is_open]
    filtered = [filters for filters in plan.drawn if not filters.is_open]
    for filters, token_id in zip(open_, _draw_open(logits_BV, open_), strict=True):
        token_ids[filters.row] = token_id
    for filters, token_id in zip(filtered, _draw_filtered(logits_BV, filtered), strict=True):
        token_ids[filters.row] = token_id
    return Sampled(token_ids, raw.of(token_ids), broken_rows)


def prompt_logprobs(logits_TV: torch.Tensor, next_ids: list[int], num_top: int) -> list[Logprob]:
    """Log-probabilities of the prompt tokens `next_ids`, row t predicting next_ids[t]."""
    return _logprobs(torch.log_softmax(logits_TV, dim=-1), next_ids, num_top)


def _best(logits_BV: torch.Tensor) -> list[int]:
    """The largest logit of each row, the first of equals, or what is no number. On a CPU numpy finds it ten
    times as fast as torch."""
    on_cpu = logits_BV.device.type == "cpu"
    best_B = logits_BV.numpy().argmax(axis=-1) if on_cpu else logits_BV.argmax(dim=-1)
    token_ids: list[int] = best_B.tolist()
    return token_ids


class _RawLogprobs:
    """Log-probabilities before anything is changed, of the rows that report them."""

    def __init__(self, logits_BV: torch.Tensor, plan: SamplingPlan) -> None:
        self._wanted = plan.num_logprobs
        self._rows = [row for row, count in enumerate(plan.num_logprobs) if count is not None]
        if self._rows:
            self._logprobs = torch.log_softmax(logits_BV[self._rows], dim=-1)

    def of(self, token_ids: list[int]) -> list[Logprob | None]:
        found: list[Logprob | None] = [None] * len(token_ids)
        for place, row in enumerate(self._rows):
            num_top = self._wanted[row]
            assert num_top is not None
            (found[row],) = _logprobs(self._logprobs[place : place + 1], [token_ids[row]], num_top)
        return found


def _logprobs(logprobs_BV: torch.Tensor, token_ids: list[int], num_top: int) -> list[Logprob]:
    chosen = logprobs_BV.gather(1, torch.tensor(token_ids, device=logprobs_BV.device).unsqueeze(1))
    values, ids = logprobs_BV.topk(num_top, dim=-1)
    return [
        Logprob(token_id, logprob, list(zip(top_ids, top_values, strict=True)))
        for token_id, (logprob,), top_ids, top_values in zip(
            token_ids, chosen.tolist(), ids.tolist(), values.tolist(), strict=True
        )
    ]


def _edit(logits_BV: torch.Tensor, plan: SamplingPlan) -> None:
    if plan.masks is not None:
        _constrain(logits_BV, plan.masks)
    if len(plan.banned):
        rows, ids, _ = _tensors(plan.banned, logits_BV)
        logits_BV[rows, ids] = float("-inf")
    if len(plan.biased):
        rows, ids, values = _tensors(plan.biased, logits_BV)
        logits_BV[rows, ids] += values
    if len(plan.repeated):
        rows, ids, values = _tensors(plan.repeated, logits_BV)
        found = logits_BV[rows, ids]
        logits_BV[rows, ids] = torch.where(found > 0, found / values, found * values)
    if len(plan.penalised):
        rows, ids, values = _tensors(plan.penalised, logits_BV)
        logits_BV[rows, ids] -= values


def _constrain(logits_BV: torch.Tensor, masks: Masks) -> None:
    forbidden_MV = ~np.unpackbits(
        masks.bits.view(np.uint8), axis=1, count=logits_BV.shape[-1], bitorder="little"
    ).view(np.bool_)
    forbidden = torch.from_numpy(forbidden_MV).to(logits_BV.device)
    for place, row in enumerate(masks.rows):
        logits_BV[row].masked_fill_(forbidden[place], float("-inf"))


def _tensors(edits: Edits, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    arrays = (edits.rows, edits.ids, edits.values)
    rows, ids, values = (torch.from_numpy(array).to(like.device) for array in arrays)
    return rows, ids, values


def _probs(logits_BV: torch.Tensor, drawn: list[Filters]) -> torch.Tensor:
    """Probabilities of the rows that draw, after temperature."""
    logits = logits_BV[[filters.row for filters in drawn]]
    return torch.softmax(logits / _column(logits, [filters.temperature for filters in drawn]), dim=-1)


def _column(like: torch.Tensor, values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device).unsqueeze(1)


def _draw_open(logits_BV: torch.Tensor, drawn: list[Filters]) -> list[int]:
    """The whole vocabulary stays possible; its order is as good as any other."""
    if not drawn:
        return []
    return _pick(_probs(logits_BV, drawn), drawn)


def _draw_filtered(logits_BV: torch.Tensor, drawn: list[Filters]) -> list[int]:
    if not drawn:
        return []
    probs_BV = _probs(logits_BV, drawn)
    num_candidates = min(CANDIDATES, probs_BV.shape[-1])
    values_BK, ids_BK = probs_BV.topk(num_candidates, dim=-1)
    token_ids = [0] * len(drawn)
    is_enough = _is_enough(probs_BV, values_BK, drawn)
    few = [place for place, enough in enumerate(is_enough) if enough]
    for place, token_id in zip(few, _draw_sorted(probs_BV, values_BK, ids_BK, drawn, few), strict=True):
        token_ids[place] = token_id
    many = [place for place, enough in enumerate(is_enough) if not enough]
    if many:
        sorted_BV, order_BV = probs_BV[many].sort(dim=-1, descending=True, stable=True)
        left = [drawn[place] for place in many]
        everyone = list(range(len(many)))
        for place, token_id in zip(
            many, _draw_sorted(probs_BV[many], sorted_BV, order_BV, left, everyone), strict=True
        ):
            token_ids[place] = token_id
    return token_ids


def _draw_sorted(
    probs_BV: torch.Tensor,
    values_BK: torch.Tensor,
    ids_BK: torch.Tensor,
    drawn: list[Filters],
    places: list[int],
) -> list[int]:
    """Draw for `places` among candidates that are sorted by falling probability."""
    if not places:
        return []
    chosen = [drawn[place] for place in places]
    values_BK, ids_BK = values_BK[places], ids_BK[places]
    ranks_K = torch.arange(values_BK.shape[-1], device=values_BK.device)
    top_k = _column(values_BK, [filters.top_k or float("inf") for filters in chosen])
    is_left = (values_BK >= _floor(values_BK, chosen)) & (ranks_K < top_k)
    left_BK = torch.where(is_left, values_BK, 0.0)
    mass_B1 = torch.where(
        torch.isinf(top_k), _mass(probs_BV[places], values_BK, chosen), left_BK.sum(dim=-1, keepdim=True)
    )
    before_BK = left_BK.cumsum(dim=-1) - left_BK
    top_p = _column(values_BK, [filters.top_p for filters in chosen])
    left_BK = torch.where((before_BK < top_p * mass_B1) | (ranks_K == 0), left_BK, 0.0)
    picked = torch.tensor(_pick(left_BK, chosen), device=ids_BK.device).unsqueeze(1)
    token_ids: list[int] = ids_BK.gather(1, picked).squeeze(1).tolist()
    return token_ids


def _is_enough(probs_BV: torch.Tensor, values_BK: torch.Tensor, drawn: list[Filters]) -> list[bool]:
    """Whether no token beyond the candidates can survive the row's filters."""
    num_candidates = values_BK.shape[-1]
    if num_candidates == probs_BV.shape[-1]:
        return [True] * len(drawn)
    last_B1 = values_BK[:, -1:]
    ends_by_min_p = last_B1 < _floor(values_BK, drawn)
    top_p = _column(values_BK, [filters.top_p for filters in drawn])
    ends_by_top_p = values_BK.sum(dim=-1, keepdim=True) > top_p * _mass(probs_BV, values_BK, drawn)
    ends = (ends_by_min_p | ends_by_top_p).squeeze(1).tolist()
    return [end or 0 < filters.top_k <= num_candidates for end, filters in zip(ends, drawn, strict=True)]


def _floor(values_BK: torch.Tensor, drawn: list[Filters]) -> torch.Tensor:
    """The least probability that min-p leaves, relative to the best candidate's."""
    return values_BK[:, :1] * _column(values_BK, [filters.min_p for filters in drawn])


def _mass(probs_BV: torch.Tensor, values_BK: torch.Tensor, drawn: list[Filters]) -> torch.Tensor:
    """What min-p leaves of the whole probability, [B, 1]."""
    return torch.where(probs_BV >= _floor(values_BK, drawn), probs_BV, 0.0).sum(dim=-1, keepdim=True)


def _pick(weights_BK: torch.Tensor, drawn: list[Filters]) -> list[int]:
    """The first place at which the cumulative weight passes the row's uniform share of the total."""
    cumulative_BK = weights_BK.cumsum(dim=-1)
    total_B1 = cumulative_BK[:, -1:].contiguous()
    target_B1 = _column(weights_BK, [filters.uniform for filters in drawn]) * total_B1
    picked_B1 = torch.searchsorted(cumulative_BK, target_B1, right=True)
    # Rounding may put the target at the very total: the last place that has any weight is meant then.
    last_B1 = torch.searchsorted(cumulative_BK, total_B1)
    picked: list[int] = torch.minimum(picked_B1, last_B1).squeeze(1).tolist()
    return picked
