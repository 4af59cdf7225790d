"""What is to be done when an engine breaks under a request: pure decisions over what the client has been told.

    shape = shape_of(path, fields, stream=…)      once a request breaks, or is about to be held back
    step  = next_step(shape, told, powers)        run again, continue, replay, finish, or give up

The rule above all: a client never gets an answer that is silently cut, doubled, or stitched where it can't be.
Where nothing correct can be done, ``GiveUp`` says why, and the client is told.

What an engine is able to do is its ``Powers``. Those of llama.cpp were seen in b11434: a chat's trailing assistant
message is continued (``server-common.cpp:oaicompat_chat_params_parse``), and a grammar made from a JSON schema or
for tool calls is moved forward over that text first (``common/sampling.cpp:common_sampler_init``), so that even an
object that was cut in its middle can be continued.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, Final, TypeAlias

CHAT: Final = "/v1/chat/completions"
TEXT: Final = "/v1/completions"
NATIVE: Final = ("/completion", "/completions")
#: Paths whose streams can be continued in the middle.
GENERATING: Final = (CHAT, TEXT, *NATIVE)

#: llama.cpp's "no seed given" (``llama.h``: ``LLAMA_DEFAULT_SEED``).
_NO_SEED: Final = 0xFFFFFFFF
#: Fields by which an answer's form is bound: llama.cpp's own grammar, and the names that vLLM has had for it.
_GRAMMARS: Final = ("grammar", "guided_grammar", "guided_regex", "guided_choice", "structured_outputs")
_SCHEMAS: Final = ("json_schema", "guided_json")


_BINDING: Final = frozenset((*_GRAMMARS, *_SCHEMAS, "response_format", "tools", "functions"))


class Form(StrEnum):
    """What binds the text of an answer."""

    FREE = "free"
    SCHEMA = "schema"  # response_format, json_schema: the engine makes the grammar
    GRAMMAR = "grammar"  # the client's own
    TOOLS = "tools"  # free text that may turn into tool calls


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a request's fields say about resuming its answer.

    Args:
        path: the engine's path.
        streams: it is answered as it comes; a whole answer is simply asked for again.
        form: what binds its text.
        seeded: it samples from a seed: the same request gives the same text, as far as engines hold to that.
        obstacle: why it can't be continued in the middle at all, as a clause; None if it can.
    """

    path: str
    streams: bool
    form: Form = Form.FREE
    seeded: bool = False
    obstacle: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Powers:
    """What an engine can do with the beginning of an answer.

    Args:
        chat: continue a chat's trailing assistant message (``continue_final_message``).
        reasoning: also one that ends within its reasoning.
        forms: move a grammar forward over what is there, for the paths that can carry it.
    """

    chat: bool = False
    reasoning: bool = False
    forms: bool = False


LLAMA_CPP: Final = Powers(chat=True, reasoning=True, forms=True)
VLLM: Final = Powers(chat=True)
#: Any other: a prompt with text behind it is continued by whatever completes prompts.
UNKNOWN: Final = Powers()


def powers_of(engine: str) -> Powers:
    """By the name on the model's card, e.g. ``llama.cpp b11434``."""
    name = engine.lower()
    if name.startswith(("llama.cpp", "llama-server", "llama_cpp")):
        return LLAMA_CPP
    return VLLM if name.startswith("vllm") else UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What the client has been sent.

    Args:
        begun: any event of the answer at all, if only the one with the role.
        content, reasoning: whether text of that kind was.
        tool_calls: whether any part of a tool call was.
        finished: the reason of its end was.
        lost_track: it was more than is kept, or can't be read.
    """

    begun: bool = False
    content: bool = False
    reasoning: bool = False
    tool_calls: bool = False
    finished: bool = False
    lost_track: bool = False


@dataclass(frozen=True, slots=True)
class RunAgain:
    """From the start; the client has seen nothing of it, or only its opening."""

    word: ClassVar = "run-again"


@dataclass(frozen=True, slots=True)
class Continue:
    """From exactly what was sent."""

    word: ClassVar = "continue"


@dataclass(frozen=True, slots=True)
class Replay:
    """From the start, keeping back what was sent; at the first difference ``next_step`` decides again."""

    word: ClassVar = "replay"


@dataclass(frozen=True, slots=True)
class Finish:
    """All text was sent; only the end is missing, and no engine is needed for it."""

    word: ClassVar = "finish"


@dataclass(frozen=True, slots=True)
class GiveUp:
    """An error event; *why* is a clause for people."""

    word: ClassVar = "give-up"

    why: str


Step: TypeAlias = RunAgain | Continue | Replay | Finish | GiveUp


class Hold(StrEnum):
    """What is kept from the client until it is complete, because it could not be continued in its middle."""

    NOTHING = "nothing"
    CALLS = "calls"  # from the first part of a tool call on
    ALL = "all"


def binds(fields: Mapping[str, Any]) -> bool:
    """Whether *fields* may bind the form of an answer: a quick look, for the many that don't."""
    return not _BINDING.isdisjoint(fields)


