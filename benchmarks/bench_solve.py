"""How long an answer of the solver takes: 126 layers on 8 unequal cards, chosen by forecast; the aim is 200 ms."""

import time

from specs import card, llama_spec, machine
from terazi.memory.workload import Workload
from terazi.performance.appraiser import Appraiser
from terazi.placement.solve import solve

CARDS = [(24, 936e9), (24, 936e9), (24, 1008e9), (32, 1792e9), (48, 960e9), (48, 864e9), (80, 2000e9), (12, 360e9)]
CASES = {
    "all on the cards": (1.0, Workload(context=8192)),
    "context to be chosen": (1.0, Workload()),
    "four users": (1.0, Workload(context=8192, users=4)),
    "a part in RAM": (0.7, Workload(context=8192)),
}


def main() -> None:
    spec = llama_spec(layers=126, embedding=16384, feed_forward=53248, heads=128)
    for name, (share, work) in CASES.items():
        cards = [card(i, gib=gib * share, bandwidth=rate) for i, (gib, rate) in enumerate(CARDS)]
        on = machine(*cards, host_gib=256)
        took = []
        for _ in range(3):
            began = time.process_time()
            solve(spec, on, work, {}, score=Appraiser(spec, on, work))
            took.append(time.process_time() - began)
        print(f"{name:<22} {1e3 * min(took):6.0f} ms of CPU")


if __name__ == "__main__":
    main()
