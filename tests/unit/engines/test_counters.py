"""What the watchdog reads of metrics: llama-server's as captured, vLLM's in its own format."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from terazi.engines.counters import Counters, read_counters

LLAMA = """\
# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed, excluding cached tokens
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 2814
# HELP llamacpp:prompt_seconds_total Total time spent processing prompts
# TYPE llamacpp:prompt_seconds_total counter
llamacpp:prompt_seconds_total 14.07
llamacpp:tokens_predicted_total 60
llamacpp:n_decode_total 202
llamacpp:requests_processing 1
llamacpp:requests_deferred 2
"""


def test_a_step_of_decoding_moves_although_tokens_are_counted_at_the_end() -> None:
    """As seen on the wire at b11434: 141 tokens into an answer ``tokens_predicted_total`` still said 60."""
    before = read_counters(LLAMA)
    after = read_counters(LLAMA.replace("n_decode_total 202", "n_decode_total 203"))
    assert before.moving != after.moving
    assert before.working == 3
    assert before.prefill_tok_s == 200.0


def test_what_says_nothing_of_progress_does_not_move() -> None:
    """Gauges such as requests that wait, and seconds, change in a hung engine too."""
    assert read_counters(LLAMA).moving == read_counters(LLAMA.replace("deferred 2", "deferred 9")).moving


def test_vllm_counters_are_summed_over_its_engines() -> None:
    """Written by the library that vLLM itself uses, under the names of ``vllm/v1/metrics/loggers.py``."""
    registry = CollectorRegistry()
    labels = ("model_name", "engine")
    prompt = Counter("vllm:prompt_tokens", "prefill tokens", labels, registry=registry)
    generated = Counter("vllm:generation_tokens", "generated tokens", labels, registry=registry)
    running = Gauge("vllm:num_requests_running", "running", labels, registry=registry)
    waiting = Gauge("vllm:num_requests_waiting", "waiting", labels, registry=registry)
    steps = Histogram("vllm:iteration_tokens_total", "per step", labels, registry=registry, buckets=(1, 8))
    for engine in ("0", "1"):
        of = {"model_name": "a/b c", "engine": engine}
        prompt.labels(**of).inc(1000)
        generated.labels(**of).inc(7)
        running.labels(**of).set(3)
        waiting.labels(**of).set(1)
        steps.labels(**of).observe(5)
    found = read_counters(generate_latest(registry).decode())
    assert found == Counters(moving=(2000.0, 14.0, 2.0), working=8, prefill_tok_s=None)


def test_anything_else_has_no_counters() -> None:
    for text in ("", '{"status": "ok"}', "llamacpp:n_decode_total many", "x" * 10_000_000):
        assert read_counters(text) == Counters()


def test_a_rate_over_a_few_tokens_is_none() -> None:
    assert read_counters(LLAMA.replace("2814", "13")).prefill_tok_s is None
