"""The closed loop of many users, on an engine whose steps are simple enough to add up by hand."""

import pytest

from terazi.performance.queueing import Load, Served, prompt_s, serve, users_at_slo

DECODE_S, TOKEN_S = 0.010, 0.0001


def _step(*, streams: int, depth: float, prompt_tokens: float = 0.0, prompt_depth: float = 0.0) -> float:
    """Ten milliseconds whoever decodes, and a tenth of one for each prompt token."""
    return (DECODE_S if streams else 0.0) + TOKEN_S * prompt_tokens


def test_a_prompt_is_worked_in_chunks_and_the_cache_saves_its_part() -> None:
    assert prompt_s(_step, Load(users=1, prompt=1000, output=1), 256) == pytest.approx(0.1)
    assert prompt_s(_step, Load(users=1, prompt=1000, output=1, cached=600), 256) == pytest.approx(0.04)
    # a prompt that is cached whole still computes its last token
    assert prompt_s(_step, Load(users=1, prompt=1000, output=1, cached=1000), 256) == pytest.approx(TOKEN_S)


def test_alone_nobody_waits() -> None:
    seen = serve(_step, Load(users=1, prompt=1000, output=100), slots=8, chunk=2048)
    assert seen.tpot_s == pytest.approx(DECODE_S)
    assert seen.queue_s == 0
    assert seen.stall_s == pytest.approx(DECODE_S)


def test_others_prompts_come_between_the_tokens() -> None:
    """Seven others send 1,000 tokens each while one makes 100: 7·0.1 s over 100 tokens are 7 ms more a token."""
    seen = serve(_step, Load(users=8, prompt=1000, output=100), slots=8, chunk=2048)
    assert seen.tpot_s == pytest.approx(DECODE_S + 0.007)
    assert seen.stall_s == pytest.approx(DECODE_S + 0.2048)
    assert 0.3 < seen.prefill_share < 0.6


def test_a_smaller_chunk_shortens_the_pause_not_the_average() -> None:
    load = Load(users=8, prompt=1000, output=100)
    large, small = (serve(_step, load, slots=8, chunk=chunk) for chunk in (2048, 256))
    assert small.stall_s < 0.3 * large.stall_s
    assert small.tpot_s == pytest.approx(large.tpot_s)


def test_users_beyond_the_slots_wait_as_little_said() -> None:
    """Throughput times the time in the system is the number of users (Little's law)."""
    load = Load(users=24, prompt=1000, output=100)
    seen = serve(_step, load, slots=8, chunk=2048)
    assert seen.running == 8
    in_system = seen.ttft_s + (load.output - 1) * seen.tpot_s
    assert seen.throughput_tok_s / load.output * in_system == pytest.approx(24)


def test_most_users_within_limits() -> None:
    def at(users: int) -> Served:
        return serve(_step, Load(users=users, prompt=1000, output=100), slots=64, chunk=2048)

    found = users_at_slo(at, itl_s=0.020)
    assert serve(_step, Load(users=found, prompt=1000, output=100), slots=64, chunk=2048).tpot_s <= 0.020
    assert serve(_step, Load(users=found + 1, prompt=1000, output=100), slots=64, chunk=2048).tpot_s > 0.020
    assert users_at_slo(at, ttft_s=0.001) == 0
    assert users_at_slo(at, most=100) == 100
