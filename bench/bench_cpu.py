"""The CPU benchmarks of the installed package: ``bench_cpu.py --only l1,l2 --quick``."""

import sys

from mercer.benchmarks import main

if __name__ == "__main__":
    sys.exit(main())
