"""The command line. Errors are one line with the remedy; `--debug` shows where they came from."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path
from typing import Annotated

import typer
import yaml
from rich.console import Console

from deploy.bench.command import bench
from workers.errors import HeadraceError

app = typer.Typer(
    name="headrace",
    help="Serve large language models on a Ray cluster, behind one OpenAI-compatible endpoint.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
console = Console()
errors = Console(stderr=True)

SpecFile = Annotated[
    Path | None, typer.Argument(help="A YAML file; without one, the embedded model is served.")
]
Url = Annotated[str, typer.Option(help="Where the cluster serves.")]


@app.callback()
def _options(
    context: typer.Context, debug: Annotated[bool, typer.Option(help="Show tracebacks.")] = False
) -> None:
    context.obj = debug


@app.command()
def serve(
    spec: SpecFile = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on, instead of http.host.")] = None,
    port: Annotated[
        int | None, typer.Option(help="Port to listen on, instead of http.port.", min=1, max=65535)
    ] = None,
) -> None:
    """Start a cluster on this machine and serve until Ctrl-C."""
    from deploy.serve import serve as run

    run(spec, host, port, console)


@app.command()
def status(
    url: Url = "http://127.0.0.1:8000",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the workers of a running cluster."""
    from deploy.status import fetch, show

    found = fetch(url)
    if as_json:
        console.print_json(data=found)
    else:
        show(found, console)


@app.command()
def config(
    spec: SpecFile = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the reference of all fields.")] = False,
) -> None:
    """Check a configuration and print it with all defaults filled in."""
    from cluster.spec import load_spec
    from deploy.reference import markdown as reference
    from deploy.serve import default_spec

    if markdown:
        print(reference(), end="")
        return
    checked = load_spec(spec) if spec is not None else default_spec()
    print(yaml.safe_dump(checked.model_dump(mode="json"), sort_keys=False), end="")


app.command()(bench)


@app.command()
def version() -> None:
    """Print the version."""
    print(importlib.metadata.version("headrace"))


def main() -> None:
    """The entry point: 0 if all went well, 2 for an error that the user can mend."""
    try:
        app()
    except HeadraceError as error:
        if "--debug" in sys.argv:
            raise
        errors.print(f"headrace: {error.message}", style="red", markup=False, highlight=False, soft_wrap=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
