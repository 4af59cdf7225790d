"""``[guard]``: how little memory, or how much heat, is too much; each stage takes the ones before it along."""

from pydantic import Field

from terazi.service.config_values import Duration, Size, Table


class PauseTable(Table):
    """``[guard.pause]``: no new requests are let in."""

    ram_free: float = Field(default=0.06, ge=0, lt=1, description="Share of RAM (or of the cgroup) still free.")
    vram_free: float = Field(default=0.01, ge=0, lt=1, description="Share of a card's memory still free.")
    pressure: float = Field(
        default=20, gt=0, le=100, description="Percent of ten seconds in which all work stood still for memory."
    )
    swap_in: Size = Field(default=32 * 1024**2, description="Bytes a second that come back from swap.")
    temperature_c: float = Field(default=95, gt=0, description="Of a card, in degrees Celsius.")
    disk_free: Size = Field(default=512 * 1024**2, description="Bytes left where the state is kept.")


class ShedTable(Table):
    """``[guard.shed]``: idle models are unloaded as well."""

    ram_free: float = Field(default=0.04, ge=0, lt=1, description="Share of RAM (or of the cgroup) still free.")
    vram_free: float = Field(default=0.005, ge=0, lt=1, description="Share of a card's memory still free.")
    pressure: float = Field(
        default=40, gt=0, le=100, description="Percent of ten seconds in which all work stood still for memory."
    )
    swap_in: Size = Field(default=128 * 1024**2, description="Bytes a second that come back from swap.")


class ShrinkTable(Table):
    """``[guard.shrink]``: the largest model is drained and started smaller as well."""

    ram_free: float = Field(default=0.02, ge=0, lt=1, description="Share of RAM (or of the cgroup) still free.")
    vram_free: float = Field(default=0.002, ge=0, lt=1, description="Share of a card's memory still free.")
    pressure: float = Field(
        default=60, gt=0, le=100, description="Percent of ten seconds in which all work stood still for memory."
    )
    swap_in: Size = Field(default=256 * 1024**2, description="Bytes a second that come back from swap.")


class GuardTable(Table):
    """``[guard]``: what is done before the system's own last resort."""

    enabled: bool = Field(default=True, description="Whether memory, heat and disk are watched.")
    every_s: Duration = Field(default=1.0, gt=0, description="Between two looks.")
    settle_s: Duration = Field(default=10.0, description="How long it must be better before a stage is left.")
    pause: PauseTable = PauseTable()
    shed: ShedTable = ShedTable()
    shrink: ShrinkTable = ShrinkTable()
