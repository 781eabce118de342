"""From what a client asked for to what the workers are told.

A request becomes one wire request per prompt, each with n sequences, and the rules by which their tokens
become text again. Whatever depends on the model is checked here: after this, a worker has no reason to
refuse.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace

from router.api.schema import ChatCompletionRequest, CompletionRequest
from router.api.structured import asked_grammar
from router.api.tools import plan_tools
from router.message.parser import THINK, MessageForm
from router.text.stop import StopStrings
from router.text.tokenizer import ModelText
from workers.errors import ContextTooLong, InvalidRequest
from workers.sampling.params import GrammarSpec, SamplingParams

MAX_SEQUENCES = 1024  # of one HTTP request, over all of its prompts
_GREEDY_BELOW = 1e-5  # logits divided by less than this leave the range of floats
_NUM_SEEDS = (1 << 63) - 256  # sequence i draws with seed + i, which must stay an int64


@dataclass(frozen=True, slots=True)
class ModelLimits:
    max_context_tokens: int  # the smallest among the workers that may answer
    vocab_size: int

    def check_ids(self, token_ids: list[int], param: str) -> None:
        """Raises InvalidRequest if one of them is no token of the model."""
        if token_ids and (min(token_ids) < 0 or max(token_ids) >= self.vocab_size):
            wrong = next(token_id for token_id in token_ids if not 0 <= token_id < self.vocab_size)
            raise InvalidRequest(
                f"{param} must hold token ids from 0 to {self.vocab_size - 1}, but {wrong} was given",
                param=param,
            )


@dataclass(frozen=True, slots=True)
class Prompt:
    """One wire request. `text` is what echo shows; `has_text` tells that the output goes on from words."""

    token_ids: list[int]
    params: SamplingParams
    text: str
    has_text: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A request that is ready to run: choice p·n + i is sequence i of prompt p. Of each prompt's n choices
    the best `num_returned` are answered, those with the highest log-probability per token.

    With `scores_only` (echo and max_tokens 0) the one token that every worker must generate is dropped.
    """

    model: str
    prompts: list[Prompt]
    n: int
    num_returned: int
    stream: bool
    include_usage: bool
    stops: StopStrings | None
    include_stop: bool
    skip_special_tokens: bool
    echo: bool = False
    scores_only: bool = False
    num_logprobs: int | None = None
    shows_logprobs: bool = True  # not if they are only there to choose the best
    form: MessageForm | None = None  # of a chat's answer, if it may be more than words
    grammar_param: str | None = None  # the field that asked for the grammar


def prepare_chat(request: ChatCompletionRequest, text: ModelText, limits: ModelLimits) -> Prepared:
    """The one prompt of a conversation. Raises InvalidRequest, ContextTooLong or TemplateError."""
    variables = dict(request.chat_template_kwargs)
    if request.reasoning_effort is not None:
        variables.setdefault("reasoning_effort", request.reasoning_effort)
    asked = asked_grammar(request)
    plan = plan_tools(request, text, asked)
    rendered = text.render_chat(
        request.messages,
        add_generation_prompt=request.add_generation_prompt,
        variables=variables,
        tools=plan.tools,
    )
    token_ids = text.encode_rendered(rendered)
    form = replace(plan.form, is_thinking=plan.form.may_think and rendered.rstrip().endswith(THINK))
    if not token_ids:
        raise InvalidRequest("the messages make an empty prompt; send some text", param="messages")
    max_tokens = (
        request.max_completion_tokens if request.max_completion_tokens is not None else request.max_tokens
    )
    num_logprobs = (request.top_logprobs or 0) if request.logprobs else None
    params = _params(request, limits, len(token_ids), max_tokens, num_logprobs, "messages", plan.grammar)
    shows_special = form.dialect is not None and text.is_special(form.dialect.opening)
    return Prepared(
        model=request.model,
        prompts=[Prompt(token_ids, params, "", has_text=False)],  # an answer starts a text of its own
        n=request.n,
        num_returned=request.n,
        stream=request.stream,
        include_usage=request.include_usage,
        stops=StopStrings(request.stop) if request.stop else None,
        include_stop=request.include_stop_str_in_output,
        skip_special_tokens=request.skip_special_tokens and not shows_special,
        num_logprobs=num_logprobs,
        form=form if form.dialect is not None or form.may_think else None,
        grammar_param=asked[1] if asked is not None else "tools",
    )


