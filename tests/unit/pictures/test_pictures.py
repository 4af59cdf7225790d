"""Pictures as XML: well-formed, complete in themselves, to scale, nothing outside and nothing on top of another."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from dataclasses import replace

import pytest

from specs import card, llama_70b, llama_spec, machine
from terazi.hardware.machine import Basis, Figure, Link, Machine
from terazi.memory.bill import HOST
from terazi.memory.workload import Workload
from terazi.performance.energy import PowerReport, power_report
from terazi.performance.forecast import forecast, score
from terazi.performance.phases import phases
from terazi.pictures import svg
from terazi.pictures.cap_curve import cap_curve
from terazi.pictures.device_map import device_map
from terazi.pictures.links import brackets
from terazi.pictures.page import Table, page
from terazi.pictures.roofline import roofline
from terazi.placement.plan import DeviceShare, Plan
from terazi.placement.solve import solve

NS = "{http://www.w3.org/2000/svg}"


def _plan(where: Machine, *, big: bool = False) -> Plan:
    spec = llama_70b() if big else llama_spec()
    workload = Workload(context=8192, users=4, prompt=512, output=256)
    plan = solve(spec, where, workload, {}, score=score(spec, where, workload))
    assert isinstance(plan, Plan)
    return plan


def _parse(text: str) -> ET.Element:
    return ET.fromstring(text)  # noqa: S314 - it is our own


def _document(panel: svg.Panel) -> ET.Element:
    return _parse(svg.sheet([panel], title=panel.title, description=panel.description))


def _bars(root: ET.Element, kind: str) -> list[tuple[float, float, float]]:
    """(x, y, width) of the stretches of one kind in the bars, without the legend's swatches."""
    return [
        (float(r.attrib["x"]), float(r.attrib["y"]), float(r.attrib["width"]))
        for r in root.iter(f"{NS}rect")
        if r.get("class") == kind and float(r.attrib["height"]) == 36
    ]


def _pictures(where: Machine, *, big: bool = False) -> list[svg.Panel]:
    plan = _plan(where, big=big)
    spec = llama_70b() if big else llama_spec()
    said = forecast(spec, plan, where, plan.workload)
    report = power_report(spec, plan, where, plan.workload, said)
    assert isinstance(report, PowerReport)
    assert report.cap is not None
    drawn = roofline(where, phases(spec, plan, where, plan.workload, said))
    assert drawn is not None
    return [device_map(where, plan.devices, plan.bill.growth, title="a title"), drawn, cap_curve(report.cap)]


@pytest.mark.parametrize("count", [1, 2, 8])
def test_nothing_leaves_the_sheet_and_nothing_is_fetched(count: int) -> None:
    for panel in _pictures(machine(*(card(i) for i in range(count))), big=count > 1):
        text = svg.sheet([panel], title=panel.title, description=panel.description)
        root = _parse(text)
        assert not re.search(r"<script|href=|@import|url\(['\"]?http|<image|<foreignObject", text)
        height = float(root.attrib["height"])
        for label in root.iter(f"{NS}text"):
            x, size = float(label.attrib["x"]), float(label.attrib["font-size"])
            width = svg.width_of(label.text or "", size, bold="font-weight" in label.attrib)
            left = {"start": x, "middle": x - width / 2, "end": x - width}[label.attrib["text-anchor"]]
            assert left >= 0, label.text
            assert left + width <= svg.WIDTH, label.text
            assert 0 < float(label.attrib["y"]) < height, label.text
        for box in root.iter(f"{NS}rect"):
            if "x" in box.attrib:
                assert (
                    0 <= float(box.attrib["x"]) <= float(box.attrib["x"]) + float(box.attrib["width"]) <= svg.WIDTH
                )


@pytest.mark.parametrize("count", [1, 2, 8])
def test_labels_do_not_lie_on_each_other(count: int) -> None:
    for panel in _pictures(machine(*(card(i) for i in range(count))), big=count > 1):
        boxes = []
        for label in _document(panel).iter(f"{NS}text"):
            x, y, size = (float(label.attrib[k]) for k in ("x", "y", "font-size"))
            width = svg.width_of(label.text or "", size)
            left = {"start": x, "middle": x - width / 2, "end": x - width}[label.attrib["text-anchor"]]
            boxes.append((left, y - 0.75 * size, left + width, y, label.text))
        for i, a in enumerate(boxes):
            for b in boxes[i + 1 :]:
                apart = a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
                assert apart, (a[4], b[4])


def test_bars_are_to_scale() -> None:
    where = machine(card(0), card(1, gib=12, name="GeForce RTX 3060 12 GB", bandwidth=360e9))
    plan = _plan(where, big=False)
    root = _document(device_map(where, plan.devices, (), title="t"))
    shares = [s for s in plan.devices if s.weights_bytes and s.id != HOST]
    drawn = sorted(_bars(root, "weights"), key=lambda b: b[1])[: len(shares)]
    totals = {d.id: d.memory_total_bytes for d in where.devices}
    scale = 660 / max(totals.values())
    for share, (x, _, width) in zip(shares, drawn, strict=True):
        assert width == pytest.approx(max(0.5, share.weights_bytes * scale), abs=0.02)
        assert x == pytest.approx(24 + (totals[share.id] - share.capacity_bytes) * scale, abs=0.02)


