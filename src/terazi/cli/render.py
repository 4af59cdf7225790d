"""A weighing for people: what it is, where it goes (a picture to scale), what it costs, and why.

Pure text in, text out. Each kind of byte has a glyph of its own, so that the picture reads without colour.
"""

from collections.abc import Iterable, Sequence

from terazi.cli.terminal import harmless, one_line
from terazi.memory.bill import HOST, Bill, BillLine
from terazi.models.spec import ModelSpec
from terazi.performance.forecast import Forecast, Interval
from terazi.placement.plan import DeviceShare, Plan, Refusal, Verdict
from terazi.service.weighing import Weighing
from terazi.units import format_bytes, format_figure, format_seconds

BAR_WIDTH = 44
#: (glyph, name, attribute of DeviceShare), in the order of the bar.
TERMS = (
    ("█", "weights", "weights_bytes"),
    ("▓", "KV cache", "kv_bytes"),
    ("▒", "state", "state_bytes"),
    ("░", "compute", "compute_bytes"),
    ("#", "overhead", "overhead_bytes"),
    ("=", "beside the model", "beside_bytes"),
)
#: How many times the largest card a host may be before its bar gets a scale of its own.
_LARGE_HOST = 3
FREE, OVER = "·", "!"

_VERDICTS = {
    Verdict.FITS: "fits",
    Verdict.FITS_OFFLOADED: "fits, with a part in RAM",
    Verdict.REFUSED: "REFUSED: it would not fit",
}


def render_weighing(weighing: Weighing) -> str:
    """The whole page."""
    outcome = weighing.outcome
    parts = [
        _headline(weighing),
        render_map(weighing.shares),
        render_bill(outcome.bill, [s.id for s in weighing.shares]),
    ]
    if weighing.verification is not None:
        from terazi.cli.render_verification import render_verification

        parts.append(render_verification(weighing.verification))
    if weighing.forecast is not None:
        parts.append(render_forecast(weighing.forecast, at_the_wall=weighing.power is not None))
    if weighing.power is not None:
        from terazi.cli.render_power import render_power

        parts.append(render_power(weighing.power))
    if isinstance(outcome, Refusal):
        parts.append(_refusal(outcome))
    else:
        parts.append(_bullets("why so", outcome.reasons))
        parts.append(_bullets("not taken", [f"{one_line(r.option)}: {r.why}" for r in outcome.rejected]))
    parts.append(_verdict(outcome))
    return harmless("\n\n".join(part for part in parts if part))


def _headline(weighing: Weighing) -> str:
    spec, machine, workload = weighing.spec, weighing.machine, weighing.workload
    size = (
        f"{_count(spec.parameter_count)} parameters, {spec.quantisation}, {spec.block_count} layers and the output"
    )
    context = f"context {workload.context}" if workload.context else "context chosen below"
    lengths = f"prompts of {workload.prompt} and answers of {workload.output} tokens"
    lines = [
        f"{title_of(weighing)}: {one_line(spec.architecture)}, {size}, {_file(spec)}",
        f"on {one_line(machine.name)}: {_host(weighing)}",
        f"for {workload.users} user{'s' * (workload.users > 1)}, {context}, {lengths}",
    ]
    return "\n".join(lines)


def _file(spec: ModelSpec) -> str:
    return f"file {format_bytes(spec.file_bytes)}" if spec.file_bytes else "no file of weights read"


def title_of(weighing: Weighing) -> str:
    """The file's name: a header's own idea of its name is often a training run's.

    Files that bear no name of their own (Ollama's blobs, shards) go by what was asked for.
    """
    spec = weighing.spec
    if spec.origin.startswith("ollama:"):
        return one_line(spec.origin.removeprefix("ollama:"))
    if spec.format != "gguf" or not spec.files:
        return one_line(spec.name)
    path = spec.files[0].path
    # hf:org/repo@revision:folder/file.gguf
    return one_line((path.rpartition(":")[2] if path.startswith("hf:") else path).rpartition("/")[2])


