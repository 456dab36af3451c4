"""Show where the test time goes: `python -m pytest --durations=0 -vv | python scripts/test_seconds.py`.

Prints a table in Markdown: seconds and tests of each folder, over all worker processes, set-up included.
"""

import re
import sys
from collections import Counter


def main():
    seconds, tests = Counter(), Counter()
    for line in sys.stdin:
        if found := re.match(r"([\d.]+)s (setup|call|teardown) +tests/(\w+)/", line):
            seconds[found[3]] += float(found[1])
            tests[found[3]] += found[2] == "call"
    print("| folder | seconds | tests |\n|---|---|---|")
    for folder in sorted(seconds):
        print(f"| {folder} | {seconds[folder]:.0f} | {tests[folder]} |")
    print(f"| all | {seconds.total():.0f} | {tests.total()} |")


if __name__ == "__main__":
    main()
