"""How long a user waits before anything happens: `import hocket` and `hocket --help`.

Median of several fresh processes, the bare interpreter's own start beside them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time

CASES = {
    "python": ["-c", "pass"],
    "import hocket": ["-c", "import hocket"],
    "hocket --help": ["-m", "hocket", "--help"],
    "hocket eval --help": ["-m", "hocket", "eval", "--help"],
}
LIMITS_S = {"import hocket": 0.3, "hocket --help": 0.5}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    times: dict[str, list[float]] = {name: [] for name in CASES}
    for _ in range(options.repeats):
        for name, arguments in CASES.items():
            start = time.perf_counter()
            subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
            times[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(values) for name, values in times.items()}
    if options.json:
        print(json.dumps(medians))
        return
    for name, seconds in medians.items():
        limit = f"  (limit {LIMITS_S[name]} s)" if name in LIMITS_S else ""
        print(f"{name:<20} {seconds:6.3f} s{limit}")


if __name__ == "__main__":
    main()
