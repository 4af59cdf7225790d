"""Many users on one engine: TTFT, time per token and throughput of a closed loop, from the seconds of its steps.

In: a function that times a step, a load. Out: ``Served``. Each of *users* sends its next request when the last one
is answered; the engine runs at most *slots* of them together and works a waiting prompt in between the steps.

Per token a running stream waits for its own step and for the prompts of the others that arrive meanwhile: over its
*output* tokens each of the other streams is replaced about once, so ``TPOT = step + (n-1)/output·prompt``.
A request beyond the slots waits for one (Little's law): ``(users/slots - 1)·service``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from terazi.memory.workload import Workload
from terazi.performance.outlook import Interval

#: A request's prompt meets others: a share of the other streams' prompts is ahead of it or in the same chunk,
#: because streams that began together end together. Fitted to vLLM on H100 (``benchmarks/fit_serving.py``).
CLUMPING: Final = 0.062
#: Prompts' worth of time before the first token besides its own: the step that runs when it arrives, and its share
#: of a chunk that holds more than one prompt.
OWN_PROMPTS: Final = 1.6
#: Seconds from the request to the engine and back: tokenizer, HTTP, hand-over between processes.
ENTRY_S: Final = 0.006


class StepTimer(Protocol):
    """Seconds of one step of the whole engine."""

    def __call__(
        self, *, streams: int, depth: float, prompt_tokens: float = 0.0, prompt_depth: float = 0.0
    ) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What the users send.

    Args:
        users: requests at once.
        prompt, output: tokens of each.
        cached: tokens of the prompt that the prefix cache holds.
    """

    users: int
    prompt: int
    output: int
    cached: int = 0

    @property
    def fresh(self) -> int:
        """Prompt tokens that must be computed."""
        return max(1, self.prompt - self.cached)


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What the users see, on average.

    Args:
        running: requests that are worked on at once.
        prompt_s: one prompt alone.
        step_s: a step of all running streams without a prompt beside it.
        queue_s: waiting for a slot.
        ttft_s: from sending to the first token, the queue included.
        tpot_s: between tokens, on average, prompts of others included.
        stall_s: the longest pause between two tokens: a step that carries a full chunk of prompts.
        throughput_tok_s: output tokens of all users together.
        prefill_share: share of the engine's time that prompts take.
    """

    running: int
    prompt_s: float
    step_s: float
    queue_s: float
    ttft_s: float
    tpot_s: float
    stall_s: float
    throughput_tok_s: float
    prefill_share: float


class _Beside(NamedTuple):
    """The streams that a prompt meets: how many, how deep, tokens of a chunk, seconds of their step."""

    running: int
    depth: float
    chunk: int
    step_s: float


def prompt_s(step: StepTimer, load: Load, chunk: int) -> float:
    """Seconds to work the fresh part of one prompt alone, in chunks of at most *chunk* tokens."""
    left, done, seconds = load.fresh, load.cached if load.cached < load.prompt else load.prompt - 1, 0.0
    while left > 0:
        tokens = min(left, chunk)
        seconds += step(streams=0, depth=0.0, prompt_tokens=tokens, prompt_depth=done + tokens / 2)
        done, left = done + tokens, left - tokens
    return seconds


def serve(
    step: StepTimer,
    load: Load,
    *,
    slots: int,
    chunk: int,
    clumping: float = CLUMPING,
    own_prompts: float = OWN_PROMPTS,
    entry_s: float = ENTRY_S,
) -> Served:
    """The closed loop of *load* on an engine with room for *slots* requests, and *chunk* prompt tokens a step."""
    running = max(1, min(load.users, slots))
    depth = load.prompt + load.output / 2
    step_alone = step(streams=running, depth=depth)
    prompt = prompt_s(step, load, chunk)
    # beside decoding streams a prompt's chunk shares the weights that the step reads anyway
    beside = _marginal_s(step, load, _Beside(running, depth, chunk, step_alone), prompt)
    tpot = step_alone + (running - 1) / max(1, load.output) * beside
    first = entry_s + step_alone / 2 + prompt * (own_prompts + clumping * (running - 1))
    service = first + (load.output - 1) * tpot
    queue = service * max(0.0, load.users / running - 1)
    cycle = max(service, 1e-9)
    busy = min(1.0, running * beside / cycle)
    full = min(chunk, running * load.fresh)
    stall = step(streams=running - 1, depth=depth, prompt_tokens=full, prompt_depth=load.prompt / 2)
    return Served(
        running=running,
        prompt_s=prompt,
        step_s=step_alone,
        queue_s=queue,
        ttft_s=first + queue,
        tpot_s=tpot,
        stall_s=max(stall, step_alone) if running > 1 else step_alone,
        throughput_tok_s=running * load.output / cycle,
        prefill_share=busy,
    )


def _marginal_s(step: StepTimer, load: Load, beside: _Beside, prompt: float) -> float:
    """Seconds that one prompt adds to the steps of the streams that run beside it."""
    if beside.running < 2:
        return prompt
    tokens = min(load.fresh, beside.chunk)
    mixed = step(
        streams=beside.running - 1,
        depth=beside.depth,
        prompt_tokens=tokens,
        prompt_depth=load.cached + tokens / 2,
    )
    return max(0.0, min(prompt, (mixed - beside.step_s) * load.fresh / tokens))


def users_at_slo(
    at: Callable[[int], Served], *, ttft_s: float | None = None, itl_s: float | None = None, most: int = 4096
) -> int:
    """The most users at once that still see the first token and each next one in time; 0 if not even one does.

    Args:
        at: what *n* users see.
        ttft_s, itl_s: limits in seconds; None is no limit.
        most: where the search ends.
    """

    def fine(users: int) -> bool:
        seen = at(users)
        return (ttft_s is None or seen.ttft_s <= ttft_s) and (itl_s is None or seen.tpot_s <= itl_s)

    if not fine(1):
        return 0
    low, high = 1, 2
    while high <= most and fine(high):
        low, high = high, high * 2
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fine(middle) else (low, middle)
    return low


def within_limits(
    at: Callable[[int], Served], workload: Workload, first: tuple[float, float], token: tuple[float, float]
) -> Interval | None:
    """How many users stay within *workload*'s limits; None where it has none.

    Args:
        at: what *n* users see, at the middle estimate.
        first, token: the spreads of the rates behind the first token and the others: a machine at the lower end of
            its spread takes as many users as the middle one would within limits that are so much tighter.
    """
    ttft_s, itl_s = workload.ttft_limit_s, workload.itl_limit_s
    if ttft_s is None and itl_s is None:
        return None

    def users(by_first: float, by_token: float) -> float:
        return float(
            users_at_slo(
                at,
                ttft_s=None if ttft_s is None else ttft_s * by_first,
                itl_s=None if itl_s is None else itl_s * by_token,
            )
        )

    return Interval(low=users(first[0], token[0]), mid=users(1.0, 1.0), high=users(first[1], token[1]))