def shape_of(path: str, fields: Mapping[str, Any], *, stream: bool) -> Shape:
    """Read what matters of a request's *fields*."""
    temperature = fields.get("temperature")
    greedy = isinstance(temperature, int | float) and temperature <= 0
    seed = fields.get("seed")
    return Shape(
        path=path,
        streams=stream,
        form=_form(path, fields),
        seeded=isinstance(seed, int) and 0 <= seed < _NO_SEED and not greedy,
        obstacle=_obstacle(path, fields),
    )


def hold_of(shape: Shape, powers: Powers, *, resume: bool) -> Hold:
    """What must be held back so that an answer of *shape* can survive its engine."""
    if not shape.streams or not resume or shape.obstacle is not None:
        return Hold.NOTHING
    if shape.form is Form.TOOLS:
        return Hold.CALLS
    bound = shape.form is not Form.FREE and not _continues_form(shape, powers)
    return Hold.ALL if bound else Hold.NOTHING


def next_step(shape: Shape, told: Told, powers: Powers, *, resume: bool = True, replayed: bool = False) -> Step:  # noqa: PLR0911 - a table of cases
    """What to do now that an engine broke.

    Args:
        powers: those of the engine that will get it next.
        resume: False if the client asked for an error instead of a resumed answer.
        replayed: a replay was tried, and came out differently.
    """
    if told.finished:
        return Finish()
    if not shape.streams or not (told.content or told.reasoning or told.tool_calls or told.lost_track):
        return RunAgain()
    if not resume:
        return GiveUp("the request asked not to be resumed")
    if told.lost_track:
        return GiveUp("the answer was too long to be kept for its continuation")
    if shape.obstacle is not None:
        return GiveUp(shape.obstacle)
    if told.tool_calls:
        return GiveUp("part of a tool call had been sent")
    if shape.seeded and not replayed:
        return Replay()
    if shape.form in {Form.SCHEMA, Form.GRAMMAR} and not _continues_form(shape, powers):
        return GiveUp("this engine can't continue an answer that is bound to a grammar")
    if shape.path == CHAT and not powers.chat:
        return GiveUp("this engine can't continue a chat answer in its middle")
    if told.reasoning and not powers.reasoning:
        return GiveUp("this engine can't continue an answer that has reasoning")
    return Continue()


def _form(path: str, fields: Mapping[str, Any]) -> Form:
    if any(fields.get(name) for name in _GRAMMARS):
        return Form.GRAMMAR
    wanted = fields.get("response_format")
    kind = wanted.get("type") if isinstance(wanted, Mapping) else None
    if any(fields.get(name) is not None for name in _SCHEMAS) or kind not in {None, "text"}:
        return Form.SCHEMA
    tools = fields.get("tools") or fields.get("functions")
    return Form.TOOLS if path == CHAT and tools and fields.get("tool_choice") != "none" else Form.FREE


def _continues_form(shape: Shape, powers: Powers) -> bool:
    # in a chat the engine makes the grammar's beginning itself, which a client's own grammar doesn't know
    return powers.forms and not (shape.path == CHAT and shape.form is Form.GRAMMAR)


