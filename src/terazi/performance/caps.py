"""Power caps: what each would leave of the speed, and which one is worth setting.

In: draws, loads and time shares of the phases of one request. Out: the curve and ``CapAdvice``.

The recommended cap is the knee of tokens a second against tokens a joule: the cap with the greatest product of
both, which is the least energy-delay product (Gonzalez and Horowitz, IEEE JSSC 1996), measured at the wall. A
slower request keeps the rest of the computer on for longer, so the host's watts pull the knee up.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from terazi.performance.host_power import Supply, wall_w
from terazi.performance.phases import Phase, RequestMix
from terazi.performance.power import DECODE_CORE_SHARE, Draw

#: Caps below this share of the board power are never advised: an RTX 3090 collapses below 200 of its 350 W
#: (jeanfbrito.github.io, "RTX 3090 power limit", Qwen3.6 27B), and drivers refuse smaller ones still.
LOWEST_SHARE: Final = 0.57
_STEPS: Final = 44
#: A cap that saves less energy than this isn't worth a command.
_WORTH: Final = 0.03


class CapPoint(NamedTuple):
    """One cap on every card: share of the uncapped speed in each phase and of a request, and what that draws."""

    cap_share: float  # of the board power
    prompt_speed: float
    decode_speed: float
    speed: float
    wall_w: float
    joules_per_token: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CapAdvice:
    """The cap of each card at the knee, beside no cap. ``curve`` runs from the lowest cap to none.

    ``caps_w`` is empty where no cap is worth it, and ``words`` says why.
    """

    caps_w: Mapping[str, float]
    speed: float
    wall_w: float
    saved_w: float
    saved_energy: float
    words: str
    curve: tuple[CapPoint, ...]
    knee: int


def advise(
    draws: Mapping[str, Draw],
    prompt: Phase,
    decode: Phase,
    mix: RequestMix,
    *,
    host_w: float,
    supply: Supply,
) -> CapAdvice:
    """The curve over caps on all cards alike, and its knee."""
    shares = [LOWEST_SHARE + (1 - LOWEST_SHARE) * i / (_STEPS - 1) for i in range(_STEPS)]
    curve = tuple(_point(share, draws, prompt, decode, mix, host_w=host_w, supply=supply) for share in shares)
    full = curve[-1]
    knee = max(range(len(curve)), key=lambda i: (curve[i].speed / curve[i].joules_per_token, curve[i].cap_share))
    best = curve[knee]
    saved = 1 - best.joules_per_token / full.joules_per_token
    caps = {name: round(best.cap_share * d.tdp_w / 5) * 5.0 for name, d in draws.items()}
    if saved < _WORTH or best.cap_share >= shares[-1]:
        caps, best, knee, saved = {}, full, len(curve) - 1, 0.0
        words = "no cap is worth it: this workload leaves the cards below their limit for most of the time"
    else:
        words = (
            f"{best.speed:.0%} of the speed for {1 - saved:.0%} of the energy: "
            f"{full.wall_w - best.wall_w:.0f} W less at the wall"
        )
    return CapAdvice(
        caps_w=caps,
        speed=best.speed,
        wall_w=best.wall_w,
        saved_w=full.wall_w - best.wall_w,
        saved_energy=saved,
        words=words,
        curve=curve,
        knee=knee,
    )


def _point(
    share: float,
    draws: Mapping[str, Draw],
    prompt: Phase,
    decode: Phase,
    mix: RequestMix,
    *,
    host_w: float,
    supply: Supply,
) -> CapPoint:
    capped = {name: d.capped(share * d.tdp_w) for name, d in draws.items()}
    in_prompt = phase_speed(capped, prompt, core_share=1.0)
    in_decode = phase_speed(capped, decode, core_share=DECODE_CORE_SHARE)
    prompt_s, decode_s = mix.prompt_s / in_prompt, mix.decode_s / in_decode
    seconds = prompt_s + decode_s
    watts = [
        wall_w(host_w + sum(d.drawn_w(phase.loads[n]) for n, d in capped.items() if n in phase.loads), supply)
        for phase in (prompt, decode)
    ]
    joules = watts[0] * prompt_s + watts[1] * decode_s
    return CapPoint(
        cap_share=share,
        prompt_speed=in_prompt,
        decode_speed=in_decode,
        speed=(mix.prompt_s + mix.decode_s) / seconds,
        wall_w=joules / seconds,
        joules_per_token=joules / mix.tokens,
    )


def phase_speed(draws: Mapping[str, Draw], phase: Phase, *, core_share: float) -> float:
    """The share of a phase's speed that the caps leave: each device slows its own part of the time."""
    busy = {name: load.busy for name, load in phase.loads.items() if name in draws}
    total = max(1.0, sum(busy.values()) + phase.host_busy)
    slower = sum(
        busy[name] / total * (1 / draws[name].speed_at(phase.loads[name], core_share) - 1) for name in busy
    )
    return 1 / (1 + slower)


def cap_commands(advice: CapAdvice, order: Sequence[str]) -> tuple[str, ...]:
    """How the caps are set on NVIDIA cards (root, until the next boot), by the cards' place in *order*."""
    return tuple(
        f"nvidia-smi -i {order.index(name)} -pl {watts:.0f}"
        for name, watts in advice.caps_w.items()
        if name.startswith("CUDA") and name in order
    )
