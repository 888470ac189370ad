"""``tessera import``: submit a job document of another system."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer
import yaml

from tessera.cli.jobs import Vc, say_submitted
from tessera.cli.output import AsJson, err, print_json
from tessera.cli.session import Session
from tessera.cli.specs import read_text
from tessera.results import NOT_SUPPORTED, Job, remarks_of


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("import")(import_file)


def import_file(
    context: typer.Context,
    file: Annotated[str, typer.Argument(help="Document; - reads standard input.")],
    form: Annotated[
        str, typer.Option("--format", help="Format, such as slurm; auto detects it.")
    ] = "auto",
    vc: Vc = "",
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the translation; submit nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Submit a job document of another system, such as a Slurm script.

    Standard error lists fields that were translated with a difference, left out or not supported.
    The portal stores the text with the job. To edit the translation, save the output of --dry-run
    and submit it.
    """
    text = read_text(file)
    session: Session = context.obj
    with session.client() as client:
        answer = client.import_document(text, form=form, virtual_cluster=vc, dry_run=dry_run)
    _say_differences(answer)
    if as_json:
        print_json(dict(answer))
    elif dry_run:
        _print_translation(answer)
    else:
        _say_jobs(answer)


def _say_differences(answer: Mapping[str, Any]) -> None:
    console = err()
    console.print(f"format: {answer.get('format')}", markup=False)
    for remarks in remarks_of(answer):
        style = "yellow" if remarks.heading == NOT_SUPPORTED else "bold"
        console.print(f"[{style}]{remarks.heading}[/]")
        for field, message in remarks.entries:
            place = f"{field}: " if field else ""
            console.print(f"  {place}{message}", markup=False)


def _print_translation(answer: Mapping[str, Any]) -> None:
    spec = answer["spec"] if answer["spec"] is not None else {"nodes": answer["nodes"]}
    typer.echo(yaml.safe_dump(spec, sort_keys=False, allow_unicode=True, width=99), nl=False)
    if answer["spec"] is None:
        err().print(
            "the document describes nodes, not a job: add each with `tessera node add`",
            markup=False,
        )
    elif answer["more"]:
        count = len(answer["more"])
        jobs = "1 more job" if count == 1 else f"{count} more jobs"
        err().print(f"and {jobs} of the same form, one per array task", markup=False)
    if "(redacted)" in str(spec):
        err().print("secrets are not printed: enter them before you submit the translation")


def _say_jobs(answer: Mapping[str, Any]) -> None:
    say_submitted(Job.from_body(answer["job"]))
    numbers = [str(number) for number in answer["jobs"]]
    if len(numbers) > 1:
        typer.echo(f"array tasks: jobs {', '.join(numbers)}")
