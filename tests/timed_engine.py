"""A fake llama-server and llama-bench whose speed is exactly known: what a calibration should find out.

Called as ``llama-bench`` it prints the rows that the tool would; else it serves ``/health`` and ``/completion``
with timings, and answers ``--version`` and ``--help``. ``TIMED_FLAKY=N`` makes every third run N times as slow,
``TIMED_HANG`` keeps llama-bench from ever answering, ``TIMED_FAIL`` makes it end with a message.
"""

import json
import os
import struct
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

#: Seconds for a byte of each type with one token at once, and how many tokens go for the price of one.
PER_BYTE = {"f16": (2e-11, 8), "q8_0": (3e-11, 4), "q4_K": (4e-11, 2)}
OTHER = (5e-11, 1)
#: Seconds for each row and token besides.
ROW_S = 3e-9
LAYER_S = 25e-6
ATTENTION = 40e9
STEP_S, TOKEN_S, VOCAB_S = 150e-6, 90e-6, 4e-9
TYPES = {1: "f16", 8: "q8_0", 12: "q4_K"}


def kernel_s(dtype: str, n_bytes: float, rows: int, tokens: int) -> float:
    per_byte, width = PER_BYTE.get(dtype, OTHER)
    return n_bytes * per_byte * max(1.0, tokens / width) + rows * ROW_S * tokens


class Shape:
    """What the header of a llama model says, read without any help of the program under test."""

    def __init__(self, path: str) -> None:
        self.data = Path(path).read_bytes()[: 8 << 20]
        _, tensors, pairs = struct.unpack_from("<IQQ", self.data, 4)
        self.at = 24
        self.keys: dict[str, Any] = {}
        for _ in range(pairs):
            key = self.string()
            self.keys[key] = self.value(self.number("I"))
        self.matrices: list[tuple[str, str, int, int]] = []
        for _ in range(tensors):
            name, dims = self.string(), self.number("I")
            shape = [self.number("Q") for _ in range(dims)]
            kind, _ = self.number("I"), self.number("Q")
            if dims > 1:
                self.matrices.append((name, TYPES.get(kind, f"type{kind}"), shape[0] * shape[1], shape[1]))

    def number(self, code: str) -> int:
        value: int = struct.unpack_from("<" + code, self.data, self.at)[0]
        self.at += struct.calcsize("<" + code)
        return value

    def string(self) -> str:
        n = self.number("Q")
        self.at += n
        return self.data[self.at - n : self.at].decode()

    def value(self, kind: int) -> object:
        if kind == 8:
            return self.string()
        if kind == 9:
            inner, n = self.number("I"), self.number("Q")
            return [self.value(inner) for _ in range(n)]
        return self.number({4: "I", 5: "i", 6: "f"}[kind])

    def step_s(self, tokens: int, depth: int, *, sampled: int) -> float:
        bits = {"f16": 16, "q8_0": 8.5, "q4_K": 4.5, "type14": 6.5625, "type2": 4.5, "type3": 5, "type6": 5.5,
                "type13": 5.5}  # fmt: skip
        seconds = float(self.keys["llama.block_count"] * LAYER_S)
        for name, dtype, elements, rows in self.matrices:
            if name == "token_embd.weight":
                continue
            n = sampled if name == "output.weight" else tokens
            seconds += kernel_s(dtype, elements * bits[dtype] / 8, rows, n) if n else 0
        flops = 4.0 * self.keys["llama.embedding_length"] * self.keys["llama.block_count"] * tokens * depth
        return seconds + float(flops) / ATTENTION


def bench(argv: list[str]) -> None:
    if "TIMED_FAIL" in os.environ:
        sys.exit("main: error: failed to load model")
    while "TIMED_HANG" in os.environ:
        time.sleep(60)
    given = dict(pairwise(argv))
    shape, slow = Shape(given["-m"]), float(os.environ.get("TIMED_FLAKY", "1"))
    print("ggml: some line of a log")
    for depth in map(int, given["-d"].split(",")):
        for n in map(int, given["-p"].split(",")):
            seconds = shape.step_s(n, depth, sampled=1)  # of the last token, as llama_batch_get_one says
            samples = [round(1e9 * seconds * (slow if i % 3 == 2 else 1)) for i in range(int(given["-r"]))]
            row = {"build_commit": "unknown", "n_prompt": n, "n_gen": 0, "n_depth": depth, "n_ubatch": 512}
            print(json.dumps({**row, "samples_ns": samples}), flush=True)


class Handler(BaseHTTPRequestHandler):
    """Counts who asks at the same time, as a batch would hold them."""

    shape: Shape
    lock = threading.Lock()
    asking = 0
    most = 0

    def do_GET(self) -> None:
        self.answer({"status": "ok"})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        kind = Handler
        with kind.lock:
            kind.asking += 1
            kind.most = max(kind.most, kind.asking)
        time.sleep(0.15)
        with kind.lock:
            n = kind.most
            kind.asking -= 1
        words = kind.shape.keys["tokenizer.ggml.tokens"]
        step = kind.shape.step_s(n, 0, sampled=n) + STEP_S + n * (TOKEN_S + len(words) * VOCAB_S)
        self.answer({"timings": {"predicted_per_token_ms": 1e3 * step, "prompt_ms": 1.0, "prompt_n": 8}})
        with kind.lock:
            if not kind.asking:
                kind.most = 0

    def answer(self, body: object) -> None:
        text = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *args: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    request_queue_size = 64
    daemon_threads = True


def main() -> None:
    program, *argv = sys.argv[1:]
    if program == "llama-bench":
        return bench(argv)
    if argv == ["--version"]:
        print("version: 0.6.0-dev (build 11434, commit abc)")
    elif argv == ["--help"]:
        print((Path(__file__).resolve().parent / "golden" / "llama_cpp" / "help.txt").read_text())
    elif argv == ["--list-devices"]:
        print("Available devices:")
    else:
        given = dict(pairwise(argv))
        Handler.shape = Shape(given["--model"])
        Server(("127.0.0.1", int(given["--port"])), Handler).serve_forever()
    return None


if __name__ == "__main__":
    main()
