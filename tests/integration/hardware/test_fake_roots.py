"""Machines that aren't here, as trees of /proc and /sys files: laptop, VM, containers, AMD, Intel, NUMA, ARM."""

from pathlib import Path

import pytest

from terazi.hardware.machine import Basis, Machine
from terazi.hardware.probe import read_machine

GIB = 1024**3
MIB = 1024**2


class Root:
    """A folder that stands for ``/``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, files: dict[str, str]) -> None:
        for name, text in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def link(self, name: str, target: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(self.folder / target)

    def pci(self, folder: str, **files: str) -> str:
        """A PCI device at ``sys/devices/<folder>``, linked from the bus; returns that path."""
        path = f"sys/devices/{folder}"
        self.write({f"{path}/{name}": text + "\n" for name, text in files.items()})
        self.link(f"sys/bus/pci/devices/{Path(folder).name}", path)
        return path

    def read(self) -> Machine:
        return read_machine(str(self.folder))


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(tmp_path)


def cpuinfo(cpus: int, *, model: str, flags: str, sockets: int = 1, threads: int = 1) -> str:
    per_socket = cpus // sockets
    return "".join(
        f"processor\t: {n}\nvendor_id\t: GenuineIntel\nmodel name\t: {model}\nphysical id\t: {n // per_socket}\n"
        f"siblings\t: {per_socket}\ncpu cores\t: {per_socket // threads}\nflags\t\t: fpu {flags}\n\n"
        for n in range(cpus)
    )


def meminfo(total: int, available: int, swap: int = 0, swap_free: int = 0) -> str:
    return (
        f"MemTotal: {total // 1024:>15} kB\nMemFree: 1000 kB\nMemAvailable: {available // 1024} kB\n"
        f"SwapTotal: {swap // 1024} kB\nSwapFree: {swap_free // 1024} kB\nHugePages_Total: 0\n"
    )


V2_MOUNT = "29 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"


def test_laptop(root: Root) -> None:
    root.write(
        {
            "proc/cpuinfo": cpuinfo(
                12, model="12th Gen  Intel(R) Core(TM) i5-1240P", flags="sse2 avx avx2 fma f16c avx_vnni", threads=2
            ),
            "proc/meminfo": meminfo(16 * GIB, 9 * GIB, swap=4 * GIB, swap_free=3 * GIB),
            "proc/self/cgroup": "0::/user.slice/app.slice/term.scope\n",
            "proc/self/mountinfo": V2_MOUNT,
            "sys/fs/cgroup/user.slice/memory.max": "max\n",
        }
    )  # fmt: skip
    root.pci("pci0000:00/0000:00:02.0", vendor="0x8086", device="0x46a6", **{"class": "0x030000"}, revision="0x0c")
    root.link("sys/class/drm/card0/device", "sys/devices/pci0000:00/0000:00:02.0")
    machine = root.read()
    host = machine.host
    assert host.cpu_name == "12th Gen Intel(R) Core(TM) i5-1240P"
    assert {"avx2", "fma", "avx_vnni"} <= host.isa
    assert (host.cores, host.sockets) == (12, 1)
    assert (host.ram_total_bytes, host.ram_available_bytes) == (16 * GIB, 9 * GIB)
    assert (host.swap_total_bytes, host.swap_used_bytes) == (4 * GIB, GIB)
    assert host.memory_limit_bytes is None
    assert host.ram_bandwidth.basis is Basis.ASSUMED
    assert host.flops.value == 6 * 32 * 2.5e9  # six cores, each with two threads
    assert machine.devices == ()
    assert any("0000:00:02.0 is left out" in note for note in machine.notes)


def test_container_with_cgroup_v1_limits(root: Root) -> None:
    """As in a VM with Docker on v1: the container's mount shows its own group as the root of each hierarchy."""
    root.write(
        {
            "proc/cpuinfo": cpuinfo(8, model="AMD EPYC", flags="sse2 avx avx2 fma f16c"),
            "proc/meminfo": meminfo(32 * GIB, 30 * GIB),
            "proc/self/cgroup": "5:memory:/docker/abc\n4:cpuacct,cpu:/docker/abc\n1:name=systemd:/\n0::/\n",
            "proc/self/mountinfo": (
                "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"
                "32 31 0:29 /docker/abc /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n"
                "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
                "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
            ),
            "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{8 * GIB}\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{3 * GIB}\n",
            "sys/fs/cgroup/memory/memory.stat": f"inactive_file 5\ntotal_inactive_file {GIB}\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "250000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        }
    )
    host = root.read().host
    assert host.cores == 2  # 2.5 CPUs' worth, rounded down
    assert host.memory_limit_bytes == 8 * GIB
    assert host.memory_limit_used_bytes == 2 * GIB  # file cache is given back under pressure
    assert host.usable_ram_bytes == 6 * GIB
    assert any("2.5 of 8" in note for note in host.notes)