def _host(weighing: Weighing) -> str:
    host = weighing.machine.host
    parts = [f"{host.cores} core{'s' * (host.cores > 1)}", f"{format_bytes(host.ram_total_bytes)} RAM"]
    parts.append(f"{format_bytes(host.usable_ram_bytes)} of it usable now")
    return ", ".join(parts)


def render_map(shares: Sequence[DeviceShare]) -> str:
    """The device map: one bar a device with its layers and its headroom.

    All bars have one scale, but for a host so large beside the cards that theirs would shrink to nothing: its bar
    then has its own, and says so.
    """
    sizes = {s.id: max(s.capacity_bytes, s.total_bytes, 1) for s in shares}
    cards = max((size for name, size in sizes.items() if name != HOST), default=0)
    host_apart = cards > 0 and sizes.get(HOST, 0) > _LARGE_HOST * cards
    common = cards if host_apart else max(sizes.values(), default=1)
    width = max((len(s.id) for s in shares), default=0)
    lines = ["device map"]
    for share in shares:
        apart = host_apart and share.id == HOST
        bar = _bar(share, sizes[HOST] if apart else common)
        lines.append(f"  {share.id:<{width}} |{bar:<{BAR_WIDTH}}| {_caption(share)}")
        scale = " (bar to its own scale)" if apart else ""
        lines.append(f"  {'':<{width}}  {one_line(share.name)}, {_layers(share)}{scale}")
        lines += [f"  {'':<{width}}  {text}" for text in _memory(share)]
    used = [f"{glyph} {name}" for glyph, name, field in TERMS if any(getattr(s, field) for s in shares)]
    if any(s.total_bytes > s.capacity_bytes for s in shares):
        used.append(f"{OVER} missing")
    lines.append(f"  {'  '.join([*used, f'{FREE} free'])}")
    return "\n".join(lines)


def _bar(share: DeviceShare, scale: int) -> str:
    """Cells by largest remainder of the running sum, so that the bar's length is right to half a cell."""
    cells, done = "", 0.0
    for glyph, _, field in TERMS:
        done += getattr(share, field) / scale * BAR_WIDTH
        cells += glyph * (round(done) - len(cells))
    room = round(share.capacity_bytes / scale * BAR_WIDTH)
    if len(cells) > room:
        return cells[:room] + OVER * (len(cells) - room)
    return cells + FREE * (room - len(cells))


def _caption(share: DeviceShare) -> str:
    spare = share.headroom_bytes
    tail = f"{format_bytes(spare)} free" if spare >= 0 else f"{format_bytes(-spare)} MISSING"
    return f"{format_bytes(share.total_bytes)} of {format_bytes(share.capacity_bytes)} usable, {tail}"


def _layers(share: DeviceShare) -> str:
    if share.layers is None:
        return "no layer"
    first, last = share.layers
    return f"layer {first}" if first == last else f"layers {first}–{last}"


def _memory(share: DeviceShare) -> list[str]:
    """What kind of memory it is, where kinds differ, and the peak where it is above what stays."""
    kinds = [
        f"{format_bytes(size)} {name}"
        for size, name in (
            (share.anonymous_bytes, "anonymous"),
            (share.pinned_bytes, "pinned"),
            (share.page_cache_bytes, "file pages"),
        )
        if size
    ]
    said = []
    if kinds:
        besides = f" ({format_bytes(share.process_bytes)} of it the program itself)" if share.process_bytes else ""
        said.append(f"{', '.join(kinds)}{besides}")
    if share.loading_bytes:
        said.append(f"{format_bytes(share.peak_bytes)} at the peak while loading")
    return said


