"""The options of `headrace bench`. What they mean together is in `deploy/bench/options.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

LOAD, CONTENT, OUTPUT = "Load", "Requests", "Output"


def bench(
    url: Annotated[str, typer.Option(help="An OpenAI-compatible endpoint.")] = "http://127.0.0.1:8000",
    model: Annotated[
        str | None, typer.Option(help="The model to ask; by default the first one listed.")
    ] = None,
    api: Annotated[Literal["chat", "completions"], typer.Option(help="Which of OpenAI's APIs.")] = "chat",
    api_key: Annotated[
        str | None, typer.Option(envvar="OPENAI_API_KEY", help="Sent as bearer token.")
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Closed loop: streams that each wait for their answer; default 8.",
            rich_help_panel=LOAD,
        ),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(min=1e-3, help="Open loop: requests per second, answered or not.", rich_help_panel=LOAD),
    ] = None,
    spacing: Annotated[
        Literal["poisson", "constant"],
        typer.Option(help="How the requests of --rate are spaced.", rich_help_panel=LOAD),
    ] = "poisson",
    requests: Annotated[
        int | None,
        typer.Option(min=1, help="Requests to send; default 64, or the whole file.", rich_help_panel=LOAD),
    ] = None,
    duration: Annotated[
        float | None,
        typer.Option(min=0.1, help="Seconds after which nothing new is sent.", rich_help_panel=LOAD),
    ] = None,
    warmup: Annotated[
        int, typer.Option(min=0, help="Requests that are sent before and not measured.", rich_help_panel=LOAD)
    ] = 4,
    timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds until a request has failed.", rich_help_panel=LOAD)
    ] = 600.0,
    text: Annotated[
        str | None,
        typer.Option(
            help="random (words), sharegpt (prose, lengths spread as in ShareGPT), or a file: MT-bench JSON "
            "lines, ShareGPT JSON, or paragraphs; default random.",
            rich_help_panel=CONTENT,
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            help="A trace file (Azure, ServeGen, Vidur, Mooncake); sent at its own times unless --rate or "
            "--concurrency is given.",
            rich_help_panel=CONTENT,
        ),
    ] = None,
    speedup: Annotated[
        float | None,
        typer.Option(
            min=1e-3,
            help="How many times as fast as the trace's own times; default 1.",
            rich_help_panel=CONTENT,
        ),
    ] = None,
    input_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Prompt length; the mean of sharegpt, the longest of a trace; default 128 or 161.",
            rich_help_panel=CONTENT,
        ),
    ] = None,
    output_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Output length; the mean of sharegpt, the longest of a trace, the limit of a file; "
            "default 128, 338 or 256.",
            rich_help_panel=CONTENT,
        ),
    ] = None,
    ignore_eos: Annotated[
        bool | None,
        typer.Option(
            "--ignore-eos/--keep-eos",
            help="Whether outputs have exactly the length asked for; "
            "default yes, but for prompts from a file.",
            rich_help_panel=CONTENT,
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(help="The same seed sends the same requests.", rich_help_panel=CONTENT)
    ] = 0,
    json_path: Annotated[
        Path | None,
        typer.Option(
            "--json",
            help="Write the summary and every request; - is standard output.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
) -> None:
    """Measure an OpenAI-compatible endpoint: latencies, tokens per second, goodput.

    Exits with 1 if every request failed, with 130 after Ctrl-C, which still shows what was measured.
    """
    from deploy.bench.bench import bench as run
    from deploy.bench.options import BenchOptions

    options = BenchOptions(
        url=url,
        model=model,
        api=api,
        concurrency=concurrency,
        rate=rate,
        spacing=spacing,
        requests=requests,
        duration_s=duration,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        text=text,
        trace=trace,
        speedup=speedup,
        ignores_eos=ignore_eos,
        warmup=warmup,
        timeout_s=timeout,
        seed=seed,
    )
    log = Console(stderr=True)
    is_piped = str(json_path) == "-"
    status = run(options, api_key, json_path, log if is_piped else Console(), log)
    raise typer.Exit(status)
