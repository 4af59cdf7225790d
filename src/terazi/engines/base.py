"""The ``LaunchSpec`` noun: all that the supervisor needs to start an engine and to know that it is ready."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """A figure that the engine's log should confirm after loading."""

    term: str
    device: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSpec:
    """One engine process.

    Args:
        plan_id: joins prediction and measurement.
        model_name: the id that clients use.
        argv: the command, binary first.
        env: variables to set on top of the inherited environment.
        unset_env: prefixes of inherited variables that the engine must not see, because they would change the plan.
        base_url: where it will listen, e.g. ``http://127.0.0.1:41234``.
        api_key: the random key that the engine demands and only the gateway knows.
        health_path: answers 200 once loaded.
        probe_path, probe_body: a request that makes the engine generate one token; readiness is its success.
        stop_grace_s: how long SIGTERM may take before SIGKILL.
        stall_s: loading is given up after this long without any progress.
        look_path: a cheap GET that shows whether it moves: metrics, if it has them.
        batch_tokens: prompt tokens that it works on between two moves of its counters.
        prefill_tok_s: prompt tokens per second that it should make at least; None if nobody knows.
        elsewhere: an engine that put what was planned for an accelerator into RAM instead may serve all the same.
        expectations: what the log should then say.
        notes: what this binary can't do and was left out.
    """

    plan_id: str
    engine: str
    model_name: str
    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    unset_env: tuple[str, ...] = ()
    base_url: str
    api_key: str = field(repr=False)
    health_path: str = "/health"
    probe_path: str = "/v1/completions"
    probe_body: str = '{"prompt": "1", "max_tokens": 1}'
    look_path: str = "/metrics"
    batch_tokens: int = 2048
    prefill_tok_s: float | None = None
    stop_grace_s: float = 10.0
    stall_s: float = 60.0
    elsewhere: bool = False
    expectations: tuple[Expectation, ...] = ()
    notes: tuple[str, ...] = ()
    schema: str = "terazi.launch/1"
