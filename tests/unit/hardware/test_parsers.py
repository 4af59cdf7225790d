"""Texts of /proc, control groups, PCI and the NVIDIA child, one trap each."""

import json

import pytest

from terazi.hardware.machine import Basis, PcieLink
from terazi.hardware.parse_cgroup import GroupFiles, GroupFolder, cpu_quota, find_folder, tightest_memory
from terazi.hardware.parse_nvml import parse_nvml
from terazi.hardware.parse_pci import LinkFiles, addresses_in, is_display, normal_address, path_link
from terazi.hardware.parse_proc import parse_cpu_list, parse_cpuinfo, parse_meminfo, parse_memlock_limit

GIB = 1024**3


def test_meminfo_of_a_kernel_without_its_own_estimate() -> None:
    text = "MemTotal: 1000 kB\nMemFree: 100 kB\nBuffers: 20 kB\nCached: 300 kB\nSwapTotal: 50 kB\nSwapFree: 10 kB\n"
    found = parse_meminfo(text)
    assert found is not None
    assert found.available_bytes == 420 * 1024
    assert found.swap_used_bytes == 40 * 1024
    assert parse_meminfo("nonsense") is None


def test_cpuinfo_of_a_raspberry_pi_names_the_board() -> None:
    text = (
        "processor\t: 0\nFeatures\t: fp asimd crc32\nCPU implementer\t: 0x99\n\nModel\t\t: Raspberry Pi 5 Model B\n"
    )
    found = parse_cpuinfo(text)
    assert (found.name, found.cpus, found.isa) == ("Raspberry Pi 5 Model B", (0,), frozenset({"neon"}))
    assert parse_cpuinfo("").name is None


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("0-3,8\n", (0, 1, 2, 3, 8)), ("", ()), ("5", (5,)), ("3-1", ()), ("a-b,2", (2,)), ("0-99999999999", ())],
)
def test_cpu_lists(text: str, cpus: tuple[int, ...]) -> None:
    assert parse_cpu_list(text) == cpus


def test_a_hybrid_system_uses_the_hierarchy_that_has_the_controller() -> None:
    cgroup = "4:memory:/a/b\n2:cpu,cpuacct:/c\n0::/user.slice\n"
    mounts = (
        "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
        "41 31 0:38 / /sys/fs/cgroup/unified rw shared:1 - cgroup2 cgroup2 rw\n"
    )
    assert find_folder("memory", cgroup, mounts) == GroupFolder(
        mount="/sys/fs/cgroup/memory", group="/a/b", version=1
    )
    assert find_folder("cpu", cgroup, mounts) == GroupFolder(
        mount="/sys/fs/cgroup/unified", group="/user.slice", version=2
    )
    assert find_folder("memory", "", "") is None


def test_the_chain_goes_up_to_the_mount_and_no_further() -> None:
    folder = GroupFolder(mount="/sys/fs/cgroup", group="/a/../../b", version=2)
    assert folder.chain() == ("/sys/fs/cgroup/a/b", "/sys/fs/cgroup/a", "/sys/fs/cgroup")


def test_the_tightest_limit_is_the_one_that_leaves_least() -> None:
    own = GroupFiles(limits=("max", str(4 * GIB)), usage=str(GIB), stat="inactive_file 0")
    parent = GroupFiles(limits=(str(8 * GIB), None), usage=str(7 * GIB), stat=None)
    found = tightest_memory([own, parent])
    assert found is not None
    assert (found.limit_bytes, found.used_bytes) == (8 * GIB, 7 * GIB)
    assert tightest_memory([GroupFiles(limits=("max", None), usage="1", stat=None)]) is None
    assert tightest_memory([GroupFiles(limits=("9223372036854771712",), usage="1", stat=None)]) is None


@pytest.mark.parametrize(
    ("v2", "quota", "period", "cpus"),
    [("150000 100000\n", None, None, 1.5), ("max 100000", None, None, None), (None, "-1", "100000", None),
     (None, "50000\n", "100000\n", 0.5), (None, None, None, None), ("1", None, None, None), (None, "1", "0", None)],
)  # fmt: skip
def test_cpu_quotas(v2: str | None, quota: str | None, period: str | None, cpus: float | None) -> None:
    assert cpu_quota(v2, quota, period) == cpus


def hop(speed: str | None, width: str | None, now: str | None = None) -> LinkFiles:
    return LinkFiles(max_speed=speed, max_width=width, current_width=now)


def test_the_path_is_as_slow_as_its_slowest_hop_and_as_narrow_as_its_narrowest() -> None:
    hops = [
        hop("16.0 GT/s PCIe", "16", "16"),
        hop("8.0 GT/s PCIe", "16", "16"),
        hop("32.0 GT/s PCIe", "4", "4"),
    ]
    assert path_link(hops) == PcieLink(generation=3, lanes=4, basis=Basis.READ)


def test_a_narrow_current_width_is_real_and_a_zero_is_not() -> None:
    assert path_link([hop("16.0 GT/s PCIe", "16", "8")]) == PcieLink(generation=4, lanes=8, basis=Basis.READ)
    assert path_link([hop("16.0 GT/s PCIe", "16", "0"), hop("Unknown", "255", "0")]) == PcieLink(
        generation=4, lanes=16, basis=Basis.READ
    )
    assert path_link([hop(None, None)]) is None
    assert path_link([]) is None


def test_pci_addresses() -> None:
    path = "/sys/devices/pci0000:00/0000:00:01.0/0000:0A:00.0"
    assert addresses_in(path) == ("0000:00:01.0", "0000:0a:00.0")
    assert normal_address("00000000:0A:00.0") == "0000:0a:00.0"
    assert normal_address("0000000F:01:00.0") == "000f:01:00.0"
    assert (is_display("0x030200\n"), is_display("0x120000"), is_display("0x040300"), is_display(None)) == (
        True, True, False, False,
    )  # fmt: skip


def test_half_an_answer_is_still_an_answer() -> None:
    whole = json.dumps({"kind": "gpu", "index": 0, "name": "NVIDIA L4", "memory_total": 24 * GIB})
    report = parse_nvml(whole + '\n{"kind": "gpu", "ind')
    assert [g.name for g in report.gpus] == ["NVIDIA L4"]
    assert not report.complete


def test_answers_of_the_wrong_type_are_unknown() -> None:
    lines = ['{"kind":"gpu","index":"x","memory_total":-5,"pcie_gen_max":true,"name":7}', "[1]", "null", "{}"]
    (gpu,) = parse_nvml("\n".join(lines)).gpus
    assert (gpu.memory_total_bytes, gpu.pcie, gpu.name) == (None, None, "NVIDIA GPU")


LIMITS = (
    "Limit                     Soft Limit           Hard Limit           Units\n"
    "Max locked memory         {}              8388608              bytes\n"
)


@pytest.mark.parametrize(
    ("soft", "capabilities", "expected"),
    [
        ("65536", "0000000000000000", 65536),
        ("unlimited", "0000000000000000", None),
        ("65536", "0000000000004000", None),  # CAP_IPC_LOCK
        ("65536", "000001ffffffffff", None),
    ],
)
def test_locked_memory_has_a_limit_unless_a_capability_lifts_it(
    soft: str, capabilities: str, expected: int | None
) -> None:
    status = f"Name:\tsh\nCapEff:\t{capabilities}\n"
    assert parse_memlock_limit(LIMITS.format(soft), status) == expected
    assert parse_memlock_limit("", "") is None
