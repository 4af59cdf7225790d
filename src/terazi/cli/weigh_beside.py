"""``terazi weigh`` with several of something: engines, variations, files of one model, models in one budget."""

import argparse
from dataclasses import replace

from terazi.cli import options
from terazi.cli.shown import exit_code, show
from terazi.errors import UsageError
from terazi.placement.plan import Verdict
from terazi.service.request import Request, weigh_request
from terazi.service.weigh import find_machine
from terazi.service.weighing import Weighing

_BEST = "best"


def run(args: argparse.Namespace) -> int:
    """Exit code 0 if what was asked for fits, 3 if it is refused."""
    request = Request(
        model=args.models[0],
        machine=find_machine(args.on),
        workload=options.workload(args),
        pins=options.pins(args),
        engine=args.engine,
        price_per_kwh=args.price_per_kwh,
        draft=args.draft,
    )
    if len(args.models) > 1 and not args.any:
        if args.compare or args.what_if or args.quant:
            raise UsageError(
                "several models in one budget can't be compared or varied at once",
                hint="say --any if they are files of one model, or weigh one at a time",
            )
        return _several(args, request)
    request, weighing = _chosen(args, request)
    if args.compare:
        return _compare(args, request)
    if args.what_if:
        return _what_if(args, request, weighing or weigh_request(request))
    return show(args, weighing or weigh_request(request))


def _chosen(args: argparse.Namespace, request: Request) -> tuple[Request, Weighing | None]:
    """The request for the file to take, and its weighing if finding it took one."""
    from terazi.models.sources.offers import offers, with_quant

    quant = args.quant
    if quant and quant.lower() != _BEST:
        return replace(request, model=with_quant(request.model, quant)), None
    on_offer = tuple(args.models) if args.any else offers(request.model)
    if len(on_offer) == 1:
        return replace(request, model=on_offer[0]), None
    from terazi.service.choose_file import choose_file

    weighing = choose_file(request, on_offer)
    return replace(request, model=weighing.spec.origin or request.model), weighing


def _compare(args: argparse.Namespace, request: Request) -> int:
    from terazi.service.compare import compare
    from terazi.service.side_by_side import to_json

    found = compare(request)
    shown = found.rows[found.best] if found.best is not None else next(r for r in found.rows if r.weighing)
    if args.json and shown.weighing is not None:
        from terazi.service.document import document_text

        rows = [to_json(row, shown) for row in found.rows]
        best = None if found.best is None else found.rows[found.best].label
        print(document_text(shown.weighing, compare={"rows": rows, "best": best, "why": found.why}))
    else:
        from terazi.cli.render_table import render_comparison

        print(render_comparison(found))
    return 3 if found.best is None else 0


def _what_if(args: argparse.Namespace, request: Request, base: Weighing) -> int:
    from terazi.service.side_by_side import to_json
    from terazi.service.what_if import what_if

    rows = what_if(request, base, tuple(args.what_if))
    if args.json:
        from terazi.service.document import document_text

        print(document_text(base, what_if=[to_json(row, rows[0]) for row in rows]))
    else:
        from terazi.cli.render_table import render_variations

        print(render_variations(rows))
    return exit_code(base)


def _several(args: argparse.Namespace, request: Request) -> int:
    from terazi.service.several import weigh_several

    found = weigh_several([replace(request, model=model) for model in args.models])
    if args.json:
        from terazi.service.document import several_text

        print(several_text(found))
    else:
        from terazi.cli.render import render_weighing
        from terazi.cli.render_table import render_several

        print("\n\n".join([*(render_weighing(w) for w in found.weighings), render_several(found)]))
    return 3 if found.verdict is Verdict.REFUSED else 0
