"""``python -m mercer.benchmarks``: ``mercer bench`` by another name."""

import sys

from mercer._cli.program import main

sys.exit(main(["bench", *sys.argv[1:]]))
