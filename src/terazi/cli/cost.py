"""``terazi cost``: own hardware against hosted alternatives, for a month of the same work."""

import argparse
import json
from dataclasses import replace

from terazi.cli import options
from terazi.cli.terminal import tell
from terazi.errors import UsageError
from terazi.memory.workload import Workload
from terazi.service.config import load_config
from terazi.service.costing import CostTerms, cost_report, to_document
from terazi.service.power import power_terms
from terazi.service.prices import load_prices
from terazi.service.weigh import find_machine


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``terazi cost MODEL --on MACHINE``."""
    parser.add_argument("model", metavar="MODEL", help="as for terazi weigh")
    parser.add_argument("--on", metavar="MACHINE", help='this (default), machine.json, or "2x RTX 3090 + 64GiB"')
    parser.add_argument("--json", action="store_true", help="one document, schema terazi.cost/1")
    parser.add_argument("--all", action="store_true", help="every offer, not the three cheapest of a kind")
    options.add_power(parser)
    group = parser.add_argument_group("volume and prices")
    group.add_argument("--mtok", type=_amount, metavar="N", help="million tokens a month, instead of --duty")
    group.add_argument(
        "--ratio", metavar="IN:OUT", help="tokens in to tokens out, e.g. 4:1; sets the prompt's length"
    )
    group.add_argument("--hardware-price", type=_price, metavar="X", help="of your machine (default: its cards)")
    group.add_argument("--months", type=options.natural, metavar="N", help="to write it off over (default 36)")
    group.add_argument(
        "--residual", type=_residual, metavar="SHARE", help="of its price that is left (default 0.2)"
    )
    group.add_argument("--prices", metavar="FILE", help="your own price rows over the packaged ones")
    group.add_argument("--exchange-rate", type=_amount, metavar="X", help="what one USD costs in your currency")
    group.add_argument("--config", metavar="FILE", help="terazi.toml to use")
    options.add_workload(parser)
    options.add_settings(parser)


def run(args: argparse.Namespace) -> int:
    """Exit code 0; what can't be priced is said and left out."""
    if args.mtok is not None and args.duty is not None:
        raise UsageError("--mtok and --duty both say the volume", hint="give one of them")
    config = load_config(args.config)
    table = config.prices
    terms = power_terms(
        config, price_per_kwh=args.price_per_kwh, currency=args.currency, psu_w=args.psu, duty=args.duty
    )
    prices, notes = load_prices(
        args.prices or table.file,
        currency=terms.tariff.currency,
        exchange_rate=args.exchange_rate or table.exchange_rate,
    )
    report = cost_report(
        args.model,
        find_machine(args.on),
        _workload(args),
        options.pins(args),
        CostTerms(
            power=terms,
            prices=prices,
            mtok=args.mtok,
            hardware=table.hardware if args.hardware_price is None else args.hardware_price,
            months=max(1, args.months or table.months),
            residual=table.residual if args.residual is None else args.residual,
        ),
        engine=args.engine,
    )
    if notes:
        comparison = replace(report.comparison, notes=(*report.comparison.notes, *notes))
        report = replace(report, comparison=comparison)
    if args.json:
        print(json.dumps(to_document(report), allow_nan=False))
    else:
        from terazi.cli.render_cost import render_cost

        print(render_cost(report, every=args.all))
    tell([f"note: {note}" for note in report.weighing.notes])
    return 0


def _workload(args: argparse.Namespace) -> Workload:
    workload = options.workload(args)
    if args.ratio is None:
        return workload
    if args.prompt is not None:
        raise UsageError("--ratio and --prompt both say the prompt's length", hint="give one of them")
    parts = args.ratio.split(":")
    try:
        share_in, share_out = (float(part) for part in parts)
    except ValueError:
        share_in = share_out = 0.0
    if not (0 < share_in < 1e6 and 0 < share_out < 1e6):
        raise UsageError(f"--ratio {args.ratio!r} is no ratio", hint="write tokens in to tokens out, e.g. 4:1")
    prompt = max(1, round(workload.output * share_in / share_out))
    if workload.context is not None and prompt + workload.output > workload.context:
        raise UsageError(
            f"a ratio of {args.ratio} makes prompts of {prompt} tokens, more than the context leaves",
            hint=f"give --context {prompt + workload.output} or more, or a shorter --output",
        )
    return replace(workload, prompt=prompt)


_amount = options.number(lambda v: 0 < v < 1e9, "must be a number above 0")
_price = options.number(lambda v: 0 <= v < 1e9, "must be a price, e.g. 1500; 0 if it is paid for")
_residual = options.number(lambda v: 0 <= v < 1, "must be from 0 to below 1, e.g. 0.2")
