"""``terazi chat``: talk to a served model, one question or many."""

import argparse
import asyncio
import sys

from terazi.cli import options
from terazi.cli.terminal import harmless
from terazi.errors import ServiceError, UsageError
from terazi.service.beacon import Beacon, find
from terazi.service.client import ServiceClient
from terazi.service.paths import state_dir


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``terazi chat [PROMPT]``."""
    parser.add_argument("prompt", nargs="?", metavar="PROMPT", help="one question; without it, a conversation")
    parser.add_argument("--model", help="which model, if several are served")
    parser.add_argument("--system", metavar="TEXT", help="how the model should behave")
    parser.add_argument("--temperature", type=float, metavar="T", help="0 is the most likely answer")
    parser.add_argument("--max-tokens", type=options.positive, metavar="N", help="longest answer")
    parser.add_argument("--port", type=options.port, help="which service, if several run")


def run(args: argparse.Namespace) -> int:
    """Answer the prompt, or hold a conversation until end of input."""
    beacon = find(state_dir() / "services", port=args.port)
    conversation = Conversation(args.system)
    if args.prompt is not None:
        asyncio.run(conversation.ask(beacon, args, args.prompt))
        return 0
    if sys.stdin.isatty():
        import readline  # noqa: F401 - gives input() a history and editing keys

        print("Ask away; an empty line or Ctrl-D ends it.", file=sys.stderr)
    while True:
        try:
            question = input("> " if sys.stdin.isatty() else "")
        except EOFError:
            return 0
        if not question.strip():
            return 0
        asyncio.run(conversation.ask(beacon, args, question))


class Conversation:
    """What has been said so far."""

    def __init__(self, system: str | None) -> None:
        self.messages: list[dict[str, str]] = [{"role": "system", "content": system}] if system else []

    async def ask(self, beacon: Beacon, args: argparse.Namespace, question: str) -> None:
        """Print the answer as it comes, and remember both sides."""
        self.messages.append({"role": "user", "content": question})
        options = {
            name: value
            for name, value in (("temperature", args.temperature), ("max_tokens", args.max_tokens))
            if value is not None
        }
        pieces: list[str] = []
        async with ServiceClient(beacon) as client:
            model = args.model or await _only_model(client)
            async for piece in client.chat(model, self.messages, **options):
                pieces.append(piece)
                print(harmless(piece), end="", flush=True)
        print()
        self.messages.append({"role": "assistant", "content": "".join(pieces)})


async def _only_model(client: ServiceClient) -> str:
    models = await client.models()
    if not models:
        raise ServiceError("the service serves no model", hint="see: terazi ps")
    if len(models) > 1:
        raise UsageError(f"several models are served: {', '.join(models)}", hint="name one with --model")
    return models[0]
