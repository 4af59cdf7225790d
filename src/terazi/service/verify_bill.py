"""``terazi weigh --verify``: asks the engine about a bill, on a sparse twin of the model and stand-in devices."""

import os
from dataclasses import replace

from terazi.errors import UsageError
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.models.sources.headers import HeaderBytes, header_bytes
from terazi.service.config import load_config
from terazi.service.examiner import Examiner, Progress
from terazi.service.paths import cache_dir
from terazi.service.stoppable import run
from terazi.service.weigh import find_machine
from terazi.service.weighing import Weighing
from terazi.supervisor.find_engine import find_llama_server

LOAD_WITHIN_S = 300.0


def verify(
    weighing: Weighing,
    progress: Progress,
    *,
    header: HeaderBytes = header_bytes,
    load_within_s: float = LOAD_WITHIN_S,
) -> Weighing:
    """Ask the engine about the bill of *weighing*; confirmed lines come back as measured.

    Args:
        weighing: of llama.cpp, a plan or a refusal.
        progress: is told each step, for a person.
        header: gives the header's bytes of the model's files.
        load_within_s: how long a real load may take.

    Raises:
        UsageError: another engine's bill, or a model that is no GGUF file.
        EngineError: there is no llama-server to ask.
        ModelFileError: the header can't be read again.
        KeyboardInterrupt, SystemExit: told to stop; nothing is left behind.
    """
    settings = weighing.outcome.settings
    if not isinstance(settings, LlamaCppSettings):
        raise UsageError(
            f"Only llama.cpp's bills can be verified, and this one is {weighing.outcome.bill.engine}'s.",
            hint="Leave --verify out.",
        )
    server = load_config().engines.llama_cpp.server
    binary = find_llama_server(server, os.environ, cache_dir=str(cache_dir()))
    host = find_machine(None).host
    examiner = Examiner(
        weighing,
        settings=settings,
        binary=binary,
        host=host,
        progress=progress,
        header=header,
        load_within_s=load_within_s,
    )
    verification, bill = run(examiner.examine())
    outcome = replace(weighing.outcome, bill=bill)
    return replace(weighing, outcome=outcome, verification=verification)