def test_v1_without_a_limit(root: Root) -> None:
    root.write(
        {
            "proc/cpuinfo": cpuinfo(2, model="X", flags="sse2"),
            "proc/meminfo": meminfo(4 * GIB, 3 * GIB),
            "proc/self/cgroup": "4:memory:/\n1:cpu:/\n",
            "proc/self/mountinfo": (
                "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
                "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
            ),
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        }
    )
    host = root.read().host
    assert host.memory_limit_bytes is None
    assert (host.cores, host.usable_ram_bytes) == (2, 3 * GIB)


def test_nested_v2_limits_the_tightest_binds(root: Root) -> None:
    """A parent that is nearly full binds harder than the group's own smaller limit."""
    root.write(
        {
            "proc/cpuinfo": cpuinfo(16, model="X", flags="sse2"),
            "proc/meminfo": meminfo(64 * GIB, 60 * GIB),
            "proc/self/cgroup": "0::/kube/pod/box\n",
            "proc/self/mountinfo": V2_MOUNT,
            "sys/fs/cgroup/kube/memory.max": f"{32 * GIB}\n",
            "sys/fs/cgroup/kube/memory.current": f"{31 * GIB}\n",
            "sys/fs/cgroup/kube/memory.stat": "anon 1\ninactive_file 0\n",
            "sys/fs/cgroup/kube/cpu.max": "400000 100000\n",
            "sys/fs/cgroup/kube/pod/memory.max": "max\n",
            "sys/fs/cgroup/kube/pod/memory.high": f"{20 * GIB}\n",
            "sys/fs/cgroup/kube/pod/memory.current": f"{2 * GIB}\n",
            "sys/fs/cgroup/kube/pod/box/memory.max": f"{16 * GIB}\n",
            "sys/fs/cgroup/kube/pod/box/memory.current": f"{2 * GIB}\n",
            "sys/fs/cgroup/kube/pod/box/cpu.max": "max 100000\n",
        }
    )
    host = root.read().host
    assert (host.memory_limit_bytes, host.memory_limit_used_bytes) == (32 * GIB, 31 * GIB)
    assert host.usable_ram_bytes == GIB
    assert host.cores == 4


def amd(
    root: Root, card: str, folder: str, *, device: str, revision: str, vram: int, used: int, **more: str
) -> None:
    path = root.pci(
        folder, vendor="0x1002", device=device, revision=revision, mem_info_vram_total=str(vram),
        mem_info_vram_used=str(used), mem_info_gtt_total=str(32 * GIB), **{"class": "0x030000"}, **more,
    )  # fmt: skip
    root.link(f"sys/class/drm/{card}/device", path)
    root.write({f"sys/class/drm/{card}-DP-1/status": "connected\n"})


