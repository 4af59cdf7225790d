"""Watts, money and pictures as a person asks for them."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from model_zoo import llama8b
from terazi.cli.main import main
from terazi.service.prices import load_prices

MACHINE = "RTX 4090 + 64GiB ddr5"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(llama8b(tmp_path_factory.mktemp("models") / "Llama-3.1-8B-Instruct-Q4_K_M.gguf"))


@pytest.fixture(autouse=True)
def _no_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("TERAZI_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


def test_weigh_tells_watts_cap_supply_and_month(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["weigh", model, "--on", MACHINE, "--price-per-kwh", "0.3", "--psu", "850", "--currency", "EUR"]) == 0
    )
    page = capsys.readouterr().out
    for text in (
        "power (at the wall",
        "million tokens out",
        "EUR",
        "power cap",
        "W on CUDA0",
        "BTU/h",
        "a month at 25%",
    ):
        assert text in page
    assert page.count("million tokens out") == 1


def test_weigh_in_json_carries_the_report(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["weigh", model, "--on", MACHINE, "--json", "--duty", "0.5"]) == 0
    power = json.loads(capsys.readouterr().out)["power"]
    assert power["schema"] == "terazi.power/1"
    assert power["month"]["duty"] == 0.5
    assert power["phases"][0]["cost_per_mtok"] is None
    assert power["cap"]["curve"][-1]["speed"] == pytest.approx(1.0)


def test_terms_from_the_configuration(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "terazi.toml").write_text('[power]\nprice_per_kwh = 0.25\ncurrency = "CHF"\nhost_load_w = 77\n')
    assert main(["weigh", model, "--on", MACHINE]) == 0
    page = capsys.readouterr().out
    assert "CHF" in page
    assert "77 W at work, as you said" in page
    assert main(["weigh", model, "--on", MACHINE, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    said = document["forecast"]
    assert said["cost_per_mtok"]["mid"] == pytest.approx(0.25 * said["kwh_per_mtok"]["mid"])
    assert not any(text.startswith("no cost") for text in said["basis"])


def test_pictures_are_written_whole(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drawn, page = tmp_path / "map.svg", tmp_path / "map.html"
    assert main(["weigh", model, "--on", MACHINE, "--svg", str(drawn), "--html", str(page)]) == 0
    assert "drawn:" in capsys.readouterr().err
    root = ET.fromstring(drawn.read_text())  # noqa: S314 - it is our own
    assert root.tag.endswith("svg")
    text = page.read_text()
    assert text.startswith("<!doctype html>")
    assert "<script" not in text
    assert "Power caps" in text
    assert not list(tmp_path.glob("*.part"))


def test_a_place_that_can_not_be_written(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["weigh", model, "--on", MACHINE, "--svg", str(tmp_path / "none" / "map.svg")]) == 2
    assert "can't be written" in capsys.readouterr().err


def test_a_refusal_is_drawn_too(model: str, tmp_path: Path) -> None:
    drawn = tmp_path / "map.svg"
    line = ["weigh", model, "--on", "RTX 3060 12GB + 1GiB", "--context", "131072", "--svg", str(drawn)]
    assert main(line) == 3
    assert "MISSING" in drawn.read_text()


def test_cost_compares_own_rented_and_api(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cost", model, "--on", MACHINE, "--price-per-kwh", "0.3", "--duty", "0.3"]) == 0
    page = capsys.readouterr().out
    for text in ("own hardware", "DeepInfra", "Modal", "RunPod", "2026-", "own is cheaper", "control", "https://"):
        assert text in page


def test_cost_in_json(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["cost", model, "--on", MACHINE, "--price-per-kwh", "0.3", "--mtok", "50", "--ratio", "4:1", "--json"]
    assert main(line) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "terazi.cost/1"
    volume = document["volume"]
    assert volume["tokens_in"] / volume["tokens_out"] == pytest.approx(4)
    assert (volume["tokens_in"] + volume["tokens_out"]) / 1e6 == pytest.approx(50)
    assert {option["kind"] for option in document["hosted"]} == {"hyperscaler", "gpu cloud", "serverless", "api"}
    assert all(option["as_of"] and option["source"] for option in document["hosted"])


def test_own_prices_and_another_currency(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text(
        'currency = "EUR"\n[[api]]\nprovider = "Mine"\nmatch = "llama 3.1 8b"\nper_mtok_in = 5\nper_mtok_out = 9\n'
        'date = "2026-11-30"\nsource = "a letter"\n'
    )
    line = ["cost", model, "--on", MACHINE, "--price-per-kwh", "0.3", "--currency", "EUR", "--prices", str(mine)]
    assert main([*line, "--mtok", "10", "--hardware-price", "0"]) == 0
    page = capsys.readouterr().out
    assert "Mine" in page
    assert "a letter" in page
    assert "DeepInfra" not in page
    assert "exchange-rate" in page
    assert main([*line, "--mtok", "10", "--exchange-rate", "0.9"]) == 0
    assert "DeepInfra" in capsys.readouterr().out


@pytest.mark.parametrize(
    "wrong",
    [
        ["--mtok", "1", "--duty", "0.5"],
        ["--ratio", "4"],
        ["--ratio", "4:0"],
        ["--ratio", "2:1", "--prompt", "10"],
        ["--prices", "nowhere.toml"],
        ["--duty", "1.5"],
        ["--residual", "1"],
    ],
)
def test_what_can_not_be_meant(model: str, wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cost", model, "--on", MACHINE, *wrong]) == 2
    assert "hint:" in capsys.readouterr().err


def test_packaged_prices_are_dated_sourced_and_of_known_cards() -> None:
    from terazi.hardware.probe import load_catalogue

    prices, notes = load_prices(None, currency="USD", exchange_rate=None)
    assert notes == ()
    names = {record.name for record in load_catalogue().records}
    assert {offer.card for offer in prices.rents} <= names
    assert {price.name for price in prices.cards} <= names
    dated = [(row.date, row.source) for row in prices.cards]
    dated += [(row.date, row.source) for row in prices.rents]
    dated += [(row.date, row.source) for row in prices.apis]
    assert len(dated) > 40
    assert all(date and source.startswith("http") for date, source in dated)
    assert {offer.kind for offer in prices.rents} == {"hyperscaler", "gpu cloud", "serverless"}
