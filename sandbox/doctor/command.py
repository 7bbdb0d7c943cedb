"""The command: `rocstar sandbox doctor` prints the report, as text or as JSON."""

import argparse
import dataclasses
import json

from rocstar.sandbox.doctor.report import Report, examine


def main(options: argparse.Namespace) -> int:
    """Exit status 1 when no pool can start."""
    report = examine()
    if options.json:
        print(json.dumps(dataclasses.asdict(report), indent=2))
    else:
        show(report)
    return int(report.tier == "none")


def show(report: Report) -> None:
    print(f"tier {report.tier}: {report.why}\n")
    for one in report.layers:
        word = "active" if one.active else "MISSING" if one.required else "absent"
        print(f"{word:<8} {one.name:<17} {one.detail}")
        for label, text in (("cost", one.cost), ("why", one.reason), ("fix", one.fix)):
            if text:
                print(f"{'':<27}{label}: {text}")
    print()
    for limit in report.limits:
        print(f"{limit.name:<11} {limit.value}")
        for label, text in (("note", limit.note), ("fix", limit.fix)):
            if text:
                print(f"{'':<12}{label}: {text}")