def test_amd_card_in_an_x4_chipset_slot(root: Root) -> None:
    """The card could do x16; a bridge of the chipset in between has four lanes at half the speed."""
    root.write({"proc/meminfo": meminfo(64 * GIB, 60 * GIB)})
    chain = "pci0000:00/0000:00:01.3"
    root.pci(chain, max_link_speed="8.0 GT/s PCIe", max_link_width="4", current_link_width="4")
    chain += "/0000:02:00.0"
    root.pci(chain, max_link_speed="16.0 GT/s PCIe", max_link_width="16", current_link_width="16")
    amd(
        root, "card1", f"{chain}/0000:03:00.0", device="0x744c", revision="0xc8", vram=25753026560, used=300 * MIB,
        max_link_speed="16.0 GT/s PCIe", max_link_width="16", current_link_width="16",
        current_link_speed="2.5 GT/s PCIe",
    )  # fmt: skip
    (card,) = root.read().devices
    assert (card.id, card.name, card.backend) == ("ROCm0", "Radeon RX 7900 XTX", "rocm")
    assert (card.memory_total_bytes, card.memory_free_bytes) == (25753026560, 25753026560 - 300 * MIB)
    assert card.memory_bandwidth.value == 960e9
    assert card.pcie is not None
    assert (card.pcie.generation, card.pcie.lanes, card.pcie.basis) == (3, 4, Basis.READ)
    assert card.pcie.bytes_per_s == pytest.approx(3.94e9, rel=0.01)


def test_amd_cards_are_numbered_by_pci_address_and_an_apu_is_no_device(root: Root) -> None:
    amd(
        root,
        "card0",
        "pci0000:00/0000:00:08.1/0000:0c:00.0",
        device="0x164e",
        revision="0xc9",
        vram=512 * MIB,
        used=20 * MIB,
    )
    amd(
        root,
        "card2",
        "pci0000:00/0000:00:01.1/0000:03:00.0",
        device="0x744c",
        revision="0xcc",
        vram=20 * GIB,
        used=0,
    )
    amd(
        root,
        "card1",
        "pci0000:00/0000:00:03.1/0000:09:00.0",
        device="0x73bf",
        revision="0xc1",
        vram=16 * GIB,
        used=0,
    )
    machine = root.read()
    assert [(d.id, d.name) for d in machine.devices] == [
        ("ROCm0", "Radeon RX 7900 XT"),
        ("ROCm1", "Radeon RX 6800 XT"),
    ]
    assert any("0000:0c:00.0 is left out" in note for note in machine.notes)
    assert [(link.a, link.b, link.kind) for link in machine.links] == [("ROCm0", "ROCm1", "host")]


def test_amd_card_with_an_id_that_several_share(root: Root) -> None:
    amd(
        root,
        "card0",
        "pci0000:00/0000:00:01.1/0000:03:00.0",
        device="0x73bf",
        revision="0xee",
        vram=16 * GIB,
        used=0,
    )
    (card,) = root.read().devices
    assert "RX 6800" in card.name
    assert "RX 6900 XT" in card.name
    assert (card.flops_fp16.value, card.flops_fp16.basis) == (32.33e12, Basis.ASSUMED)  # the slowest of the three


def test_amd_datacentre_card_says_its_own_name(root: Root) -> None:
    amd(
        root, "card0", "pci0000:00/0000:00:01.1/0000:03:00.0", device="0x74a1", revision="0x00",
        vram=205822885888, used=0, product_name="AMD Instinct MI300X OAM",
    )  # fmt: skip
    (card,) = root.read().devices
    assert card.name == "AMD Instinct MI300X OAM"
    assert card.memory_bandwidth.value == 5.3e12


def test_amd_card_that_the_catalogue_lacks(root: Root) -> None:
    amd(
        root,
        "card0",
        "pci0000:00/0000:00:01.1/0000:03:00.0",
        device="0x7fff",
        revision="0x00",
        vram=8 * GIB,
        used=0,
    )
    (card,) = root.read().devices
    assert card.memory_bandwidth.value is None
    assert card.memory_total_bytes == 8 * GIB


#: A PCI ``resource`` file whose third line is a window of the given last address.
WINDOW = (
    "0x0000000084000000 0x0000000084ffffff 0x0000000000140204\n"
    "0x0000000000000000 0x0000000000000000 0x0000000000000000\n"
    "0x0000004000000000 {} 0x000000000014220c\n"
)