def render_bill(bill: Bill, devices: Sequence[str]) -> str:
    """The lines in the order of *devices*, their formula and basis, and what may come on top later."""
    lines = [f"bill ({bill.engine} {bill.build})"]
    order = {device: i for i, device in enumerate(devices)}
    lines += _rows(sorted(bill.lines, key=lambda line: order.get(line.device, len(order))))
    lines.append(f"  {'total':<39} {format_bytes(bill.total_bytes):>12}")
    if bill.process:
        lines.append("  besides its buffers, the program itself:")
        lines += _rows(bill.process)
    if bill.loading:
        lines.append("  only while loading:")
        lines += _rows(bill.loading)
    if bill.page_cache:
        lines.append("  besides, file pages that the kernel drops when it needs the room:")
        lines += _rows(bill.page_cache)
    if bill.growth:
        lines.append("  may grow later, at most:")
        lines += _rows(bill.growth)
    if not bill.exact:
        lines.append("  NOT EXACT, an upper bound: " + "; ".join(bill.reasons))
    return "\n".join(lines)


def _rows(lines: Iterable[BillLine]) -> list[str]:
    return [
        f"  {line.device:<8} {line.term.value:<9} {line.formula:<20} {format_bytes(line.bytes):>12}  "
        f"{f'[{line.part}] ' if line.part else ''}{line.basis.value}{'; ' + line.note if line.note else ''}"
        for line in lines
        if line.bytes
    ]


def render_forecast(forecast: Forecast, *, at_the_wall: bool = False) -> str:
    """Every figure as low … mid … high, and what it rests on; power only if it isn't told *at_the_wall* besides."""
    rows = [
        ("one stream", forecast.decode_tok_s, "tok/s"),
        ("all streams", forecast.throughput_tok_s, "tok/s"),
        ("prompt", forecast.prefill_tok_s, "tok/s"),
    ]
    lines = ["forecast (80 % of measurements should lie between the outer figures)"]
    lines += [f"  {name:<20} {_interval(value, unit)}" for name, value, unit in rows]
    lines.append(f"  {'first token after':<20} {_seconds(forecast.ttft_s)}")
    lines.append(f"  {'between tokens':<20} {_seconds(forecast.itl_s)}")
    if forecast.users_at_slo is not None:
        lines.append(f"  {'within the limits':<20} {_interval(forecast.users_at_slo, 'users at once')}")
    if forecast.power_w is not None and not at_the_wall:
        lines.append(f"  {'power':<20} {_interval(forecast.power_w, 'W')}")
    if forecast.kwh_per_mtok is not None and not at_the_wall:
        lines.append(f"  {'energy':<20} {_interval(forecast.kwh_per_mtok, 'kWh per million tokens')}")
    if forecast.cost_per_mtok is not None and not at_the_wall:
        lines.append(f"  {'cost':<20} {_interval(forecast.cost_per_mtok, 'per million tokens')}")
    lines += [f"  rests on: {text}" for text in forecast.basis]
    return "\n".join(lines)


def _interval(value: Interval, unit: str) -> str:
    figures = " … ".join(format_figure(v) for v in (value.low, value.mid, value.high))
    return f"{figures} {unit}"


def _seconds(value: Interval) -> str:
    return " … ".join(format_seconds(v) for v in (value.low, value.mid, value.high))


def _refusal(refusal: Refusal) -> str:
    lines = [f"refused: {refusal.reason}"]
    if refusal.alternatives:
        lines.append("what fits instead:")
        lines += [
            f"  {a.change}: {format_bytes(a.total_bytes)} in all, gives up {a.gives_up}"
            for a in refusal.alternatives
        ]
    return "\n".join(lines)


def _bullets(title: str, texts: Sequence[str]) -> str:
    return "\n".join([title, *(f"  - {text}" for text in texts)]) if texts else ""


def _verdict(outcome: Plan | Refusal) -> str:
    if isinstance(outcome, Refusal):
        return f"verdict: {_VERDICTS[Verdict.REFUSED] if outcome.shortfall else 'REFUSED'}"
    devices = " + ".join(s.id for s in outcome.devices if s.total_bytes) or HOST
    return f"verdict: {_VERDICTS[outcome.verdict]} ({devices}; plan {outcome.id})"


def _count(n: int) -> str:
    for size, suffix in ((10**12, "T"), (10**9, "B"), (10**6, "M")):
        if n >= size:
            return f"{n / size:.1f} {suffix}"
    return str(n)
