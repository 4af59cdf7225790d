"""Which card a name means, as people and drivers write it."""

import pytest

from terazi.errors import UsageError
from terazi.hardware.catalogue import find_size_bytes, parse_catalogue
from terazi.hardware.probe import load_catalogue

CATALOGUE = load_catalogue()
GIB = 1024**3
MIB = 1024**2


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("RTX 3090", "GeForce RTX 3090"),
        ("3090", "GeForce RTX 3090"),
        ("rtx3090", "GeForce RTX 3090"),
        ("nvidia geforce  rtx 3090ti", "GeForce RTX 3090 Ti"),
        ("4070 Ti Super", "GeForce RTX 4070 Ti SUPER"),
        ("4070TiSuper", "GeForce RTX 4070 Ti SUPER"),
        ("4070 Ti", "GeForce RTX 4070 Ti"),
        ("4070 super", "GeForce RTX 4070 SUPER"),
        ("GeForce RTX 3060 12GB", "GeForce RTX 3060 12 GB"),
        ("RTX 3060", "GeForce RTX 3060 12 GB"),
        ("RTX 2060", "GeForce RTX 2060"),
        ("RTX 2060 12GB", "GeForce RTX 2060 12 GB"),
        ("H100 SXM", "H100 SXM5 80 GB"),
        ("A100 SXM 40GB", "A100 SXM4 40 GB"),
        ("H200", "H200 SXM 141 GB"),
        ("L40S", "L40S"),
        ("a10", "A10 PCIe"),
        ("A6000", "RTX A6000"),
        ("6000 Ada", "RTX 6000 Ada Generation"),
        ("RTX PRO 6000", "RTX PRO 6000 Blackwell"),
        ("MI300X", "Radeon Instinct MI300X"),
        ("7900xtx", "Radeon RX 7900 XTX"),
        ("MI50 32GB", "Radeon Instinct MI50 32 GB"),
        ("Arc B580", "Arc B580"),
        ("Apple M3 Max 40-core 64GB", "Apple M3 Max (40)"),
        ("M4 Max 128GB", "Apple M4 Max (16c CPU)"),
        ("M4 Max 36GB", "Apple M4 Max (14c CPU)"),
        ("M1", "Apple M1 (8-core GPU)"),
        ("GB10", "DGX Spark (GB10)"),
        ("Strix Halo", "Ryzen AI Max+ 395 / Radeon 8060S (Strix Halo)"),
    ],
)
def test_typed_names(typed: str, name: str) -> None:
    assert CATALOGUE.find(typed).name == name


@pytest.mark.parametrize(
    ("printed", "memory_mib", "name"),
    [
        ("NVIDIA GeForce RTX 3060", 12288, "GeForce RTX 3060 12 GB"),
        ("NVIDIA GeForce RTX 4060 Ti", 16380, "GeForce RTX 4060 Ti 16 GB"),
        ("NVIDIA H100 80GB HBM3", 81559, "H100 SXM5 80 GB"),
        ("NVIDIA H100 PCIe", 81559, "H100 PCIe 80 GB"),
        ("NVIDIA H100 NVL", 95830, "H100 NVL 94 GB"),
        ("NVIDIA A100-SXM4-80GB", 81920, "A100 SXM4 80 GB"),
        ("NVIDIA A100 80GB PCIe", 81920, "A100 PCIe 80 GB"),
        ("NVIDIA A100-PCIE-40GB", 40960, "A100 PCIe 40 GB"),
        ("Tesla V100-SXM2-32GB", 32768, "Tesla V100 SXM2 32 GB"),
        ("Tesla T4", 15360, "Tesla T4"),
        ("NVIDIA A40", 46068, "A40 PCIe"),
        ("NVIDIA H200", 143771, "H200 SXM 141 GB"),
        ("NVIDIA B200", 183359, "B200"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 97887, "RTX PRO 6000 Blackwell"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887, "RTX PRO 6000 Blackwell Server"),
        ("NVIDIA RTX 6000 Ada Generation", 49140, "RTX 6000 Ada Generation"),
        ("AMD Instinct MI300X OAM", 196288, "Radeon Instinct MI300X"),
    ],
)
def test_names_as_drivers_print_them(printed: str, memory_mib: int, name: str) -> None:
    assert CATALOGUE.find(printed, memory_mib * MIB).name == name


@pytest.mark.parametrize(
    ("printed", "memory_mib"),
    [
        ("NVIDIA GeForce RTX 4090 Laptop GPU", 16376),
        ("NVIDIA GeForce RTX 4090 D", 24564),
        ("NVIDIA GeForce RTX 4060 Ti", 8188),
        ("NVIDIA GeForce RTX 3080", 12288),
        ("NVIDIA L40", 46068),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", 97887),
    ],
)
def test_a_sibling_is_never_taken_for_the_card(printed: str, memory_mib: int) -> None:
    assert CATALOGUE.find_or_none(printed, memory_mib * MIB) is None