@pytest.mark.parametrize(
    ("device", "name", "window_end", "size"),
    [
        ("0xe20b", "Arc B580", "0x00000043ffffffff", 12 * GIB),  # 16 GiB: the next power of two above
        ("0xe20b", "Arc B580", "0x000000400fffffff", 12 * GIB),  # 256 MiB: no resizable BAR
        ("0x56a0", "Arc A770", "0x00000041ffffffff", 8 * GIB),  # the smaller variant of the card
    ],
)
def test_intel_card(root: Root, device: str, name: str, window_end: str, size: int) -> None:
    path = root.pci(
        "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:01.0/0000:03:00.0", vendor="0x8086", device=device,
        revision="0x00", max_link_speed="16.0 GT/s PCIe", max_link_width="8", current_link_width="8",
        resource=WINDOW.format(window_end), **{"class": "0x030000"},
    )  # fmt: skip
    root.link("sys/class/drm/card0/device", path)
    (card,) = root.read().devices
    assert (card.id, card.name, card.backend) == ("SYCL0", name, "sycl")
    assert card.memory_total_bytes == size
    assert card.memory_free_bytes < card.memory_total_bytes
    assert card.pcie is not None
    assert card.pcie.lanes == 8


def test_nvidia_card_without_a_driver(root: Root) -> None:
    root.pci("pci0000:00/0000:00:01.0/0000:01:00.0", vendor="0x10de", device="0x2204", **{"class": "0x030000"})
    root.pci("pci0000:00/0000:00:01.0/0000:01:00.1", vendor="0x10de", device="0x1aef", **{"class": "0x040300"})
    machine = root.read()
    assert machine.devices == ()
    assert any("0000:01:00.0" in n and "no NVIDIA driver" in n and "00.1" not in n for n in machine.notes)


def test_two_numa_nodes(root: Root) -> None:
    root.write(
        {
            "proc/cpuinfo": cpuinfo(
                8, model="Intel(R) Xeon(R) Gold 6130", flags="sse2 avx avx2 fma f16c avx512f", sockets=2
            ),
            "proc/meminfo": meminfo(128 * GIB, 120 * GIB),
            "sys/devices/system/node/online": "0-1\n",
            "sys/devices/system/node/node0/cpulist": "0-3\n",
            "sys/devices/system/node/node0/meminfo": "Node 0 MemTotal:       67108864 kB\nNode 0 MemFree: 1 kB\n",
            "sys/devices/system/node/node1/cpulist": "4,5,6-7\n",
            "sys/devices/system/node/node1/meminfo": "Node 1 MemTotal:       33554432 kB\n",
        }
    )
    host = root.read().host
    assert host.sockets == 2
    assert [(n.id, n.cpus, n.memory_bytes) for n in host.numa] == [
        (0, (0, 1, 2, 3), 64 * GIB),
        (1, (4, 5, 6, 7), 32 * GIB),
    ]


def test_arm_host(root: Root) -> None:
    one = (
        "BogoMIPS\t: 243.75\nFeatures\t: fp asimd evtstrm aes fphp asimdhp cpuid asimdrdm asimddp sve i8mm bf16\n"
        "CPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x1\nCPU part\t: 0xd40\n\n"
    )
    root.write(
        {
            "proc/cpuinfo": "".join(f"processor\t: {n}\n{one}" for n in range(4)),
            "proc/meminfo": meminfo(8 * GIB, 7 * GIB),
        }
    )
    host = root.read().host
    assert host.cpu_name == "ARM Neoverse V1"
    assert {"neon", "dotprod", "i8mm", "bf16", "sve", "fp16"} <= host.isa
    assert (host.cores, host.sockets) == (4, None)


def test_an_empty_root_is_a_machine_with_notes(root: Root) -> None:
    machine = root.read()
    assert machine.host.usable_ram_bytes == 0
    assert machine.host.cores == 1
    assert machine.host.notes
    assert machine.devices == ()
