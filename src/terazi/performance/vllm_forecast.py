"""The forecast of a vLLM plan: the steps of its stages, many users on it, and how many it can take.

In: ``ModelSpec``, ``Plan``, ``Machine``, ``Workload``. Out: ``Forecast``.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from terazi.hardware.machine import Machine
from terazi.memory.bill import HOST
from terazi.memory.vllm.settings import VllmSettings
from terazi.memory.workload import Workload
from terazi.models.spec import ModelSpec
from terazi.performance.calibration import Calibration
from terazi.performance.efficiency import Ground, classify
from terazi.performance.outlook import Forecast, Interval, faster, slower, widen
from terazi.performance.power import Draw, draw
from terazi.performance.queueing import Load, Served, prompt_s, serve, within_limits
from terazi.performance.speculation import ACCEPTED_SPREAD, ASSUMED_ACCEPTED, PASS_S, Guessing, guess
from terazi.performance.vllm_cards import FIRST_SPREAD, TOKEN_SPREAD, Card, card_rank, host_rank
from terazi.performance.vllm_load import VllmLoad, load_of
from terazi.performance.watts import with_watts
from terazi.placement.plan import Plan

#: Widening of the interval per doubling of the streams, down and up.
_WIDEN = (0.01, 0.01)


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmTiming:
    """One vLLM plan made ready to be timed."""

    settings: VllmSettings
    load: VllmLoad
    cards: tuple[Card, ...]
    draws: Mapping[str, Draw | None]

    @classmethod
    def of(
        cls,
        spec: ModelSpec,
        settings: VllmSettings,
        machine: Machine,
        *,
        length: int,
        calibration: Calibration | None = None,
    ) -> "VllmTiming":
        """The timing of *settings* on *machine*, with sequences that grow to *length* tokens."""
        load = load_of(spec, settings, machine, length=length)
        by_id = {d.id: d for d in machine.devices}
        target = load.appraisal.resolved.target
        cards, draws = [], {}
        for names in load.ranks:
            found = [
                host_rank(machine.host, calibration)
                if name == HOST or name not in by_id
                else card_rank(
                    by_id[name],
                    target,
                    load.bits,
                    graph=not settings.enforce_eager,
                    calibration=calibration,
                )
                for name in names
            ]
            slow = []
            for name, card in zip(names, found, strict=True):
                limit = draw(by_id[name], classify(by_id[name])) if name in by_id else None
                if name in by_id:
                    draws[name] = limit
                slow.append(card._replace(rank=card.rank.slowed(limit.speed)) if limit is not None else card)
            # ranks of one layer wait for each other: the slowest sets the pace
            cards.append(min(slow, key=lambda c: c.rank.bandwidth * c.rank.memory))
        return cls(settings=settings, load=load, cards=tuple(cards), draws=draws)

    def step_s(self, *, streams: int, depth: float, prompt_tokens: float = 0.0, prompt_depth: float = 0.0) -> float:
        """Seconds until every one of *streams* has a token more; pipeline stages work on a part of them each."""
        stages = self.load.stages
        parts = max(1, min(len(stages), streams)) if prompt_tokens == 0 else 1
        each = math.ceil(streams / parts)
        seconds = 0.0
        for stage, card in zip(stages, self.cards, strict=True):
            seconds += stage.step_s(
                card.rank, streams=each, depth=depth, prompt_tokens=prompt_tokens, prompt_depth=prompt_depth
            )
        hop = self.load.between.send_s((each + prompt_tokens) * stages[0].hidden * 2)
        # fewer streams than stages leave stages idle: the bubble is in the sum, which no part can shorten
        return seconds + (len(stages) - 1) * hop

    def prompt_s(self, load: Load) -> float:
        """Seconds of one prompt alone; its chunks follow each other through the stages."""
        whole = prompt_s(self.step_s, load, self.load.chunk)
        chunks, stages = math.ceil(load.fresh / self.load.chunk), len(self.load.stages)
        return whole * (chunks + stages - 1) / (chunks * stages) if stages > 1 else whole

    def guessing(self, spec: ModelSpec, streams: int, depth: float, accepted: float) -> Guessing | None:
        """A step that guesses, as the settings say; None if they don't."""
        said = self.settings.speculation
        if said is None:
            return None
        plain = self.step_s(streams=streams, depth=depth)
        more = streams * said.tokens
        stage, card = self.load.stages[-1], self.cards[-1]
        extra = more * (stage.dense_flops + stage.expert_flops) / (card.rank.compute * card.rank.flops)
        extra += more * stage.pair_flops * depth / (card.rank.compute * card.rank.attention_flops)
        pass_s = 0.0 if said.method.startswith("ngram") else PASS_S + self._draft_read_s(spec)
        return guess(
            plain_s=plain,
            check_s=plain + len(self.load.stages) * extra,
            draft_pass_s=pass_s,
            drafted=said.tokens,
            accepted=accepted,
        )

    def _draft_read_s(self, spec: ModelSpec) -> float:
        """A pass of the draft: of a head one layer and the output matrix, of a model what the bill says."""
        stage, card = self.load.stages[-1], self.cards[-1]
        drafted = max((r.draft_bytes for r in self.load.appraisal.ranks), default=0)
        if not drafted:
            head = spec.vocab_size * spec.embedding_length * 2 / stage.tensor
            drafted = round(head + (stage.dense_bytes - head) / max(1, stage.layers))
        return drafted / (card.rank.memory * card.rank.bandwidth)

    def served(self, load: Load) -> Served:
        """What *load* sees; copies of the engine share the users."""
        users = math.ceil(load.users / self.load.replicas)
        return serve(self.step_s, replace(load, users=users), slots=self.load.slots, chunk=self.load.chunk)

    @property
    def ground(self) -> Ground:
        """The least that any of the cards rests on."""
        order = list(Ground)
        return max((c.ground for c in self.cards), key=order.index)

    def words(self) -> tuple[str, ...]:
        """What the speeds rest on, a sentence each."""
        said = list(dict.fromkeys(c.words for c in self.cards))
        stage = self.load.stages[0]
        if stage.tensor > 1:
            wire = stage.fabric.wire
            said.append(
                f"{2 * stage.layers} all-reduces a step over {wire}"
                f" at {stage.fabric.bytes_per_s / 1e9:.0f} GB/s one way"
            )
        if stage.streamed_bytes:
            said.append(f"{stage.streamed_bytes / 1e9:.1f} GB of weights cross the slot every step")
        if len(self.load.stages) > 1:
            said.append(f"{len(self.load.stages)} pipeline stages: a single stream passes them one after another")
        return (*said, "roofline of each step: weights and caches over bandwidth, operations, costs per layer")


