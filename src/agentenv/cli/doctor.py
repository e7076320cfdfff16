"""`agentenv doctor`: what works on this machine, what does not, and how to mend it."""

from __future__ import annotations

from typing import Annotated

import typer

from agentenv.cli.output import JsonFlag, print_json

_MARKS = {
    "ok": ("ok     ", typer.colors.GREEN),
    "limited": ("limited", typer.colors.YELLOW),
    "missing": ("missing", typer.colors.BLUE),
    "failed": ("FAILED ", typer.colors.RED),
}


def doctor(
    as_json: JsonFlag = False,
    start: Annotated[bool, typer.Option("--start/--no-start", help="Whether to really start an environment.")] = True,
) -> None:
    """Looks at everything that AgentENV builds on and starts one environment. Exit code 0 where environments can be used."""
    from agentenv.cli.health.survey import survey, works

    findings = []
    for finding in survey(start_environment=start):
        findings.append(finding)
        if not as_json:
            _print(finding.name, finding.state, finding.summary)
            for label, text in (("mend", finding.remedy), ("without", finding.without)):
                if text and finding.state != "ok":
                    typer.echo(f"{'':9}{label}: {text}")
            for detail in finding.details:
                typer.echo(f"{'':9}- {detail}")
    usable = works(findings)
    if as_json:
        print_json({"ok": usable, "findings": [finding.to_dict() for finding in findings]})
    else:
        verdict = (
            "Environments can be used on this machine." if usable else "Environments cannot be used on this machine yet; see FAILED above."
        )
        typer.secho(verdict, bold=True)
    if not usable:
        raise typer.Exit(1)


def _print(name: str, state: str, summary: str) -> None:
    mark, colour = _MARKS[state]
    typer.echo(f"{typer.style(mark, fg=colour, bold=True)}  {name}: {summary}")