def _obstacle(path: str, fields: Mapping[str, Any]) -> str | None:
    if path not in GENERATING:
        return f"a stream of {path} can't be continued in its middle"
    for name in ("n", "n_cmpl", "best_of"):
        if isinstance(fields.get(name), int) and fields[name] > 1:
            return "several answers were asked for at once"
    if fields.get("echo") or fields.get("suffix") or fields.get("use_beam_search"):
        return "the prompt is echoed, or text is filled in between"
    if path == CHAT:
        return _chat_obstacle(fields.get("messages"))
    prompt = fields.get("prompt")
    if isinstance(prompt, Mapping):
        return "it has images or sound" if prompt.get("multimodal_data") else None
    if isinstance(prompt, str):
        return None
    if isinstance(prompt, Sequence):
        whole = any(isinstance(part, int) for part in prompt)
        return None if whole else "several answers were asked for at once"
    return "its prompt has an unknown form"


def _chat_obstacle(messages: object) -> str | None:
    if not isinstance(messages, Sequence) or not messages or not all(isinstance(m, Mapping) for m in messages):
        return "its messages have an unknown form"
    for message in messages:
        content = message.get("content")
        parts = content if isinstance(content, Sequence) and not isinstance(content, str) else ()
        if any(not isinstance(part, Mapping) or part.get("type") not in {"text", "input_text"} for part in parts):
            return "it has images or sound"
    last = messages[-1]
    if last.get("role") == "assistant" and not isinstance(last.get("content"), str):
        return "its last message is an assistant's without plain text"
    return None


class Strikes:
    """How often engines died under one request, as far as that may be its own doing.

    An engine that dies takes all of its requests with it, and most of them are innocent. So the count starts anew
    at one when the request had got on since the last death (more of its answer came), and deaths that came from
    outside don't count. A request with a strike is let into an engine alone among its kind until it gets on, see
    ``gateway.broker``; with two it is quarantined.
    """

    LIMIT: Final = 2

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    @property
    def out(self) -> bool:
        """It shall not be fed to another engine."""
        return self.count >= self.LIMIT

    def died(self, *, got_on: bool, from_outside: bool) -> None:
        """An engine died with the request in it."""
        if not from_outside:
            self.count = 1 if got_on else self.count + 1


class Setbacks:
    """How often engines broke off under one request, which has an end even if each of them brought a little.

    Each time costs the next engine the whole prompt and all of the answer so far. An engine that breaks off after
    every token would be fed the same request for ever otherwise. Ends from outside (a signal that somebody sent)
    count among all, not among those that brought too little.
    """

    #: So many times in all.
    LIMIT: Final = 20
    #: So many in a row that brought fewer than ``LEAST_PIECES`` each (events with text: about as many tokens).
    MEAGRE_LIMIT: Final = 6
    LEAST_PIECES: Final = 4

    __slots__ = ("_meagre", "_pieces", "count")

    def __init__(self) -> None:
        self.count = 0
        self._meagre = 0
        self._pieces = 0

    def broke(self, *, pieces: int, from_outside: bool) -> None:
        """An engine broke off; *pieces* of the answer had been sent by then, over all engines."""
        self.count += 1
        gained, self._pieces = pieces - self._pieces, pieces
        if gained >= self.LEAST_PIECES:
            self._meagre = 0
        elif not from_outside:
            self._meagre += 1

    @property
    def enough(self) -> str | None:
        """Why it isn't given to another engine, as a clause; None if it is."""
        if self.count >= self.LIMIT:
            return f"engines had broken off with it {self.count} times"
        if self._meagre >= self.MEAGRE_LIMIT:
            return f"the last {self._meagre} engines brought next to nothing of it each"
        return None


class Quarantine:
    """Remembers for a while which requests killed engines, by a digest of their bodies.

    Args:
        for_s: how long one is remembered.
        limit: so many at most; the oldest goes first.
    """

    def __init__(self, *, for_s: float = 600.0, limit: int = 1024) -> None:
        self._for_s = for_s
        self._limit = limit
        self._until: OrderedDict[bytes, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._until)

    def put(self, digest: bytes, now: float) -> None:
        """It killed its engines at *now* (seconds)."""
        self._until[digest] = now + self._for_s
        self._until.move_to_end(digest)
        while len(self._until) > self._limit:
            self._until.popitem(last=False)

    def holds(self, digest: bytes, now: float) -> float | None:
        """For how many more seconds a request of this *digest* is refused; None if it isn't."""
        while self._until and next(iter(self._until.values())) <= now:
            self._until.popitem(last=False)
        until = self._until.get(digest)
        return None if until is None else until - now
