"""``python -m mercer.benchmarks``."""

import sys

from .command import main

sys.exit(main())