def forecast_vllm(
    spec: ModelSpec,
    plan: Plan,
    machine: Machine,
    workload: Workload,
    *,
    tariff_per_kwh: float | None = None,
    calibration: Calibration | None = None,
    accepted: float | None = None,
    cached: int = 0,
) -> Forecast:
    """The forecast of a plan for vLLM; the arguments are those of ``forecast.forecast``."""
    settings = plan.settings
    if not isinstance(settings, VllmSettings):
        raise TypeError(f"not vLLM's settings: {type(settings).__name__}")
    model = VllmTiming.of(
        spec, settings, machine, length=workload.prompt + workload.output, calibration=calibration
    )
    load = Load(users=max(1, workload.users), prompt=workload.prompt, output=workload.output, cached=cached)
    seen, alone = model.served(load), model.served(replace(load, users=1))
    prompt = model.prompt_s(load)
    ground = model.ground
    basis = [*model.words()]
    token, first = TOKEN_SPREAD[ground], FIRST_SPREAD[ground]
    depth = workload.prompt + workload.output / 2
    gain_alone, gain = 1.0, 1.0
    if settings.speculation is not None:
        share = ASSUMED_ACCEPTED if accepted is None else accepted
        one = model.guessing(spec, 1, depth, share)
        many = model.guessing(spec, seen.running, depth, share)
        if one is not None and many is not None:
            gain_alone, gain = one.gain, many.gain
            basis.append(_guess_words(one, many, seen.running, accepted))
        if accepted is None:
            token = token[0] * ACCEPTED_SPREAD[0], token[1] * ACCEPTED_SPREAD[1]
    together = widen(token, _WIDEN, seen.running)
    replicas = model.load.replicas
    throughput = faster(replicas * gain * seen.running / seen.tpot_s, together)
    if load.users > seen.running * replicas:
        basis.append(f"{load.users} users share {seen.running * replicas} places; those without one wait")
    if seen.running > 1:
        basis.append(
            f"a step that carries a full chunk of prompts takes {seen.stall_s * 1e3:.0f} ms, the longest pause"
        )
    said = Forecast(
        decode_tok_s=faster(gain_alone / alone.tpot_s, token),
        throughput_tok_s=throughput,
        prefill_tok_s=faster(workload.prompt / prompt, first),
        ttft_s=_first(seen, first),
        itl_s=slower(seen.tpot_s / gain, together),
        basis=tuple(basis),
        prefill_share=seen.prefill_share,
        users_at_slo=within_limits(
            lambda users: model.served(replace(load, users=users)), workload, first, together
        ),
    )
    return with_watts(spec, plan, machine, workload, said, tariff_per_kwh=tariff_per_kwh)


def _first(seen: Served, spread: tuple[float, float]) -> Interval:
    return slower(seen.ttft_s, spread)


def _guess_words(one: Guessing, many: Guessing, streams: int, accepted: float | None) -> str:
    said = f"guessing ahead: {one.tokens:.2f} tokens a step that takes {one.step_s / one.plain_s:.2f} plain ones"
    if streams > 1:
        said += f", {many.gain:.2f} times as fast with {streams} streams"
    return said if accepted is not None else f"{said} (accepted/drafted {ASSUMED_ACCEPTED} assumed)"
