"""Which replica a request goes to."""

from terazi.policy.dispatch_messages import ReplicaChanged
from terazi.policy.fairness import Request
from terazi.policy.routing import Replica, choose


def replica(order: int, *, slots: int = 4, tokens: int | None = None, running: int = 0, held: int = 0) -> Replica:
    made = Replica(name=f"m#{order}", model="m", order=order)
    made.change(
        ReplicaChanged(
            replica=made.name, model="m", open=True, slots=slots, tokens=tokens, shared=tokens is not None
        )
    )
    made.running, made.held = running, held
    return made


def request(tokens: int = 100, prefix: tuple[int, ...] = ()) -> Request:
    return Request(
        id="r", model="m", caller="ann", priority=0, tokens=tokens, prefix=prefix, deadline=None, arrived=0.0
    )


def test_the_least_loaded_by_tokens_then_by_requests_then_the_first() -> None:
    a, b, c = replica(1, running=1, held=500), replica(2, running=3, held=200), replica(3, running=2, held=200)
    assert choose(request(), [a, b, c], 0.5) is c
    assert choose(request(), [replica(2), first := replica(1)], 0.5) is first
    assert choose(request(), [], 0.5) is None


def test_a_session_stays_where_its_prompt_is_cached() -> None:
    a, b = replica(1), replica(2, running=1, held=300)
    b.remember((1, 2, 3, 4))
    a.remember((1,))
    assert choose(request(prefix=(1, 2, 3, 4, 5)), [a, b], 0.5) is b
    assert choose(request(prefix=(1, 9, 9)), [a, b], 0.5) is a, "an equal match goes to the less busy one"
    assert choose(request(prefix=(9, 2, 3, 4)), [a, b], 0.5) is a, "what is known in the middle is no beginning"


def test_but_not_behind_a_queue_of_others() -> None:
    idle, busy = replica(1, slots=8), replica(2, slots=8, running=6, held=600)
    busy.remember((1, 2, 3))
    assert choose(request(prefix=(1, 2, 3)), [idle, busy], 0.5) is idle
    busy.running = 4
    assert choose(request(prefix=(1, 2, 3)), [idle, busy], 0.5) is busy


def test_a_full_one_is_no_choice() -> None:
    cached = replica(1, slots=2, running=2)
    cached.remember((1, 2))
    other = replica(2)
    assert choose(request(prefix=(1, 2)), [cached, other], 0.5) is other
    small = replica(3, tokens=1000, held=950)
    assert choose(request(tokens=100), [small], 0.5) is None
    assert choose(request(tokens=50), [small], 0.5) is small


def test_the_memory_of_blocks_is_bounded_and_forgets_the_oldest() -> None:
    one = replica(1)
    for talk in range(3000):
        one.remember((0, *range(talk * 10 + 1, talk * 10 + 9)))
    assert len(one.blocks) <= 8192
    assert one.matched((0, *range(2999 * 10 + 1, 2999 * 10 + 9))) == 9
    assert one.matched((0, 1, 2)) == 1, "the first block is in use all the time, the rest of the first talk isn't"


def test_an_engine_that_was_away_has_forgotten_everything() -> None:
    one = replica(1)
    one.remember((1, 2))
    one.change(ReplicaChanged(replica="m#1", model="m", open=False))
    one.change(ReplicaChanged(replica="m#1", model="m", open=True))
    assert one.matched((1, 2)) == 0


def test_how_large_a_request_may_be() -> None:
    def largest(**terms: object) -> int | None:
        made = Replica(name="r", model="m", order=1)
        made.change(ReplicaChanged(replica="r", model="m", open=True, slots=4, **terms))  # type: ignore[arg-type]
        return made.largest

    assert largest() is None
    assert largest(tokens=4000) == 1000, "each slot has its part"
    assert largest(tokens=4000, shared=True) == 4000
    assert largest(tokens=4000, tokens_each=2000, shared=True) == 2000
    assert largest(tokens_each=2000) == 2000
