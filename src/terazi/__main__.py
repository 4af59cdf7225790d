"""``python -m terazi``."""

import sys

from terazi.cli.main import main

sys.exit(main())
