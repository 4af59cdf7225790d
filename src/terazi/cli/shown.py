"""How one weighing is shown: the page or the document on stdout, notes on stderr, an exit code."""

import argparse
import sys

from terazi.cli.terminal import tell
from terazi.placement.plan import Refusal
from terazi.service.records import with_records
from terazi.service.weighing import Weighing


def show(args: argparse.Namespace, weighing: Weighing) -> int:
    """Print the page or the document of one weighing; returns the exit code."""
    weighing = with_records(weighing)
    if args.verify:
        from terazi.service.verify_bill import verify

        weighing = verify(weighing, lambda step: tell([f"verifying: {step}"]))
    if args.json:
        from terazi.service.document import document_text

        print(document_text(weighing))
    else:
        from terazi.cli.render import render_weighing

        print(render_weighing(weighing))
    for note in (*weighing.notes, *weighing.spec.reasons):
        print(f"note: {note}", file=sys.stderr)
    return exit_code(weighing)


def exit_code(weighing: Weighing) -> int:
    """0 if it fits, 3 if it is refused, 4 if the engine doesn't agree."""
    if weighing.verification is not None and not weighing.verification.agreed:
        return 4
    return 3 if isinstance(weighing.outcome, Refusal) else 0