@pytest.mark.parametrize(
    ("typed", "candidates"),
    [
        ("H100", ["H100 PCIe 80 GB", "H100 SXM5 80 GB", "H100 NVL 94 GB"]),
        ("A100", ["A100 PCIe 40 GB", "A100 PCIe 80 GB", "A100 SXM4 40 GB", "A100 SXM4 80 GB"]),
        ("A100 80GB", ["A100 PCIe 80 GB", "A100 SXM4 80 GB"]),
        ("M4 Max", ["Apple M4 Max (14c CPU)", "Apple M4 Max (16c CPU)"]),
    ],
)
def test_an_ambiguous_name_lists_all_that_it_could_be(typed: str, candidates: list[str]) -> None:
    with pytest.raises(UsageError, match="fits several") as caught:
        CATALOGUE.find(typed)
    assert caught.value.message.partition(": ")[2].split("; ") == candidates


@pytest.mark.parametrize(
    ("typed", "near"),
    [
        ("RTX 3070 Ti", "GeForce RTX 3070"),
        ("L40", "L40S"),
        ("RTX 6000", "RTX 6000 Ada Generation"),
        ("M3 Max 30-core", "Apple M3 Max (40)"),
        ("RTX 3090 48GB", "GeForce RTX 3090"),
        ("GTX 1080", "GeForce GTX 1080 Ti"),
        ("Radeon", "Radeon"),
    ],
)
def test_an_unknown_name_lists_the_nearest(typed: str, near: str) -> None:
    with pytest.raises(UsageError, match="no card named") as caught:
        CATALOGUE.find(typed)
    assert near in caught.value.hint


@pytest.mark.parametrize("typed", ["", "   ", "GPU", "12GB", "🦀", "nvidia geforce rtx"])
def test_a_name_without_a_model_is_unknown(typed: str) -> None:
    with pytest.raises(UsageError):
        CATALOGUE.find(typed)


def test_every_row_is_found_by_its_own_name_and_aliases() -> None:
    for record in CATALOGUE.records:
        for name in (record.name, record.name.upper(), *record.aliases):
            assert CATALOGUE.find(name) is record


def test_rows_hold_what_data_sheets_print() -> None:
    card = CATALOGUE.find("RTX 3090")
    assert (card.memory_min_bytes, card.driver_total_bytes) == (24 * GIB, 24576 * MIB)
    assert card.bandwidth_bytes_per_s == 936.2e9
    assert card.flops_fp16 == 71.2e12  # FP32 accumulation, half of the other column
    assert (card.tdp_w, card.sm_count) == (350, 82)
    assert card.nvlink_bytes_per_s == 56.25e9  # one way
    assert CATALOGUE.find("RTX 4090").nvlink_bytes_per_s is None
    assert CATALOGUE.find("M3 Ultra 96GB").flops_fp16 is None


def test_pascal_counts_with_its_fp32_rate() -> None:
    """FP16 runs at 1:64 there; TechPowerUp prints 11.34 TFLOPS of FP32 for the 1080 Ti and 11.76 for the P40."""
    assert CATALOGUE.find("GTX 1080 Ti").flops_fp16 == pytest.approx(11.34e12, rel=0.01)
    assert CATALOGUE.find("P40").flops_fp16 == pytest.approx(11.76e12, rel=0.01)


def test_what_the_driver_shows_is_never_above_the_nominal_size() -> None:
    for record in CATALOGUE.records:
        if record.driver_total_bytes is not None:
            assert 0.9 * record.memory_min_bytes < record.driver_total_bytes <= record.memory_min_bytes


@pytest.mark.parametrize(
    ("pci_id", "revision", "memory", "names"),
    [
        ("1002:744c", "c8", None, ["Radeon RX 7900 XTX"]),
        ("1002:744c", "00", 20 * GIB, ["Radeon RX 7900 XT"]),
        ("1002:66a1", "00", 32 * GIB, ["Radeon Instinct MI50 32 GB"]),
        ("8086:56a0", "08", None, ["Arc A770"]),
        ("1002:0000", "00", None, []),
    ],
)
def test_pci_ids(pci_id: str, revision: str, memory: int | None, names: list[str]) -> None:
    assert [r.name for r in CATALOGUE.by_pci_id(pci_id, revision, memory)] == names


@pytest.mark.parametrize(
    ("text", "size"),
    [("RTX 3060 12GB", 12 * GIB), ("x 24 GiB y", 24 * GIB), ("512m", 512 * MIB), ("2TB", 2048 * GIB),
     ("1.5GB", 3 * GIB // 2), ("RTX 3090 Ti", None), ("A10G", None), ("GB10", None), ("L40S", None)],
)  # fmt: skip
def test_sizes_in_names(text: str, size: int | None) -> None:
    assert find_size_bytes(text) == size


def test_a_malformed_table_is_a_bug_not_a_guess() -> None:
    with pytest.raises((KeyError, ValueError)):
        parse_catalogue("name,vendor\nX,nvidia\n")