def prepare_completion(request: CompletionRequest, text: ModelText, limits: ModelLimits) -> Prepared:
    """The prompts of a completion. Raises InvalidRequest or ContextTooLong."""
    num_sequences = len(request.prompt) * request.num_sampled
    if num_sequences > MAX_SEQUENCES:
        raise InvalidRequest(
            f"{len(request.prompt)} prompts with {request.num_sampled} outputs each make {num_sequences} "
            f"sequences, but one request may ask for {MAX_SEQUENCES}; send several requests",
            param="prompt",
        )
    scores_only = request.max_tokens == 0
    asked = asked_grammar(request)
    grammar = asked[0] if asked is not None else None
    return Prepared(
        model=request.model,
        prompts=[_prompt(request, text, limits, index, grammar) for index in range(len(request.prompt))],
        n=request.num_sampled,
        num_returned=request.n,
        stream=request.stream,
        include_usage=request.include_usage,
        stops=StopStrings(request.stop) if request.stop else None,
        include_stop=request.include_stop_str_in_output,
        skip_special_tokens=request.skip_special_tokens,
        echo=request.echo,
        scores_only=scores_only,
        num_logprobs=_num_logprobs(request),
        shows_logprobs=request.logprobs is not None,
        grammar_param=asked[1] if asked is not None else None,
    )


def _prompt(
    request: CompletionRequest,
    text: ModelText,
    limits: ModelLimits,
    index: int,
    grammar: GrammarSpec | None,
) -> Prompt:
    prompt = request.prompt[index]
    param = "prompt" if len(request.prompt) == 1 else f"prompt.{index}"
    if not prompt:
        raise InvalidRequest(f"{param} is empty; send some text or tokens", param=param)
    if isinstance(prompt, str):
        token_ids, shown = text.encode(prompt), prompt
    else:
        limits.check_ids(prompt, param)
        token_ids = prompt
        shown = text.decode(prompt, skip_special_tokens=False) if request.echo else ""
    max_tokens = 1 if request.max_tokens == 0 else request.max_tokens
    params = _params(request, limits, len(token_ids), max_tokens, _num_logprobs(request), param, grammar)
    return Prompt(token_ids, params, shown, has_text=text.has_text(token_ids))


def _num_logprobs(request: CompletionRequest) -> int | None:
    """Choosing the best needs them too."""
    return 0 if request.logprobs is None and request.num_sampled > request.n else request.logprobs


def _params(
    request: ChatCompletionRequest | CompletionRequest,
    limits: ModelLimits,
    num_prompt_tokens: int,
    max_tokens: int | None,
    num_logprobs: int | None,
    prompt_param: str,
    grammar: GrammarSpec | None,
) -> SamplingParams:
    max_tokens = _fitted(num_prompt_tokens, max_tokens, limits.max_context_tokens, prompt_param)
    if request.min_tokens > max_tokens:
        raise InvalidRequest(
            f"min_tokens must be at most max_tokens, which is {max_tokens}, but {request.min_tokens} was "
            "given",
            param="min_tokens",
        )
    limits.check_ids(request.stop_token_ids, "stop_token_ids")
    echo = isinstance(request, CompletionRequest) and request.echo
    seed = secrets.randbelow(_NUM_SEEDS) if request.seed is None else request.seed % _NUM_SEEDS
    return SamplingParams(
        max_tokens=max_tokens,
        min_tokens=request.min_tokens,
        n=request.num_sampled if isinstance(request, CompletionRequest) else request.n,
        temperature=request.temperature if request.temperature >= _GREEDY_BELOW else 0.0,
        top_p=request.top_p,
        top_k=request.top_k if 0 < request.top_k < limits.vocab_size else 0,
        min_p=request.min_p,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        repetition_penalty=request.repetition_penalty,
        logit_bias=_bias(request.logit_bias, limits.vocab_size),
        seed=seed,
        stop_token_ids=tuple(request.stop_token_ids),
        ignore_eos=request.ignore_eos,
        num_logprobs=num_logprobs,
        num_prompt_logprobs=num_logprobs if echo else None,
        grammar=grammar,
    )


def _fitted(num_prompt_tokens: int, max_tokens: int | None, max_context_tokens: int, param: str) -> int:
    """The number of tokens to generate at most: what was asked for, or all that the context still takes."""
    num_left = max_context_tokens - num_prompt_tokens
    if num_left >= 1 and (max_tokens is None or max_tokens <= num_left):
        return num_left if max_tokens is None else max_tokens
    asked = 1 if max_tokens is None else max_tokens
    raise ContextTooLong(
        f"this model's context is {max_context_tokens} tokens, but {num_prompt_tokens + asked} were asked "
        f"for: {num_prompt_tokens} in the prompt and {asked} to generate; shorten the prompt "
        "or lower max_tokens",
        param=param if num_left < 1 else "max_tokens",
    )


def _bias(given: dict[str, float], vocab_size: int) -> dict[int, float]:
    bias: dict[int, float] = {}
    for key, value in given.items():
        if not (key.isascii() and key.isdecimal() and len(key) < 12 and int(key) < vocab_size):
            raise InvalidRequest(
                f"logit_bias must have token ids from 0 to {vocab_size - 1} as keys, but {key[:80]!r} was "
                "given",
                param="logit_bias",
            )
        bias[int(key)] = value
    return bias