def test_every_kind_reads_without_colour() -> None:
    """Each kind of memory has its own pattern, but for the one that is plain."""
    patterns = [kind.pattern for kind in svg.KINDS]
    assert len(set(patterns)) == len(patterns)
    text = svg.sheet([svg.Panel(10, "", "t", "d")], title="t", description="d")
    for pattern in filter(None, patterns):
        assert f'<pattern id="{pattern}"' in text


def test_the_night_has_every_class() -> None:
    text = svg.sheet(_pictures(machine(card(0))), title="t", description="d")
    style = text[text.index("<style>") : text.index("</style>")]
    used = set(re.findall(r'class="([a-z]+)"', text))
    assert used <= set(re.findall(r"\.([a-z]+)", style))


def test_it_tells_those_who_can_not_see_it() -> None:
    root = _document(_pictures(machine(card(0)))[0])
    assert root.attrib["role"] == "img"
    described = " ".join(d.text or "" for d in root.iter(f"{NS}desc"))
    assert "weights" in described
    assert "KV cache" in described
    assert "free" in described
    titles = [t.text for t in root.iter(f"{NS}title")]
    assert all(titles)


def test_hostile_names_stay_text() -> None:
    bad = 'x" onload="alert(1)<script>\x00\x1b[31m\ud800&' + "y" * 400
    plan, where = _plan(machine(card(0))), machine(replace(card(0), name=bad))
    shares = tuple(replace(s, name=bad) for s in plan.devices)
    text = svg.sheet([device_map(where, shares, (), title=bad)], title=bad, description=bad)
    root = _parse(text)
    assert not any("onload" in element.attrib for element in root.iter())
    assert "<script" not in text
    document = page(bad, bad, text, [Table(bad, (bad,), ((bad,),))], [bad])
    assert "<script" not in document


def test_what_does_not_fit_runs_past_the_end_of_its_memory() -> None:
    gib = 2**30
    share = DeviceShare(
        id="CUDA0",
        name="card",
        layers=(0, 9),
        weights_bytes=30 * gib,
        kv_bytes=0,
        state_bytes=0,
        compute_bytes=0,
        overhead_bytes=0,
        total_bytes=30 * gib,
        capacity_bytes=23 * gib,
        headroom_bytes=-7 * gib,
    )
    text = device_map(machine(card(0)), [share], (), title="t").body
    assert "MISSING" in text
    assert "its memory ends here" in text


def _links(pairs: Mapping[tuple[str, str], tuple[str, float | None]]) -> list[Link]:
    return [
        Link(a=a, b=b, kind=kind, bandwidth=Figure(value=rate, basis=Basis.CATALOGUE))
        for (a, b), (kind, rate) in pairs.items()
    ]


def test_a_switch_is_one_bracket_and_bridges_are_one_each() -> None:
    names = ["A", "B", "C", "D"]
    mesh = {(a, b): ("nvlink", 450e9) for i, a in enumerate(names) for b in names[i + 1 :]}
    (whole,) = brackets(_links(mesh), names)
    assert whole.devices == ("A", "B", "C", "D")
    assert "each to each" in whole.name
    bridges = brackets(_links({("A", "B"): ("nvlink", 56e9), ("C", "D"): ("nvlink", 56e9)}), names)
    assert [b.devices for b in bridges] == [("A", "B"), ("C", "D")]
    assert {b.column for b in bridges} == {0}


def test_overlapping_brackets_get_columns_of_their_own() -> None:
    found = brackets(
        _links({("A", "C"): ("nvlink", 1e9), ("B", "D"): ("pcie-p2p", None), ("A", "B"): ("host", 9e9)}),
        ["A", "B", "C", "D"],
    )
    assert len({b.column for b in found}) == 2
    assert {b.rate for b in found} == {"1 GB/s one way", "rate not known"}


def test_the_roofline_says_what_binds() -> None:
    picture = _pictures(machine(card(0)))[1]
    assert "one stream: memory binds" in picture.body
    assert "prompt: arithmetic binds" in picture.body
    assert "ridge at 76 per byte" in picture.body  # 71 TFLOP/s over 936 GB/s


def test_no_roofline_without_both_peaks() -> None:
    where = machine(card(0))
    plan = _plan(where)
    said = forecast(llama_spec(), plan, where, plan.workload)
    work = phases(llama_spec(), plan, where, plan.workload, said)
    blind = machine(card(0, flops=None))
    assert roofline(blind, work) is None


def test_fit_keeps_within_its_width() -> None:
    assert svg.fit("short", 12, 100) == "short"
    cut = svg.fit("a name that is far too long for this", 12, 100)
    assert cut.endswith("…")
    assert svg.width_of(cut, 12) <= 100
    assert not svg.fit("anything", 12, 10)
